from __future__ import annotations

from contextlib import closing

import hypothesis
import hypothesis.strategies as st
import pytest

from log.making import database, entries, released
from moorage.log.sqlite import SqliteLog
from moorage.protocols import EventLog, Snapshot
from moorage.testing.log import MemoryLog

texts = st.text(st.characters(), max_size=12)
appends = st.lists(texts, max_size=4)
snapshots = st.tuples(st.integers(1, 2), st.integers(0, 9))
# What is done between an open and a close.
parts = st.lists(st.lists(st.one_of(appends, snapshots), max_size=6), min_size=1, max_size=4)


def take(log: EventLog, step: object) -> None:
    if isinstance(step, list):
        log.append(entries((released(1, error=text) for text in step), after=log.head))
    else:
        assert isinstance(step, tuple)
        version, seq = step
        log.append([], snapshot=Snapshot(seq, version, {"seq": seq}))


def outcome(log: EventLog, step: object) -> tuple[object, ...]:
    """All that can be seen of a log after a step."""
    error = None
    try:
        take(log, step)
    except RuntimeError as caught:
        error = type(caught)
    return error, log.head, log.snapshot(1), log.snapshot(2)


def stored(log: SqliteLog) -> list[tuple[object, ...]]:
    return database(log).execute("SELECT * FROM events ORDER BY seq").fetchall()


@hypothesis.settings(max_examples=60)
@hypothesis.given(parts=parts)
def test_memory_and_sqlite_cannot_be_told_apart(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[object]]
) -> None:
    state = tmp_path_factory.mktemp("twin") / "state"
    twin = None
    for part in parts:
        with closing(SqliteLog.open(state, synchronous="NORMAL")) as real:
            twin = MemoryLog(real.log_id) if twin is None else twin.reopened()
            for step in part:
                assert outcome(real, step) == outcome(twin, step)
            assert stored(real) == list(twin.rows)
