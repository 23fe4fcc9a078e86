from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from log.contract import LogContract
from log.making import entries, released, some
from moorage.core import chain
from moorage.core.events import Entry
from moorage.errors import CorruptLogError, ForkedError, LogUnavailableError, MoorageError
from moorage.log.files import StateFiles
from moorage.log.head import read_head
from moorage.log.rows import Row
from moorage.log.sqlite import SqliteLog
from moorage.protocols import EventLog, Snapshot
from moorage.testing.log import MemoryLog

OTHERS = ", ".join(Row._fields[1:])


def database(log: SqliteLog) -> sqlite3.Connection:
    """The log's own connection, to make it meet what a foreign one could not bring about."""
    return log._writer.database()


@pytest.fixture
def foreign(log: SqliteLog) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(log.path, isolation_level=None)
    yield connection
    connection.close()


class TestSqliteLog(LogContract):
    def reopen(self, log: EventLog) -> EventLog:
        log.close()
        return SqliteLog.open(Path(log.path).parent)


# --- the twin ---

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


# --- rows ---


def test_rows_are_readable_by_any_sqlite_and_json(
    log: SqliteLog, foreign: sqlite3.Connection
) -> None:
    log.append(entries([released(7, error='é "x"')]))
    row = foreign.execute("SELECT * FROM events").fetchone()

    assert row[:9] == (
        1,
        "2026-01-31T23:59:59.123456Z",
        "run.released",
        1,
        "m",
        7,
        18_000,
        None,
        None,
    )
    assert '"error":"é \\"x\\""' in row[9]
    assert json.loads(row[9])["outcome"] == "ok"
    assert foreign.execute("SELECT data ->> 'outcome' FROM events").fetchone() == ("ok",)


def test_each_hash_covers_its_row_and_the_hash_before(
    log: SqliteLog, foreign: sqlite3.Connection
) -> None:
    log.append(some(2))
    log.append(some(1, after=2))
    previous = chain.genesis(log.log_id)
    for *row, digest in foreign.execute("SELECT * FROM events ORDER BY seq"):
        previous = chain.link(previous, row)

        assert digest == previous


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET model = 'x'",
        "UPDATE events SET seq = 9 WHERE seq = 2",
        "DELETE FROM events",
        "DELETE FROM events WHERE seq = 2",
        "REPLACE INTO events SELECT * FROM events WHERE seq = 1",
        "INSERT OR REPLACE INTO events SELECT * FROM events WHERE seq = 2",
        "INSERT OR IGNORE INTO events SELECT * FROM events WHERE seq = 1",
        f"INSERT INTO events SELECT seq + 2, {OTHERS} FROM events WHERE seq = 2",
        f"INSERT INTO events SELECT NULL, {OTHERS} FROM events WHERE seq = 2",
        "UPDATE log SET log_id = 'x'",
        "DELETE FROM log",
        "REPLACE INTO log SELECT * FROM log",
        "INSERT INTO log VALUES (2, 'x', 'y')",
    ],
)
def test_what_is_written_cannot_be_changed(
    log: SqliteLog, foreign: sqlite3.Connection, statement: str
) -> None:
    written = some(2)
    log.append(written)
    with pytest.raises(sqlite3.IntegrityError):
        foreign.execute(statement)

    assert list(log.read()) == written


def test_a_foreign_append_is_an_invariant_violation(
    log: SqliteLog, foreign: sqlite3.Connection
) -> None:
    log.append(some(1))
    foreign.execute(f"INSERT INTO events SELECT seq + 1, {OTHERS} FROM events")

    with pytest.raises(RuntimeError, match="not the next seq"):
        log.append(some(1, after=1))
    assert not issubclass(RuntimeError, MoorageError)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kind", "run.imagined"),
        ("version", 99),
        ("data", "{"),
        ("data", "[]"),
        ("data", '{"unheard":1}'),
    ],
)
def test_a_row_that_cannot_be_understood_is_named(
    log: SqliteLog, foreign: sqlite3.Connection, column: str, value: object
) -> None:
    log.append(some(3))
    foreign.execute("DROP TRIGGER events_no_update")
    foreign.execute(f"UPDATE events SET {column} = ? WHERE seq = 2", (value,))

    with pytest.raises(CorruptLogError) as caught:
        list(log.read())
    assert caught.value.seq == 2


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_missing_row_is_named(log: SqliteLog, foreign: sqlite3.Connection, seq: int) -> None:
    log.append(some(3))
    foreign.execute("DROP TRIGGER events_no_delete")
    foreign.execute("DELETE FROM events WHERE seq = ?", (seq,))

    with pytest.raises(CorruptLogError) as caught:
        list(log.read())
    assert caught.value.seq == seq


def test_a_hundred_thousand_rows_are_read_in_pages(log: SqliteLog) -> None:
    for first in range(0, 100_000, 20_000):
        log.append(some(20_000, after=first))
    seqs = [entry.seq for entry in log.read()]

    assert seqs == list(range(1, 100_001))
    assert next(log.read(99_998)).seq == 99_999


def test_only_the_newest_two_snapshots_are_kept(log: SqliteLog) -> None:
    for seq in range(1, 6):
        log.append(some(1, after=seq - 1), snapshot=Snapshot(seq, 1, {}))
    kept = database(log).execute("SELECT seq FROM snapshots ORDER BY seq").fetchall()

    assert kept == [(4,), (5,)]


def test_snapshots_can_be_deleted_and_damaged_ones_are_passed_over(
    log: SqliteLog, foreign: sqlite3.Connection
) -> None:
    for seq in (1, 2):
        log.append(some(1, after=seq - 1), snapshot=Snapshot(seq, 1, {"seq": seq}))
    foreign.execute("UPDATE snapshots SET state = '{' WHERE seq = 2")
    assert log.snapshot(1) == Snapshot(1, 1, {"seq": 1})

    foreign.execute("UPDATE snapshots SET hash = 'of another history' WHERE seq = 1")
    assert log.snapshot(1) is None

    foreign.execute("DELETE FROM snapshots")
    assert log.snapshot(1) is None


# --- faults ---


def fill(log: SqliteLog) -> None:
    pages = database(log).execute("PRAGMA page_count").fetchone()[0]
    database(log).execute(f"PRAGMA max_page_count = {pages}")


def large(after: int) -> list[Entry]:
    return entries([released(1, error="x" * 100_000)], after=after)


def test_a_full_disk_loses_nothing_and_appends_work_again_afterwards(log: SqliteLog) -> None:
    log.append(some(2))
    fill(log)
    for _ in range(2):
        with pytest.raises(LogUnavailableError, match="disk is full"):
            log.append(large(2), snapshot=Snapshot(3, 1, {}))
        assert log.head == 2
        assert [entry.seq for entry in log.read()] == [1, 2]
        assert log.snapshot(1) is None

    database(log).execute("PRAGMA max_page_count = 1000000")
    log.append(large(2))
    assert [entry.seq for entry in log.read()] == [1, 2, 3]


def test_a_read_only_database_refuses_appends_until_it_is_writable(log: SqliteLog) -> None:
    database(log).execute("PRAGMA query_only = ON")
    with pytest.raises(LogUnavailableError, match="read-only"):
        log.append(some(1))

    database(log).execute("PRAGMA query_only = OFF")
    log.append(some(1))
    assert log.head == 1


def test_a_foreign_lock_is_waited_for_only_so_long(state: Path) -> None:
    with closing(SqliteLog.open(state, busy_timeout_s=0.05)) as log:
        with closing(sqlite3.connect(log.path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            with pytest.raises(LogUnavailableError, match="holds a lock"):
                log.append(some(1))
            foreign.execute("ROLLBACK")
        log.append(some(1))

        assert [entry.seq for entry in log.read()] == [1]


def test_a_database_moved_away_is_noticed_and_taken_back(log: SqliteLog, tmp_path: Path) -> None:
    log.append(some(1))
    away = Path(log.path).rename(tmp_path / "away.db")
    with pytest.raises(LogUnavailableError, match="moved, replaced or deleted"):
        log.append(some(1, after=1))
    assert log.head == 1

    away.rename(log.path)
    log.append(some(1, after=1))
    assert [entry.seq for entry in log.read()] == [1, 2]


def test_a_database_replaced_by_a_copy_is_noticed(log: SqliteLog) -> None:
    log.append(some(1))
    path = Path(log.path)
    copy = path.with_name("copy")
    copy.write_bytes(b"")
    copy.replace(path)

    with pytest.raises(LogUnavailableError, match="replaced"):
        log.append(some(1, after=1))


@pytest.mark.parametrize("lost", [["-wal"], ["-shm"], ["-wal", "-shm"]])
def test_what_a_deleted_wal_held_is_saved(
    log: SqliteLog, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.log.writer._LOOK_BESIDE_S", 0.0)
    log.append(some(2))
    for suffix in lost:
        Path(log.path + suffix).unlink()
    log.append(some(1, after=2))
    with closing(sqlite3.connect(f"file:{log.path}?mode=ro", uri=True)) as other:
        seen = [seq for (seq,) in other.execute("SELECT seq FROM events ORDER BY seq")]

    assert seen == [1, 2, 3]


def test_an_append_whose_commit_was_reported_failed_may_be_repeated(log: SqliteLog) -> None:
    """A sync that fails may leave the commit whole; then the retry finds its rows there."""
    log.append(some(1))
    head = log._head
    log.append(some(2, after=1))
    log._head, log._unsure = head, True
    log.append(some(2, after=1))

    assert log.head == 3
    assert [entry.seq for entry in log.read()] == [1, 2, 3]


def test_other_entries_after_such_a_commit_are_an_invariant_violation(log: SqliteLog) -> None:
    log.append(some(1))
    head = log._head
    log.append(some(1, after=1))
    log._head, log._unsure = head, True

    with pytest.raises(RuntimeError, match="the head is 2, not 1"):
        log.append(entries([released(99)], after=1))


@contextmanager
def no_file_may_grow_beyond(size: int) -> Iterator[None]:
    """Make each write beyond that many bytes an I/O error, as a bad disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_after_an_io_error_appends_work_again_and_nothing_is_lost(log: SqliteLog) -> None:
    log.append(some(2))
    for after in (2, 3):
        wal = Path(log.path + "-wal").stat().st_size
        with no_file_may_grow_beyond(wal + 100):
            for _ in range(2):
                with pytest.raises(LogUnavailableError, match="IOERR"):
                    log.append(large(after))
            assert [entry.seq for entry in log.read()] == list(range(1, after + 1))
        log.append(large(after))

    assert [entry.seq for entry in log.read()] == [1, 2, 3, 4]


def test_a_log_that_cannot_checkpoint_closes_and_keeps_its_wal(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = SqliteLog.open(state)
    log.append(some(200))
    with no_file_may_grow_beyond(4096):
        log.close()
    with closing(SqliteLog.open(state)) as again:
        seqs = [entry.seq for entry in again.read()]

    assert seqs == list(range(1, 201))
    assert "no checkpoint" in caplog.text


# --- the head file ---


def test_the_head_is_kept_beside_the_database(log: SqliteLog, state: Path) -> None:
    log.append(some(3))
    head = read_head(StateFiles(state).head)

    assert head is not None
    assert head.seq == 3
    assert head.hash == database(log).execute("SELECT hash FROM events WHERE seq=3").fetchone()[0]


def test_a_cut_tail_is_noted_and_the_log_goes_on(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = StateFiles(state)
    with closing(SqliteLog.open(state)) as log:
        log.append(some(2))
    older = files.database.read_bytes()
    with closing(SqliteLog.open(state)) as log:
        log.append(some(2, after=2))
    files.database.write_bytes(older)
    with closing(SqliteLog.open(state)) as log:
        log.append(some(1, after=2))

        assert log.head == 3
    assert "was cut" in caplog.text
    (line,) = files.cuts.read_text().splitlines()
    assert "expected 4 " in line
    assert "found 2 " in line


def test_a_head_file_that_is_behind_or_torn_is_no_cut(state: Path) -> None:
    files = StateFiles(state)
    with closing(SqliteLog.open(state)) as log:
        log.append(some(1))
        behind = files.head.read_bytes()
        log.append(some(1, after=1))
    for found in (behind, behind[:10], b""):
        files.head.write_bytes(found)
        SqliteLog.open(state).close()

        assert not files.cuts.exists()


def test_a_head_file_that_cannot_be_written_costs_one_warning_and_no_event(
    log: SqliteLog, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = log._head_file._file
    kept = os.dup(file)
    unwritable = os.open(StateFiles(state).head, os.O_RDONLY)
    os.dup2(unwritable, file)
    os.close(unwritable)
    for after in range(3):
        log.append(some(1, after=after))
    warnings = caplog.text.count("cannot be written")
    os.dup2(kept, file)
    os.close(kept)
    log.append(some(1, after=3))
    head = read_head(StateFiles(state).head)

    assert warnings == 1
    assert head is not None
    assert head.seq == 4


# --- closing, threads, forks ---


def test_closing_leaves_one_whole_file(state: Path) -> None:
    with closing(SqliteLog.open(state)) as log:
        log.append(some(2))
    names = {path.name for path in state.iterdir()}

    assert names == {"moorage.db", "moorage.lock", "moorage.head"}


def test_one_thread_may_open_it_and_another_use_it(log: SqliteLog) -> None:
    worker = threading.Thread(target=lambda: log.append(some(1)))
    worker.start()
    worker.join(10)

    assert log.head == 1


def test_a_forked_child_is_refused_and_harms_nothing(log: SqliteLog) -> None:
    log.append(some(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            log.close()
            log.append(some(1, after=1))
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    log.append(some(1, after=1))

    assert os.waitstatus_to_exitcode(status) == 0
    assert [entry.seq for entry in log.read()] == [1, 2]


FORKING = """
import os, sys
from pathlib import Path
from log.making import some
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
log = SqliteLog.open(Path(sys.argv[1]))
log.append(some(1))
child = os.fork()
if child == 0:
    sys.exit(0)  # with all finalisers, unlike the children of multiprocessing
status = os.waitpid(child, 0)[1]
log.append(some(1, after=1))
with LogReader(sys.argv[1]) as reader:
    print(status, reader.head, os.path.exists(log.path + "-wal"))
log.close()
"""


def test_a_forked_child_that_ends_takes_nothing_from_its_parent(
    state: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    output, _ = start_python(FORKING, state).communicate(timeout=30)

    assert output.split() == ["0", "2", "True"]
