"""A log that grows by runs and is archived in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from moorage.actors.ledger import Ledger
from moorage.core.continuing import continued
from moorage.core.events import Entry
from moorage.core.fold import replay
from moorage.log.archiving import nowhere
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from moorage.testing import FakeClock
from support.history import History


class Growing:
    """Writes one history into a state folder, a part of it into each segment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = History(seed=7)
        self.written: list[Entry] = []

    def grow(self, runs: int = 5) -> None:
        """Append the entries of some more runs, as an owner that is then gone."""
        opening = () if self.written else self.history.opening()
        more = itertools.chain(opening, *(self.history.one_run() for _ in range(runs)))
        self.append(list(more))

    def append(self, entries: list[Entry]) -> None:
        with closing(SqliteLog.open(self.folder)) as log:
            log.append(entries)
        self.written += entries

    def archive(self, reached: Callable[[str], None] = nowhere) -> Path:
        """Archive as a service would; `reached` is told of every step."""
        with closing(SqliteLog.open(self.folder)) as log:
            entry = self.continuation(log)
            place = Path(log.archive(entry, reached=reached))
        self.history.seq += 1
        self.written.append(entry)
        return place

    def continuation(self, log: SqliteLog) -> Entry:
        state = replay(self.written)
        event = continued(state, program="0", segment=log.segment + 1, base_hash=log.head_hash)
        return Entry(log.head + 1, state.at, None, event)

    def segmented(self, *runs: int) -> None:
        """Grow by so many runs in each segment, archiving in between."""
        for number, count in enumerate(runs):
            if number:
                self.archive()
            self.grow(count)

    @property
    def archived(self) -> list[Path]:
        return sorted((self.folder / "archive").iterdir())


def ledger(log: SqliteLog) -> Ledger:
    return Ledger(log, FakeClock(), lambda _: None)


def read(place: Path) -> list[Entry]:
    with LogReader(place) as reader:
        return list(reader.read())
