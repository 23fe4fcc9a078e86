"""Counts what has come of a fetch, and tells of it a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from moorage.protocols import Progress

TELL_S: Final = 0.1
"""Between two tellings of bytes; pieces come a thousand times as often."""
AGAIN_S: Final = 0.5
"""After the last telling; more than anybody who is told lets pass between two."""


class Meter:
    """Used by one thread. `received` are the bytes that this fetch has brought itself."""

    def __init__(self, progress: Callable[[Progress], None]) -> None:
        self._progress = progress
        self._total: int | None = None
        self._finished = 0
        self._current = 0
        self._waiting = ""
        self._told: Progress = Progress(-1, None)
        self._told_at = 0.0
        self._repeated = self._told
        self.received = 0

    def begin(self, total: int, finished: int) -> None:
        """So much is wanted, and so much of it is here."""
        self._total = total
        self._finished = finished
        self._tell()

    def stands(self, size: int) -> None:
        """The file that is coming has this size by now, also when it begins anew."""
        self._current = size
        self._tell()

    def came(self, count: int) -> None:
        """Bytes came of the file that is coming."""
        self._current += count
        self.received += count
        if time.monotonic() - self._told_at >= TELL_S:
            self._tell()

    def finish(self, size: int) -> None:
        """The file that was coming is here; this is its size."""
        self._finished += size
        self.stands(0)

    def waiting(self, what: str) -> None:
        """Tell what is waited for; empty when it goes on."""
        if what != self._waiting:
            self._waiting = what
            self._tell()

    def idle(self) -> None:
        """Nothing comes: tell all that has, and later once more to those who passed over it."""
        self._tell()
        if self._told is not self._repeated and time.monotonic() - self._told_at >= AGAIN_S:
            self._repeated = self._told
            self._progress(self._told)

    def _tell(self) -> None:
        now = Progress(self._finished + self._current, self._total, self._waiting)
        if now != self._told:
            self._told, self._told_at = now, time.monotonic()
            self._progress(now)
