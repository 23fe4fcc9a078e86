"""Ctrl-C ends a command also where its exception is lost."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading

import pytest

from moorage.cli.signals import EndedBySignal, Interrupt, raised


class Finalised:
    """Interrupted in its finaliser, where the interpreter can only report an exception."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finaliser_swallows_is_seen_all_the_same() -> None:
    interrupt = Interrupt()
    with interrupt.heard():
        made = Finalised()
        del made

    assert interrupt.is_set()
    assert interrupt.wait(0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_raised_where_the_command_is_and_ends_its_wait() -> None:
    interrupt = Interrupt()
    main = threading.main_thread().ident or 0
    killer = threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGINT))
    killer.start()
    with interrupt.heard(), pytest.raises(KeyboardInterrupt):
        interrupt.wait(20)
    killer.join(20)

    assert interrupt.is_set()


def test_without_an_interrupt_a_wait_ends_by_its_time() -> None:
    assert not Interrupt().wait(0.001)


ENDING = [
    (signal.SIGTERM, EndedBySignal),
    (signal.SIGHUP, EndedBySignal),
    (signal.SIGINT, KeyboardInterrupt),
]


@pytest.mark.parametrize(("number", "error"), ENDING)
def test_a_signal_that_a_finaliser_swallows_ends_what_the_command_does_next(
    number: int, error: type[BaseException]
) -> None:
    reached: list[str] = []

    def work() -> None:
        made = Finalised(number)
        del made
        reached.append("wait")
        threading.Event().wait(20)
        reached.append("end")

    with pytest.raises(error), raised():
        work()

    assert reached == ["wait"]
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(("number", "error"), ENDING)
def test_a_signal_that_is_swallowed_at_the_end_of_a_command_ends_it(
    number: int, error: type[BaseException]
) -> None:
    made = Finalised(number)
    with pytest.raises(error), raised():
        del made


def test_two_signals_at_once_that_a_finaliser_swallows_end_what_the_command_does_next() -> None:
    both = (signal.SIGHUP, signal.SIGTERM)  # as of a service manager that sends one after the other
    mask = (ctypes.c_ulong * 16)(sum(1 << (number - 1) for number in both))
    libc = ctypes.PyDLL(None)
    reached: list[str] = []

    class Struck:
        def __del__(self) -> None:
            # Both come: one handler raises here, and the other one in the report of that.
            libc.pthread_sigmask(signal.SIG_UNBLOCK, mask, None)

    def work() -> None:
        made = Struck()
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        for number in both:
            signal.raise_signal(number)
        del made
        reached.append("wait")
        threading.Event().wait(20)
        reached.append("end")

    with pytest.raises(EndedBySignal), raised():
        work()

    assert reached == ["wait"]


def test_what_else_goes_wrong_in_a_finaliser_is_reported_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda seen: reported.append(seen.exc_type))

    class Wrong:
        def __del__(self) -> None:
            raise ValueError

    with raised():
        made = Wrong()
        del made

    assert reported == [ValueError]
