from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from log.making import entries, pinned, released, some
from moorage.errors import CorruptLogError, NewerSchemaError, NotALogError, StateError
from moorage.log.files import StateFiles
from moorage.log.reader import Filter, LogReader
from moorage.log.sqlite import SqliteLog


def closed_log(state: Path, count: int = 3) -> None:
    with closing(SqliteLog.open(state)) as log:
        log.append(some(count))


def names(state: Path) -> set[str]:
    return {path.name for path in state.iterdir()}


def seqs(reader: LogReader) -> list[int]:
    return [entry.seq for entry in reader.read()]


# --- where and when ---


def test_a_reader_sees_each_commit_of_a_live_owner(log: SqliteLog, state: Path) -> None:
    with LogReader(state) as reader:
        for count in range(1, 4):
            log.append(some(1, after=count - 1))

            assert reader.head == count
            assert list(reader.read()) == list(log.read())
        assert reader.log_id == log.log_id


def test_a_reader_of_a_closed_log_leaves_nothing_beside_it(state: Path) -> None:
    closed_log(state)
    before = names(state)
    with LogReader(state) as reader:
        assert seqs(reader) == [1, 2, 3]
        assert names(state) == before
    assert names(state) == before


def test_a_database_may_be_named_instead_of_its_folder(state: Path, tmp_path: Path) -> None:
    closed_log(state)
    copy = shutil.copy(StateFiles(state).database, tmp_path / "incident.sqlite")
    with LogReader(copy) as reader:
        assert seqs(reader) == [1, 2, 3]


def test_a_reader_that_was_there_first_sees_an_owner_come_and_go(state: Path) -> None:
    closed_log(state)
    with LogReader(state) as reader:
        assert reader.head == 3
        with closing(SqliteLog.open(state)) as log:
            log.append(some(1, after=3))
            assert reader.head == 4
            log.append(some(1, after=4))
            assert reader.head == 5
        assert seqs(reader) == [1, 2, 3, 4, 5]
        with closing(SqliteLog.open(state)) as log:
            log.append(some(1, after=5))
            assert seqs(reader) == [1, 2, 3, 4, 5, 6]
        assert reader.head == 6


def test_an_owner_that_comes_in_the_middle_of_a_read_is_noticed(state: Path) -> None:
    closed_log(state)
    calls = 0
    with LogReader(state) as reader:

        def work(connection: object) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                with closing(SqliteLog.open(state)) as log:
                    log.append(some(1, after=3))
            return calls

        assert reader._live._connection.run(work) == 2


def test_readers_do_not_keep_an_owner_from_opening_and_closing(state: Path) -> None:
    closed_log(state)
    with LogReader(state) as reader:
        reading = reader.read()
        next(reading)
        closed_log_again = SqliteLog.open(state)
        closed_log_again.append(some(1, after=3))
        closed_log_again.close()

        assert [entry.seq for entry in reading] == [2, 3]
        assert reader.head == 4


def test_what_a_crash_left_in_the_wal_is_read(crashed: Path) -> None:
    with LogReader(crashed) as reader:
        assert seqs(reader) == [1, 2, 3]


def test_a_copy_is_read_with_its_wal(crashed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("moorage.db", "moorage.db-wal"):
        shutil.copy(crashed / name, copy)
    with LogReader(copy) as reader:
        assert seqs(reader) == [1, 2, 3]


# --- what is refused ---


def test_where_there_is_no_log_none_is_made(state: Path) -> None:
    with pytest.raises(StateError, match="holds no event log"):
        LogReader(state)
    assert not state.exists()

    state.mkdir()
    with pytest.raises(StateError, match="holds no event log"):
        LogReader(state)
    assert names(state) == set()


@pytest.mark.parametrize(
    "content", [b"", b"mine, and long enough to be looked at" * 100], ids=["empty", "text"]
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)

    with pytest.raises(NotALogError):
        LogReader(path)
    assert names(tmp_path) == {"x.db"}


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE mine (x)")

    with pytest.raises(NotALogError, match="another program"):
        LogReader(tmp_path / "x.db")


@pytest.mark.parametrize(
    ("revision", "kind", "says"),
    [("9999", NewerSchemaError, "upgrade the program"), ("0000", NewerSchemaError, "0000")],
)
def test_an_unknown_schema_is_refused(
    state: Path, revision: str, kind: type[StateError], says: str
) -> None:
    closed_log(state)
    with closing(sqlite3.connect(StateFiles(state).database)) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        database.commit()

    with pytest.raises(kind, match=says):
        LogReader(state)


def test_a_database_that_was_deleted_meanwhile_is_told(state: Path) -> None:
    closed_log(state)
    with LogReader(state) as reader:
        StateFiles(state).database.unlink()
        with pytest.raises(StateError, match="moved, replaced or deleted"):
            _ = reader.head


def test_a_reader_cannot_write(log: SqliteLog, state: Path) -> None:
    log.append(some(1))
    with LogReader(state) as reader, pytest.raises(StateError, match="READONLY"):
        reader._live._connection.run(lambda c: c.exec_driver_sql("DELETE FROM snapshots"))


def test_a_missing_row_is_named(log: SqliteLog, state: Path) -> None:
    log.append(some(3))
    log._writer.execute("DROP TRIGGER events_no_delete")
    log._writer.execute("DELETE FROM events WHERE seq = 2")

    with LogReader(state) as reader, pytest.raises(CorruptLogError) as caught:
        seqs(reader)
    assert caught.value.seq == 2


# --- what is read ---


def test_rows_are_picked_by_kind_model_and_run(log: SqliteLog, state: Path) -> None:
    log.append(entries([pinned("a"), released(1, model="a"), released(2, model="b"), pinned("b")]))

    def picked(only: Filter, **how: int) -> list[int]:
        with LogReader(state) as reader:
            return [entry.seq for entry in reader.read(only=only, **how)]

    assert picked(Filter(kind="run.released")) == [2, 3]
    assert picked(Filter(kind="run.")) == [2, 3]
    assert picked(Filter(kind="model")) == [1, 4]
    assert picked(Filter(kind="run.released.x")) == []
    assert picked(Filter(kind="%")) == []
    assert picked(Filter(model="b")) == [3, 4]
    assert picked(Filter(run=1)) == [2]
    assert picked(Filter(kind="model", model="a")) == [1]
    assert picked(Filter(kind="model"), after=1) == [4]
    assert picked(Filter(kind="model"), limit=1) == [1]
    assert picked(Filter(), limit=3) == [1, 2, 3]
    assert picked(Filter(), limit=0) == []


def test_a_long_log_is_read_in_pages_that_hold_nothing_between(log: SqliteLog, state: Path) -> None:
    log.append(some(3500))
    with LogReader(state) as reader:
        reading = reader.read()
        next(reading)
        busy = log._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]

        assert busy == 0
        assert sum(1 for _ in reading) == 3499
