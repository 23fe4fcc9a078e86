"""The log and its twin in memory, told the same: rows, hashes, heads and errors are equal."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from log.making import AT, database, entries, pinned, released
from moorage.core.events import Entry, Event, LogContinued, ModelDefined
from moorage.errors import LogUnavailableError
from moorage.log.backup import backup
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from moorage.log.transfer import exported, imported
from moorage.log.verify import flaws
from moorage.protocols import EventLog, Snapshot
from moorage.testing.log import MemoryLog
from support.examples import NAMES, SHARES, Share

LONG = "x" * 9_000
"""Needs pages of its own."""
texts = st.text(st.characters(), max_size=12)
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none())
values = st.recursive(st.one_of(texts, numbers), st.lists, max_leaves=4)
events: st.SearchStrategy[Event] = st.one_of(
    st.one_of(texts, st.just(LONG)).map(lambda text: released(1, error=text)),
    st.dictionaries(texts, values, max_size=3).map(
        lambda spec: ModelDefined(model="m", spec=spec, spec_hash="h")
    ),
    st.just(pinned()),
)
batches = st.lists(events, max_size=4)
snapshots = st.none() | st.builds(
    Snapshot, st.integers(0, 30), st.integers(1, 2), st.dictionaries(texts, texts, max_size=2)
)


class Twins(RuleBasedStateMachine):
    """A log of the real kind, one in memory, and what both were told."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.state = self.folder / "state"
        self.real = SqliteLog.open(self.state, synchronous="NORMAL", busy_timeout_s=0.0)
        self.twin = MemoryLog(self.real.log_id)
        self.full = False

    def teardown(self) -> None:
        self.real.close()
        shutil.rmtree(self.folder)

    def both(self, act: Callable[[Any], object]) -> object:
        """Do the same with both and return what it came to."""
        found, expected = came_to(act, self.real), came_to(act, self.twin)
        assert found == expected
        return found

    # --- writing ---

    @rule(events=batches, snapshot=snapshots)
    def append(self, events: list[Event], snapshot: Snapshot | None) -> None:
        added = entries(events, after=self.twin.head)
        self.both(lambda log: log.append(added, snapshot=snapshot))

    @rule(events=batches, off=st.sampled_from((-1, 1, 5)))
    def append_at_a_wrong_place(self, events: list[Event], off: int) -> None:
        wrong = entries(events, after=self.twin.head + off)
        came = self.both(lambda log: log.append(wrong))
        assert came is (RuntimeError if events else None)

    @rule(events=batches, gap=st.integers(1, 3))
    def append_with_a_gap(self, events: list[Event], gap: int) -> None:
        *whole, last = entries([pinned(), *events], after=self.twin.head)
        torn = [*whole, last._replace(seq=last.seq + gap)]
        # A value that JSON has no word for may come before the gap.
        assert self.both(lambda log: log.append(torn)) in (RuntimeError, ValueError)

    @rule()
    def archive(self) -> None:
        if self.twin.head:
            entry = self.continuation()
            self.both(lambda log: log.archive(entry) and None)

    @rule(off=st.sampled_from((-1, 1)))
    def archive_at_a_wrong_place(self, off: int) -> None:
        entry = self.continuation()
        wrong = entry._replace(seq=entry.seq + off)
        assert self.both(lambda log: log.archive(wrong)) is RuntimeError

    def continuation(self) -> Entry:
        event = LogContinued(
            log_id=self.twin.log_id,
            program="0",
            segment=self.twin.segment + 1,
            base={},
            base_hash=self.twin.head_hash,
            next_run=1,
        )
        return Entry(self.twin.head + 1, AT, None, event)

    @rule(events=batches, snapshot=snapshots)
    def append_while_it_cannot_be_written(
        self, events: list[Event], snapshot: Snapshot | None
    ) -> None:
        """What is refused leaves nothing, and is taken once the cause is gone."""
        added = entries(events, after=self.twin.head)
        self.twin.unavailable = "another program holds a lock on the database"
        with closing(sqlite3.connect(self.real.path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            came = self.both(lambda log: log.append(added, snapshot=snapshot))
        nothing = not added and snapshot is None
        assert came in ((None,) if nothing else (LogUnavailableError, ValueError))
        self.twin.unavailable = None
        self.same()
        self.both(lambda log: log.append(added, snapshot=snapshot))

    @rule()
    def tidy(self) -> None:
        assert self.both(lambda log: log.tidy()) == ""

    @rule()
    def close_and_open(self) -> None:
        self.real.close()
        self.twin.close()
        assert self.both(lambda log: log.append([])) is RuntimeError
        self.real = SqliteLog.open(self.state, synchronous="NORMAL", busy_timeout_s=0.0)
        self.twin = self.twin.reopened()

    # --- reading ---

    @rule(after=st.integers(0, 40), limit=st.none() | st.integers(0, 9))
    def read(self, after: int, limit: int | None) -> None:
        first = self.real.first - 1  # older segments may be left out
        self.both(lambda log: list(log.read(max(after, first), limit=limit)))
        with LogReader(self.state) as reader:
            assert list(reader.read(after, limit=limit)) == list(self.twin.read(after, limit=limit))

    @rule()
    def copy(self) -> None:
        """A backup is the live segment; an export that is imported again is the whole log."""
        target = self.folder / "copy.db"
        backup(self.state, target)
        with LogReader(target, alone=True) as reader:
            assert list(reader.rows()) == list(self.twin.rows[self.real.first - 1 :])
        target.unlink()
        with LogReader(self.state) as reader:
            lines = [json.dumps(found) for found in exported(reader)]
        back = self.folder / "back"
        assert imported(iter(lines), "export", back) == self.twin.head
        with LogReader(back) as reader:
            assert (reader.log_id, list(reader.rows())) == (self.twin.log_id, [*self.twin.rows])
            assert [json.dumps(found) for found in exported(reader)] == lines
        shutil.rmtree(back)

    # --- what is always so ---

    @invariant()
    def same(self) -> None:
        self.both(lambda log: (log.log_id, log.head, log.head_hash, log.segment))
        live = tuple(self.twin.rows[self.real.first - 1 :])
        assert tuple(stored(self.real)) == live

    @invariant()
    def same_snapshots(self) -> None:
        self.both(lambda log: (log.snapshot(1), log.snapshot(2)))

    @invariant()
    def whole(self) -> None:
        """Every hash fits; types and causes are what this machine makes of them."""
        with LogReader(self.state) as reader:
            found = [each.problem for each in flaws(reader)]
        assert [problem for problem in found if "type" not in problem] == []


def came_to(act: Callable[[EventLog], object], log: EventLog) -> object:
    try:
        return act(log)
    except (RuntimeError, ValueError, LogUnavailableError) as error:
        return type(error)


def stored(log: SqliteLog) -> Iterator[tuple[object, ...]]:
    yield from database(log).execute("SELECT * FROM events ORDER BY seq")


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_memory_and_sqlite_cannot_be_told_apart(share: Share) -> None:
    machine = share.seeded(type("Twins", (Twins,), {}))

    run_state_machine_as_test(machine, settings=share.settings(20, stateful_step_count=20))
