"""Entries of a log by their seq and by their run, for stories."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.core.events import Entry
from moorage.log.reader import Filter, LogReader


class LogLook:
    """Looks up entries in a log; what was found is kept, as stories meet the same runs often."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._runs: dict[int, list[Entry]] = {}

    def entry(self, seq: int) -> Entry | None:
        """Return an entry, None when there is none."""
        return self._reader.entry(seq)

    def run(self, number: int) -> Sequence[Entry]:
        """Return all entries of a run, in order."""
        if number not in self._runs:
            self._runs[number] = list(self._reader.read(only=Filter(run=number)))
        return self._runs[number]
