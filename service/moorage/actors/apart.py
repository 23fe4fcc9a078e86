"""Work that an interrupt must not cut in two: Ctrl-C reaches the main thread alone."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from moorage.actors.tickets import FOR_EVER, Ticket

T = TypeVar("T")

Wanted = Callable[[], bool]
"""Tells whether somebody still waits for what is done."""
_UNDONE_S: Final = 1.0
"""An interrupt waits so long for what it interrupted to be undone; that goes on without it."""


def apart(name: str, work: Callable[[Wanted], T], undo: Callable[[T], object] | None = None) -> T:
    """Return what `work` returns, or raise what it raises, done in a thread of its own.

    An interrupt ends only the wait for it. What comes of it then is given to `undo`.
    """
    ticket: Ticket[T] = Ticket(name)
    served: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        try:
            _named(f"moorage-{name}", lambda: serve(ticket, work, undo))
        except RuntimeError as error:  # this thread was the last one to be had
            ticket.fail(_NoThreadError(*error.args))
        finally:
            served.put(None)

    try:
        if _begun(run):
            ticket.wait(FOR_EVER)
            served.get()
            return ticket.result()
    except _NoThreadError:
        pass
    except BaseException as error:
        if ticket.took(error):
            raise
        abandon(ticket, undo)
        if undo is not None:
            with suppress(Empty):
                served.get(timeout=_UNDONE_S)
        raise
    return work(lambda: True)


class _NoThreadError(RuntimeError):
    """Nothing was begun."""


def _begun(run: Callable[[], None]) -> bool:
    """Begin a thread; False when there is none to be had, or the interpreter ends.

    By one call of C: an interrupt in the Python code of `threading.Thread.start` may come out of it
    as another error, and one in the callbacks at the end of a Thread object not at all.
    """
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return False
    return True


def _named(name: str, work: Callable[[], None]) -> None:
    """Work in a thread that `threading` knows, and return when it is gone.

    Raises RuntimeError when there is none to be had.
    """
    over: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        try:
            work()
        finally:
            over.put(None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    over.get()
    while thread.is_alive():  # `join` would enter the waiting thread in `threading`, for ever
        os.sched_yield()


def serve(
    ticket: Ticket[T], work: Callable[[Wanted], T], undo: Callable[[T], object] | None
) -> None:
    """Answer with what comes of it; when nobody waits any more, undo it."""
    try:
        value = work(lambda: ticket.open)
    except BaseException as error:  # noqa: BLE001  raised to the caller, if there is one
        ticket.fail(error)
        return
    if not ticket.grant(value) and undo is not None:
        undo(value)


def abandon(ticket: Ticket[T], undo: Callable[[T], object] | None) -> None:
    """Wait no more. What was answered already, or will be at any moment, is undone."""
    if not ticket.abandon() and undo is not None:
        ticket.when_answered(lambda: _undo_answer(ticket, undo))


def _undo_answer(ticket: Ticket[T], undo: Callable[[T], object]) -> None:
    try:
        value = ticket.result()
    except Exception:  # noqa: BLE001  it came to nothing, and nobody waits to hear that either
        return
    undo(value)
