"""Wall time that never goes back, and one thread that wakes the registry."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_S = 5.0
_LONGEST_WAIT_S = 3600.0  # threading refuses waits of centuries


class SystemClock:
    """The machine's clocks. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_us = 0
        self._asked_ns = 0

    def now(self) -> str:
        """Return UTC text to the microsecond.

        After the wall clock was set back it goes at half the pace until that has caught up: it
        never goes back, and never stands still for those who wait.
        """
        with self._lock:
            asked_ns, self._asked_ns = self._asked_ns, time.monotonic_ns()
            slow_us = self._last_us + (self._asked_ns - asked_ns) // 2000
            self._last_us = now_us = max(time.time_ns() // 1000, slow_us)
        moment = _EPOCH + timedelta(microseconds=now_us)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    # Not wrapped: a lease asks twice, and a frame of ours is a tenth of what it takes.
    monotonic = staticmethod(time.monotonic)


class ThreadAlarm:
    """Calls `wake` once, from its thread `moorage-alarm`, at or after the time set last."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._at: float | None = None
        self._sleeps_until: float | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="moorage-alarm", daemon=True)
        self._thread.start()

    def set(self, at: float | None) -> None:
        """Replace the monotonic time to wake at; None for never."""
        with self._changed:
            self._at = at
            # A later time needs no wake-up: the thread looks again when its sleep ends.
            if at is not None and (self._sleeps_until is None or at < self._sleeps_until):
                self._changed.notify()

    def close(self) -> None:
        """End the thread. Idempotent; fine from `wake` itself."""
        with self._lock:  # itself: an interrupt inside of the condition's would leave it locked
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _serve(self) -> None:
        while self._due():
            try:
                self._wake()
            except Exception:  # noqa: BLE001  the next alarm must still come
                _log.exception("the alarm's callback raised")

    def _due(self) -> bool:
        """Sleep until the time set has come; False when closed."""
        with self._changed:
            while not self._closed:
                left = None if self._at is None else self._at - time.monotonic()
                if left is not None and left <= 0:
                    self._at = None
                    return True
                self._sleeps_until = self._at
                self._changed.wait(None if left is None else min(left, _LONGEST_WAIT_S))
                self._sleeps_until = None
        return False
