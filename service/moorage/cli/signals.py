"""Signals that end a command: without a handler they would end it before it stops its servers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_AGAIN_S: Final = 0.001


class EndedBySignal(BaseException):
    """The command was told to end; like KeyboardInterrupt it passes every `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupt:
    """A flag that Ctrl-C sets, beside the KeyboardInterrupt that it raises in the main thread.

    That one is lost where it comes while a finaliser or a callback of the interpreter runs, and a
    command that follows would go on. Waits on a raw lock: `threading.Event` would deadlock with
    a handler that interrupts its own `wait`.
    """

    def __init__(self) -> None:
        self._set = False
        self._pending = threading.Lock()
        self._pending.acquire()

    def is_set(self) -> bool:
        """Tell whether Ctrl-C came."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for Ctrl-C or until the seconds have passed; tell whether it came."""
        if not self._set and self._pending.acquire(timeout=-1 if timeout is None else timeout):
            self._pending.release()
        return self._set

    @contextmanager
    def heard(self) -> Generator[None]:
        """Hear Ctrl-C meanwhile, where Python's own handler would."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        main = threading.current_thread() is threading.main_thread()
        if main:
            signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            if main:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._set:
            self._set = True
            self._pending.release()
        signal.default_int_handler(number, frame)


@contextmanager
def raised() -> Generator[None]:
    """Raise EndedBySignal in the main thread at SIGTERM and SIGHUP, unless they are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    swallowed = _Swallowed()
    for number in numbers:
        signal.signal(number, swallowed.strike)
    try:
        with swallowed.given_again():
            yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class _Swallowed:
    """Signals whose exception was lost in a finaliser or a callback, to be given again.

    The interpreter reports it there, and the command would go on. Given by a timer: what is raised
    in the report itself is lost as well.
    """

    def __init__(self) -> None:
        self._lost: int | None = None

    def strike(self, number: int, frame: FrameType | None) -> None:
        """Raise EndedBySignal, as the handler of a signal, where it is not lost."""
        while frame is not None:
            if frame.f_code is self._report.__code__:
                self._add(number)
                return
            frame = frame.f_back
        raise EndedBySignal(number)

    @contextmanager
    def given_again(self) -> Generator[None]:
        """Listen to the interpreter's reports meanwhile."""
        self._otherwise, sys.unraisablehook = sys.unraisablehook, self._report
        alarm = signal.signal(signal.SIGALRM, self._give)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)
            sys.unraisablehook = self._otherwise
            self._give(signal.SIGALRM, None)

    def _report(self, unraisable: sys.UnraisableHookArgs) -> None:
        error = unraisable.exc_value
        if isinstance(error, EndedBySignal):
            self._add(error.number)
        elif isinstance(error, KeyboardInterrupt):
            self._add(signal.SIGINT)
        else:
            self._otherwise(unraisable)

    def _add(self, number: int) -> None:
        self._lost = number  # of several the last: one is enough to end a command
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    def _give(self, _number: int, _frame: FrameType | None) -> None:
        number, self._lost = self._lost, None
        if number is not None:
            signal.raise_signal(number)
