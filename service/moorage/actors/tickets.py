"""What a caller waits on: one answer, claimed once."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from moorage.errors import WaitTimeoutError

T = TypeVar("T")

FOR_EVER: Final = -1.0
"""As the seconds of a wait: until the answer is there."""
_SIGNALS_S: Final = 0.5
"""The main thread looks for signals so often while it waits."""

_numbers = itertools.count(1)


class Ticket(Generic[T]):
    """One answer for one caller. Whoever claims it first, granter or leaver, has it.

    No lock of it is ever held while Python code runs: a `concurrent.futures.Future` has one that
    an interrupt in the waiting thread can leave locked, and the registry would hang at its next
    answer. `names` as asked for, `owner` who asks (thread or task), `deadline` monotonic.
    """

    __slots__ = (
        "__weakref__",
        "_claim",
        "_error",
        "_listeners",
        "_pending",
        "_value",
        "answered",
        "asked",
        "deadline",
        "leases",
        "names",
        "number",
        "owner",
        "timeout_s",
    )

    _value: T

    def __init__(
        self,
        asked: str,
        *,
        names: tuple[str, ...] = (),
        owner: object = None,
        timeout_s: float = float("inf"),
        deadline: float = float("inf"),
        leases: bool = False,
    ) -> None:
        self.number = next(_numbers)
        self.asked = asked
        self.names = names
        self.owner = owner
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.leases = leases
        self.answered = False
        self._claim = [None]
        self._error: BaseException | None = None
        self._listeners: list[Callable[[], object]] = []
        self._pending = threading.Lock()  # locked until the answer is there
        self._pending.acquire()

    def _claimed(self) -> bool:
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True

    @property
    def open(self) -> bool:
        """True until it is granted, failed or abandoned."""
        return bool(self._claim)

    def grant(self, value: T) -> bool:
        """Answer it; False when it was claimed already, then the value is the granter's to undo."""
        if not self._claimed():
            return False
        self._value = value
        self._answer()
        return True

    def fail(self, error: BaseException) -> bool:
        """Answer it with an error; False when it was claimed already."""
        if not self._claimed():
            return False
        self._error = error
        self._answer()
        return True

    def _answer(self) -> None:
        self.answered = True
        self._pending.release()
        self._tell()

    def _tell(self) -> None:
        while self._listeners:
            try:
                listener = self._listeners.pop()
            except IndexError:
                return  # the other thread has it
            listener()

    def when_answered(self, listener: Callable[[], object]) -> None:
        """Call back once it is answered, in the answering thread or, when it is, right here."""
        self._listeners.append(listener)
        if self.answered:  # announced first, then looked: one of the two threads calls it
            self._tell()

    def abandon(self) -> bool:
        """Leave; False when the answer came first, or was left already."""
        return self._claimed()

    def wait(self, timeout_s: float, /) -> bool:
        """Block until it is answered, for the one caller whose it is; FOR_EVER has no end."""
        if self.answered:
            return True
        if threading.current_thread() is not threading.main_thread():
            return self._pending.acquire(timeout=timeout_s)
        # A signal that comes when the lock is about to be waited for does not end that wait, and
        # its handler, such as that of Ctrl-C, runs only after it.
        ends = math.inf if timeout_s < 0 else time.monotonic() + timeout_s
        while (left := ends - time.monotonic()) > _SIGNALS_S:
            if self._pending.acquire(timeout=_SIGNALS_S):
                return True
        return self._pending.acquire(timeout=max(left, 0.0))

    def result(self) -> T:
        """Return or raise the answer."""
        if self._error is not None:
            raise self._error
        return self._value

    def took(self, error: BaseException) -> bool:
        """Tell whether this error was the answer, and let go of it: its frames refer to us."""
        if self._error is not error:
            return False
        self._error = None
        return True

    def undo(self) -> None:
        """Give back what was granted."""
        release = getattr(getattr(self, "_value", None), "release", None)
        if release is not None:
            release()


def leave(ticket: Ticket[Any], left: Callable[[Ticket[Any]], None]) -> None:
    """Wait no more: tell the registry, and undo an answer that came first. May be repeated."""
    if not ticket.abandon():
        ticket.when_answered(ticket.undo)
    left(ticket)


def wait(
    ticket: Ticket[T],
    ask: Callable[[], None],
    timeout_s: float,
    left: Callable[[Ticket[Any]], None],
    block: Callable[[Ticket[Any], float], bool],
) -> T:
    """Ask, then block until the answer or the timeout; leave cleanly on any exception.

    Asking is part of it: an interrupt right after it would leave a waiter that nobody is.
    Raises WaitTimeoutError, or what the ticket was failed with.
    """
    try:
        ask()
        if not block(ticket, timeout_s) and ticket.abandon():
            raise WaitTimeoutError(ticket.asked, timeout_s, "no answer yet")
        block(ticket, FOR_EVER)  # claimed in the moment of the timeout: the answer is being given
        return ticket.result()
    except BaseException as error:
        if not ticket.took(error):
            leave(ticket, left)
        raise
