from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from log.making import database, entries, released, some
from moorage.core.events import Entry
from moorage.errors import LogUnavailableError
from moorage.log.backup import backup
from moorage.log.sqlite import SqliteLog
from moorage.protocols import Snapshot


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


def in_the_database_itself(log: SqliteLog) -> list[int]:
    """Return which rows are there without what the -wal holds."""
    with closing(sqlite3.connect(f"file:{log.path}?immutable=1", uri=True)) as plain:
        return [seq for (seq,) in plain.execute("SELECT seq FROM events ORDER BY seq")]


def test_what_a_failed_sync_left_is_durable_before_it_is_reported_so(log: SqliteLog) -> None:
    """What the kernel could not sync it takes for synced: only what is written anew is not lost."""
    log.append(some(1))
    head = log._head
    log.append(some(2, after=1))
    log._head, log._unsure = head, True
    log.append(some(2, after=1))

    assert in_the_database_itself(log) == [1, 2, 3]


def test_what_a_failed_sync_left_is_not_reported_durable_while_a_reader_holds_it_up(
    state: Path,
) -> None:
    with closing(SqliteLog.open(state, busy_timeout_s=0.05)) as log:
        log.append(some(1))
        head = log._head
        with closing(sqlite3.connect(log.path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN")
            foreign.execute("SELECT count(*) FROM events").fetchone()
            log.append(some(2, after=1))
            log._head, log._unsure = head, True
            for _ in range(2):
                with pytest.raises(LogUnavailableError, match="others who read it hold up"):
                    log.append(some(2, after=1))
                assert log.head == 1
            foreign.execute("ROLLBACK")
        log.append(some(2, after=1))

        assert log.head == 3
        assert in_the_database_itself(log) == [1, 2, 3]


def test_what_a_failed_sync_left_is_not_reported_durable_while_the_disk_fails(
    log: SqliteLog,
) -> None:
    log.append(some(1))
    head = log._head
    log.append(large(1))
    log._head, log._unsure = head, True
    with no_file_may_grow_beyond(Path(log.path).stat().st_size):
        for _ in range(2):
            with pytest.raises(LogUnavailableError, match="IOERR"):
                log.append(large(1))
        assert log.head == 1
    log.append(large(1))

    assert in_the_database_itself(log) == [1, 2]


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
    log.append(some(1))
    log.append(large(1))  # the -shm must not be what grows beyond
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


def test_a_backup_of_a_log_that_cannot_be_read_names_the_log(
    log: SqliteLog, tmp_path: Path
) -> None:
    log.append(some(1))
    log.append(some(1, after=1))
    wal = Path(log.path + "-wal")
    whole = wal.read_bytes()
    os.truncate(wal, len(whole) - 4096)  # in the last page that the copy comes to read
    with pytest.raises(LogUnavailableError, match="IOERR_SHORT_READ") as refused:
        backup(Path(log.path), tmp_path / "copy.db")

    wal.write_bytes(whole)
    assert refused.value.path == log.path
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
