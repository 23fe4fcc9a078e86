"""Time that passes only when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from moorage.protocols import Alarm

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Stands still until `advance`. Any thread.

    Waiting callers still have their own timeouts in real time; what the registry decides by time
    (deadlines, backoff, idleness, residency) follows this clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed_s = 0.0
        self._alarms: list[FakeAlarm] = []

    def now(self) -> str:
        """Return UTC text to the microsecond."""
        moment = _START + timedelta(seconds=self.monotonic())
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        with self._lock:
            return self._passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass and ring the alarms that are due; what they wake may go on after this."""
        with self._lock:
            self._passed_s += seconds
            alarms = tuple(self._alarms)
        for alarm in alarms:
            alarm.ring_when_due()

    def new_alarm(self, wake: Callable[[], None]) -> Alarm:
        """Return an alarm of this clock, as `Parts.new_alarm` wants it."""
        alarm = FakeAlarm(self, wake)
        with self._lock:
            self._alarms.append(alarm)
        return alarm


class FakeAlarm:
    """Rings once at a time of a FakeClock, in the thread that advances it."""

    def __init__(self, clock: FakeClock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._at: float | None = None
        self._closed = False

    @property
    def at(self) -> float | None:
        """The time it is set to, None for never."""
        return self._at

    def set(self, at: float | None) -> None:
        """Replace the time to wake at; one that has come rings at once."""
        with self._lock:
            self._at = at
        self.ring_when_due()

    def ring_when_due(self) -> None:
        """Ring when the time has come."""
        with self._lock:
            due = not self._closed and self._at is not None and self._at <= self._clock.monotonic()
            if due:
                self._at = None
        if due:
            self._wake()

    def close(self) -> None:
        """Ring no more. Idempotent."""
        self._closed = True
