"""Subscriptions: committed entries to callbacks, on one dispatcher thread, bounded."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from moorage.core.events import Entry

_log = logging.getLogger(__name__)

MAX_PENDING = 10_000
"""Entries that may wait for slow callbacks before some are skipped."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Callbacks were too slow: entries `first` to `last` (seqs) were not delivered."""

    first: int
    last: int


@dataclass(slots=True)
class _Gap:
    """What will be told as `Skipped`."""

    first: int
    last: int


Callback = Callable[[Entry | Skipped], None]


class Subscription:
    """Ends by `close()`, also from within the callback."""

    def __init__(self, end: Callable[[Subscription], None], callback: Callback) -> None:
        self._end = end
        self._callback = callback
        self._open = True

    def deliver(self, item: Entry | Skipped) -> None:
        """Call back; an exception is logged and the subscription goes on."""
        if not self._open:
            return
        try:
            self._callback(item)
        except BaseException:  # noqa: BLE001  a subscriber's exit must not silence the others
            _log.exception("a subscriber's callback failed")

    def close(self) -> None:
        """Deliver nothing more. Idempotent."""
        self._open = False
        self._end(self)


class Feed:
    """One dispatcher thread, started with the first subscription."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Entry, ...] | _Gap | None] = SimpleQueue()
        # Without a lock: each use is one step, and an interrupt would leave a lock locked.
        self._subscriptions: dict[Subscription, None] = {}
        self._to_start = [threading.Thread(target=self._serve, name="moorage-feed", daemon=True)]
        self._thread = self._to_start[0]
        self._pending = 0
        self._delivered = 0
        self._gap: _Gap | None = None
        self._gap_lock = threading.Lock()  # between the registry's thread and ours alone

    def publish(self, entries: Sequence[Entry]) -> None:
        """Hand entries over; never blocks. Called by the registry's thread."""
        if not self._subscriptions:
            return
        if self._pending - self._delivered + len(entries) > MAX_PENDING:
            self._skip(entries[0].seq, entries[-1].seq)
            return
        self._gap = None  # whatever is skipped later comes after these
        self._pending += len(entries)
        self._queue.put(tuple(entries))

    def subscribe(self, callback: Callback) -> Subscription:
        """Call back for every entry committed from now on."""
        subscription = Subscription(self._drop, callback)
        self._subscriptions[subscription] = None
        with contextlib.suppress(IndexError):  # several may come first at once
            thread = self._to_start.pop()
            try:
                if not thread.is_alive():
                    thread.start()
            except BaseException:  # no thread is to be had, or an interrupt: the next one tries
                self._to_start.append(thread)
                subscription.close()
                raise
        return subscription

    def close(self, timeout_s: float) -> None:
        """Deliver what is pending, then end. From a callback it does not wait for itself.

        Called when nothing is published any more.
        """
        self._queue.put(None)
        if self._thread.is_alive() and not self.is_dispatching():
            self._thread.join(timeout_s)

    def is_dispatching(self) -> bool:
        """Tell whether the caller is a callback of ours."""
        return self._thread is threading.current_thread()

    def _drop(self, gone: Subscription) -> None:
        self._subscriptions.pop(gone, None)

    def _skip(self, first: int, last: int) -> None:
        """Tell of what is skipped in its place; a gap that nobody was told of yet gets wider."""
        with self._gap_lock:
            if self._gap is None:
                self._gap = _Gap(first, last)
                self._queue.put(self._gap)
            else:
                self._gap.last = last

    def _told(self, gap: _Gap) -> Skipped:
        with self._gap_lock:
            if self._gap is gap:
                self._gap = None
            return Skipped(gap.first, gap.last)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            batch = (self._told(item),) if isinstance(item, _Gap) else item
            for entry in batch:
                for subscription in tuple(self._subscriptions):
                    subscription.deliver(entry)
            self._delivered += 0 if isinstance(item, _Gap) else len(batch)
