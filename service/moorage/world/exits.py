"""Notices the end of processes: one thread that polls their pidfds."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from moorage.protocols import ExitStatus
from moorage.world.handles import UNKNOWN_EXIT, Handle

_log = logging.getLogger(__name__)

_NO_PIDFD_POLL_S = 0.02
OnExit = Callable[[ExitStatus], None]


@dataclass(slots=True)
class _Watched:
    handle: Handle
    before_reap: Callable[[], object] | None = None
    on_exit: OnExit | None = None
    status: ExitStatus | None = None
    forgotten: bool = False
    settled: threading.Event = field(default_factory=threading.Event)


class ExitWatcher:
    """Tells once when a process has ended, and reaps our own children.

    Callbacks run in its thread, `moorage-exits`; one that raises is logged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._at_once: list[tuple[OnExit, ExitStatus]] = []
        self._closed = False
        self._released = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        os.set_blocking(self._wake_r, False)
        self._thread = threading.Thread(target=self._serve, name="moorage-exits", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._release()
            raise

    def add(
        self, key: str, handle: Handle, before_reap: Callable[[], object] | None = None
    ) -> None:
        """Own the handle and watch it. `before_reap` runs while its pid is still held."""
        with self._lock:
            if self._closed or key in self._watched:
                handle.close()
                return
            self._watched[key] = _Watched(handle, before_reap)
            self._wake()

    def watches(self, key: str) -> bool:
        """Tell whether this key was added and its end not yet told."""
        with self._lock:
            return key in self._watched

    def tell(self, key: str, on_exit: OnExit) -> None:
        """Call `on_exit` when the process of this key has ended; at once when it is unknown."""
        with self._lock:
            watched = self._watched.get(key)
            if watched is not None and watched.status is None:
                watched.on_exit = on_exit
                return
            self._watched.pop(key, None)
            status = watched.status if watched is not None else None
            self._at_once.append((on_exit, status or UNKNOWN_EXIT))
            self._wake()

    def forget(self, key: str, *, wait_s: float) -> None:
        """Drop a process whose end nobody needs to ask for again, once it is reaped."""
        with self._lock:
            watched = self._watched.get(key)
            if watched is None:
                return
            watched.forgotten = True
            if watched.status is not None:
                del self._watched[key]
        if self._thread is not threading.current_thread():
            watched.settled.wait(wait_s)

    def close(self) -> None:
        """End the thread and close every descriptor. Idempotent; fine from a callback."""
        with self._lock:
            self._closed = True
            self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        # With the lock held: once released, the number may belong to somebody else's file.
        if not self._released:
            with contextlib.suppress(BlockingIOError):  # full: a wake-up is pending already
                os.write(self._wake_w, b"\0")

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._wait()
                for on_exit, status in self._ended():
                    _call(on_exit, status)
        finally:
            self._release()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        timeout: float | None = None
        with self._lock:
            if self._at_once:
                return
            for watched in self._watched.values():
                if watched.status is not None:
                    continue
                if watched.handle.fd is None:
                    timeout = _NO_PIDFD_POLL_S * 1000
                else:
                    poll.register(watched.handle.fd, select.POLLIN)
        poll.poll(timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)

    def _ended(self) -> list[tuple[OnExit, ExitStatus]]:
        with self._lock:
            calls, self._at_once = self._at_once, []
            running = [(k, w) for k, w in self._watched.items() if w.status is None]
        for key, watched in running:
            if _has_ended(watched.handle):
                calls += self._settle(key, watched)
        return calls

    def _settle(self, key: str, watched: _Watched) -> list[tuple[OnExit, ExitStatus]]:
        status = watched.handle.status()
        if (before_reap := watched.before_reap) is not None:
            _call(lambda _: before_reap(), status)
        watched.handle.reap()
        watched.handle.close()
        with self._lock:
            watched.status = status
            watched.settled.set()
            if watched.on_exit is not None or watched.forgotten:
                self._watched.pop(key, None)
            return [(watched.on_exit, status)] if watched.on_exit is not None else []

    def _release(self) -> None:
        with self._lock:
            left = [w for w in self._watched.values() if w.status is None]
            self._watched.clear()
            self._released = True
            os.close(self._wake_r)
            os.close(self._wake_w)
        for watched in left:
            watched.handle.close()
            watched.settled.set()


def _has_ended(handle: Handle) -> bool:
    try:
        return handle.exited()
    except OSError:  # no descriptor left to look with: it is looked at again
        _log.warning("process %d cannot be looked at now", handle.pid, exc_info=True)
        return False


def _call(on_exit: Callable[[ExitStatus], object], status: ExitStatus) -> None:
    try:
        on_exit(status)
    except Exception:  # noqa: BLE001  one listener's fault must not end the watch over all others
        _log.exception("the exit callback raised")
