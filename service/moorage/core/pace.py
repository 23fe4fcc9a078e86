"""How fast a fetch goes: smoothed, and told now and then. Pure: callers bring the time."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

TOLD_EVERY_S = 0.25
"""Bytes come in small pieces; between two that are told passes at least this."""
SMOOTHED_S = 5.0
"""What was so much longer ago counts for a third in the rate."""
STALLED_S = 10.0
"""When nothing came for so long, the rate is 0."""
NOTED_STEPS = 10
"""A long fetch is noted in the log when another such part of it is here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How far a fetch has come at a monotonic time; what is not known yet is None."""

    at: float
    done_bytes: int
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    waiting: str = ""
    """For what nothing comes just now."""

    @property
    def eta_s(self) -> float | None:
        """Seconds until it is done, if it goes on like this."""
        if self.total_bytes is None or not self.bytes_per_s:
            return None
        return max(0, self.total_bytes - self.done_bytes) / self.bytes_per_s

    @property
    def step(self) -> int:
        """How many of NOTED_STEPS equal parts are here."""
        if not self.total_bytes:
            return 0
        return min(NOTED_STEPS, self.done_bytes * NOTED_STEPS // self.total_bytes)

    def by(self, now: float) -> Fetching:
        """Return what is so at a later time, when nothing was told since."""
        stalled = now - self.at > STALLED_S and self.bytes_per_s is not None
        return dataclasses.replace(self, bytes_per_s=0.0) if stalled else self


class Pace:
    """Turns what a fetch tells into what is worth telling. Used by one thread."""

    def __init__(self) -> None:
        self._told: Fetching | None = None

    def note(
        self, at: float, done_bytes: int, total_bytes: int | None, waiting: str = ""
    ) -> Fetching | None:
        """Return how far it is, None when that was told a moment ago.

        The first and the last are always told, and for what it begins or ends to wait. What was
        there before the first is not counted as speed, nor what was found in a wait.
        """
        before = self._told
        if before is not None and at - before.at < TOLD_EVERY_S:
            done = done_bytes == total_bytes != before.done_bytes
            if not done and waiting == before.waiting:
                return None
        self._told = Fetching(
            at=at,
            done_bytes=done_bytes,
            total_bytes=total_bytes,
            bytes_per_s=None if before is None else _rate(before, at, done_bytes, waiting),
            waiting=waiting,
        )
        return self._told


def _rate(before: Fetching, at: float, done_bytes: int, waiting: str) -> float | None:
    passed = at - before.at
    came = done_bytes - before.done_bytes
    if waiting or before.waiting or passed <= 0 or came < 0:  # below 0: it began anew
        return before.bytes_per_s
    latest = came / passed
    if before.bytes_per_s is None:
        return latest
    kept = math.exp(-passed / SMOOTHED_S)
    return before.bytes_per_s * kept + latest * (1 - kept)
