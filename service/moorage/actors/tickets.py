"""What a caller waits on: one answer, claimed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from moorage.errors import WaitTimeoutError

T = TypeVar("T")

_numbers = itertools.count(1)


class Ticket(Generic[T]):
    """One answer for one caller. Whoever claims it first, granter or leaver, has it.

    `names` as asked for, `owner` who asks (thread or task), `deadline` monotonic.
    """

    __slots__ = (
        "__weakref__",
        "_claim",
        "asked",
        "deadline",
        "future",
        "leases",
        "names",
        "number",
        "owner",
        "timeout_s",
    )

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
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()  # from here on only a claim ends it
        self._claim = [None]

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
        self.future.set_result(value)
        return True

    def fail(self, error: BaseException) -> bool:
        """Answer it with an error; False when it was claimed already."""
        if not self._claimed():
            return False
        self.future.set_exception(error)
        return True

    def abandon(self) -> bool:
        """Leave; False when the answer came first and is in `future`."""
        return self._claimed()


def leave(ticket: Ticket[Any], left: Callable[[Ticket[Any]], None]) -> bool:
    """Wait no more: tell the registry, or undo the answer that came first (then False)."""
    if ticket.abandon():
        left(ticket)
        return True
    ticket.future.add_done_callback(_undo)
    return False


def _undo(future: Future[Any]) -> None:
    if future.exception() is None:
        release = getattr(future.result(), "release", None)
        if release is not None:
            release()


def wait(
    ticket: Ticket[T],
    ask: Callable[[], None],
    timeout_s: float,
    left: Callable[[Ticket[Any]], None],
) -> T:
    """Ask, then block until the answer or the timeout; leave cleanly on any exception.

    Asking is part of it: an interrupt right after it would leave a waiter that nobody is.
    Raises WaitTimeoutError, or what the ticket was failed with.
    """
    try:
        ask()
        return ticket.future.result(timeout_s)
    except BaseException as error:
        if ticket.future.done() and ticket.future.exception() is error:
            raise  # the answer is an error
        if not isinstance(error, TimeoutError):
            leave(ticket, left)
            raise
        if ticket.abandon():
            left(ticket)
            raise WaitTimeoutError(ticket.asked, timeout_s, "no answer yet") from None
    return ticket.future.result()  # answered in the moment of the timeout
