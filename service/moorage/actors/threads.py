"""Threads that are used again: on a busy machine starting one takes longer than a commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Protocol

from moorage.actors.apart import apart

_log = logging.getLogger(__name__)

Work = Callable[[], None]
MAX_IDLE: Final = 16
"""Threads kept for later; those beyond end with their work."""
_IDLE_NAME: Final = "moorage-idle"


class Queue(Protocol):
    """What actors and workers take their work from."""

    def put(self, item: Any) -> None:
        """Add an item; never blocks."""
        ...

    def get(self) -> Any:
        """Block until there is an item, and take it."""
        ...

    def empty(self) -> bool:
        """Tell whether there is none."""
        ...


class Waited(Protocol):
    """What can be waited for: an event, a ticket."""

    def wait(self, timeout: float, /) -> bool:
        """Block until it is there or the seconds have passed; tell whether it is there."""
        ...


class Threads:
    """Daemon threads for whoever needs one to itself for a while. Any thread may ask.

    All that blocks a thread of the service comes from here, so that a subclass can run the same
    actors and workers without threads.

    No lock, as a list's `append`, `pop` and `remove` are each one step: a thread is in `_idle`
    or somebody has taken it, to give it work or to end it. `_alive` has all of them.
    """

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._alive: list[_Thread] = []
        self._closed = threading.Event()

    def run(self, name: str, work: Work) -> None:
        """Run this in a thread of its own. RuntimeError when none can be started."""
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _Thread(self._park, self._alive)
        thread.inbox.put((f"moorage-{name}", work))

    def apart(self, name: str, work: Work) -> None:
        """Do this where no interrupt of the caller reaches it, and wait for it; see `apart`."""
        apart(name, lambda _wanted: work())

    def queue(self) -> Queue:
        """Return a queue that signal handlers and finalisers may put to.

        `queue.Queue` deadlocks when a finaliser puts while its own thread is in `put`.
        """
        queue: SimpleQueue[Any] = SimpleQueue()
        return queue

    def flag(self) -> threading.Event:
        """Return a flag that is not set."""
        return threading.Event()

    def wait(self, waited: Waited, timeout_s: float) -> bool:
        """Block the calling thread, see `Waited`."""
        return waited.wait(timeout_s)

    def me(self) -> object:
        """Return what tells the calling thread from others that live."""
        return threading.get_ident()

    def close(self, timeout_s: float) -> None:
        """End the idle threads, and wait for those at work: they end with it."""
        deadline = time.monotonic() + timeout_s
        self._closed.set()
        while self._idle:
            try:
                self._idle.pop().inbox.put(None)
            except IndexError:
                break
        for thread in tuple(self._alive):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _park(self, thread: _Thread) -> bool:
        """Keep a thread that is done; False when it is to end."""
        if self._closed.is_set() or len(self._idle) >= MAX_IDLE:
            return False
        self._idle.append(thread)
        if not self._closed.is_set():
            return True
        try:
            self._idle.remove(thread)
        except ValueError:
            return True  # taken meanwhile: what it is to do is in its inbox
        return False


class _Thread(threading.Thread):
    """One thread; `inbox` tells it what to do, None to end."""

    def __init__(self, park: Callable[[_Thread], bool], alive: list[_Thread]) -> None:
        super().__init__(name=_IDLE_NAME, daemon=True)
        self.inbox: SimpleQueue[tuple[str, Work] | None] = SimpleQueue()
        self._park = park
        self._alive = alive
        alive.append(self)
        try:
            self.start()
        except BaseException:
            alive.remove(self)
            raise

    def run(self) -> None:
        """Do what is in the inbox until told to end, or nobody keeps this thread."""
        try:
            self._serve()
        finally:
            self._alive.remove(self)

    def _serve(self) -> None:
        while (item := self.inbox.get()) is not None:
            self.name, work = item
            try:
                work()
            except Exception:  # noqa: BLE001  the work has told the worst in its `finally`; say why
                _log.exception("%s failed", self.name)
            del item, work  # an idle thread holds on to nothing
            self.name = _IDLE_NAME
            if not self._park(self):
                return


class ThreadWorker:
    """One thread that runs functions in order. It exists before it is needed to stop."""

    def __init__(self, threads: Threads, name: str) -> None:
        self._name = name
        self._queue = threads.queue()
        threads.run(f"worker-{name}", self._serve)

    def submit(self, work: Work) -> None:
        """Run this after all that was submitted before."""
        self._queue.put(work)

    def close(self) -> None:
        """End after what was submitted."""
        self._queue.put(None)

    def _serve(self) -> None:
        work: Work | None
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # noqa: BLE001  the work has told the worst in its `finally`; say why
                _log.exception("an operation of worker %s failed", self._name)
