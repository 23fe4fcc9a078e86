from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from log.contract import LogContract
from log.making import database, entries, released, some
from moorage.core import chain
from moorage.errors import CorruptLogError, ForkedError, MoorageError
from moorage.log.files import StateFiles
from moorage.log.head import read_head
from moorage.log.reader import LogReader
from moorage.log.rows import Row
from moorage.log.sqlite import SqliteLog
from moorage.protocols import EventLog, Snapshot

OTHERS = ", ".join(Row._fields[1:])


class TestSqliteLog(LogContract):
    def reopen(self, log: EventLog) -> EventLog:
        log.close()
        return SqliteLog.open(Path(log.path).parent)


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


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("'{'", id="no JSON"),
        pytest.param("CAST(x'7b227ff1223a317d' AS TEXT)", id="no UTF-8"),
        pytest.param(f"""'{'{"a":' * 2_000}1{"}" * 2_000}'""", id="nested too deeply"),
    ],
)
def test_snapshots_can_be_deleted_and_damaged_ones_are_passed_over(
    log: SqliteLog, foreign: sqlite3.Connection, damage: str
) -> None:
    for seq in (1, 2):
        log.append(some(1, after=seq - 1), snapshot=Snapshot(seq, 1, {"seq": seq}))
    foreign.execute(f"UPDATE snapshots SET state = {damage} WHERE seq = 2")
    with LogReader(log.path) as reader:
        seen = reader.snapshot(1)
    assert log.snapshot(1) == seen == Snapshot(1, 1, {"seq": 1})

    foreign.execute("UPDATE snapshots SET hash = 'of another history' WHERE seq = 1")
    assert log.snapshot(1) is None

    foreign.execute("DELETE FROM snapshots")
    assert log.snapshot(1) is None


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
