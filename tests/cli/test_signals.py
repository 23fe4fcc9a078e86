"""Ctrl-C ends a command also where its exception is lost."""

from __future__ import annotations

import signal
import threading

import pytest

from moorage.cli.signals import Interrupt


class Finalised:
    """Interrupted in its finaliser, where the interpreter can only report an exception."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


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
