"""The event log of the owner: one writing connection, one transaction an append."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from moorage.core.events import Entry
from moorage.errors import CorruptLogError, ForkedError, LogUnavailableError, StateError
from moorage.log import archiving, engine, faults, segments
from moorage.log.files import (
    StateFiles,
    check_companions,
    check_owner,
    companions,
    make_folder,
    remove_folders,
    sync,
)
from moorage.log.head import Head, HeadFile, note_cut, read_head
from moorage.log.lock import StateLock
from moorage.log.rows import PAGE_ROWS, Row, to_entry, to_json, to_row, to_rows, to_snapshots
from moorage.log.schema import events, snapshots, state_bytes
from moorage.log.upkeep import tidy
from moorage.log.writer import Writer, WriterOptions
from moorage.protocols import Snapshot

_logger = logging.getLogger(__name__)

_SNAPSHOTS_KEPT = 2

_INSERT = engine.compiled(events.insert())
_PAGE = engine.compiled(
    sa.select(*events.c)
    .where(events.c.seq > sa.bindparam("after"), events.c.seq <= sa.bindparam("until"))
    .order_by(events.c.seq)
)
_LAST = engine.compiled(
    sa.select(events.c.seq, events.c.hash).where(
        events.c.seq == sa.select(sa.func.max(events.c.seq)).scalar_subquery()
    )
)
_HASH = engine.compiled(sa.select(events.c.hash).where(events.c.seq == sa.bindparam("seq")))
_SNAPSHOT_INSERT = engine.compiled(snapshots.insert().prefix_with("OR REPLACE"))
_SNAPSHOT_NEWEST = engine.compiled(
    sa.select(snapshots.c.seq, state_bytes)
    .join(events, (events.c.seq == snapshots.c.seq) & (events.c.hash == snapshots.c.hash))
    .where(snapshots.c.fold_version == sa.bindparam("fold_version"))
    .order_by(snapshots.c.seq.desc())
)
_SNAPSHOT_PRUNE = (
    "DELETE FROM snapshots WHERE seq NOT IN"
    " (SELECT seq FROM snapshots WHERE fold_version = ? ORDER BY seq DESC LIMIT ?)"
)


class SqliteLog:
    """An EventLog in a state folder that this process owns. Open it with `open`."""

    def __init__(self, files: StateFiles, lock: StateLock, writer: Writer) -> None:
        self._files = files
        self._path = str(files.database)
        self._lock = lock
        self._writer = writer
        self._pid = os.getpid()
        self._closed = False
        self._unsure = False  # whether the last transaction is on the disk
        self._unsynced = False  # whether the folder may still forget the newest segment
        self._log_id = writer.log_id
        first = next(iter(writer.execute(segments.FIRST)), None)
        self._start = segments.start(first, self._log_id, files.database)
        self._head = self._last()
        # One that mattered was rolled back when the database was opened; in WAL mode there is none.
        journal = companions(files.database)[-1]
        archiving.clean_up(files, self._start.seq, self._hash, also=(journal,))
        self._check_head_file()
        self._head_file = HeadFile(files.head)
        self._head_file.write(self._head)

    @classmethod
    def open(
        cls,
        state: Path,
        *,
        wait_s: float = 0.0,
        owner_note: str = "",
        synchronous: engine.Synchronous = "FULL",
        busy_timeout_s: float = 0.5,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Self:
        """Take the log of a state folder, making or upgrading it where needed.

        `wait_s` waits for another owner to leave, as long as it is `wanted`; `owner_note` is shown
        to who is refused because of us; `busy_timeout_s` is how long an append waits for a foreign
        lock on the database.
        Raises StateInUseError, another StateError, or LogUnavailableError when the disk is full;
        then nothing new is left behind.
        """
        folder = state.expanduser().absolute()
        made = make_folder(folder)
        files = StateFiles(folder)
        lock = StateLock(files.lock, wait_s=wait_s, note=owner_note, wanted=wanted)
        try:
            lock.acquire()
            return cls._open_locked(files, lock, WriterOptions(synchronous, busy_timeout_s))
        except BaseException:
            remove_folders(made)
            raise

    @classmethod
    def _open_locked(cls, files: StateFiles, lock: StateLock, options: WriterOptions) -> Self:
        new = _absent(files)
        try:
            _prepare_database(files.database)
            writer = Writer(files.database, options, lock.claim)
            try:
                return cls(files, lock, writer)
            except BaseException:
                writer.give_up()
                raise
        except BaseException as error:
            for path in new:
                path.unlink(missing_ok=True)
            lock.release(discard=True)
            if isinstance(error, faults.RAISED):
                raise faults.on_open(files.database, error) from error
            if isinstance(error, OSError):
                raise StateError(str(files.folder), f"cannot be used: {error}") from error
            raise

    @property
    def log_id(self) -> str:
        """The id given when the log was created."""
        return self._log_id

    @property
    def path(self) -> str:
        """The database's path."""
        return self._path

    @property
    def head(self) -> int:
        """The seq of the last durable entry."""
        return self._head.seq

    @property
    def head_hash(self) -> str:
        """The hash of that entry's row, or what the first row is to follow."""
        return self._head.hash

    @property
    def segment(self) -> int:
        """The number of the live segment."""
        return self._start.segment

    @property
    def first(self) -> int:
        """The seq of the live segment's first entry."""
        return self._start.seq

    def append(self, entries: Sequence[Entry], *, snapshot: Snapshot | None = None) -> None:
        """Write all entries in one durable transaction, or none; see EventLog."""
        self._check_usable()
        rows = self._rows_of(entries)
        head = Head(rows[-1].seq, rows[-1].hash) if rows else self._head
        try:
            self._writer.check_in_place()
            self._sync_folder()
            written = self._settle(head)
            if snapshot is not None or not (written or head == self._head):
                self._write([] if written else rows, snapshot)
        except (sqlite3.Error, DBAPIError) as error:
            if faults.needs_reopening(error):
                self._writer.give_up()
            raise faults.on_append(self._files.database, error) from error
        self._head = head
        self._head_file.write(head)

    def archive(self, entry: Entry, *, reached: archiving.Reached = archiving.nowhere) -> str:
        """Begin a new segment with `entry`, a `log.continued`; see EventLog.

        `reached` is told after each step.
        """
        self._check_usable()
        row = self._rows_of([entry])[0]
        try:
            self._writer.check_in_place()
            self._sync_folder()
            if self._unsure and self._last() != self._head:
                raise LogUnavailableError(self.path, "the last append has to be done again first")
            self._writer.make_plain()
            reached("made plain")
            place = archiving.replace(self._files, self._log_id, self._start.seq, row, reached)
        except BaseException as error:
            self._writer.give_up()
            archiving.clean_up(self._files, self._start.seq, self._hash)
            if isinstance(error, sqlite3.Error | DBAPIError | OSError):
                raise archiving.refusal(self._files.database, error) from error
            raise
        self._go_on_from(row)
        reached("replaced")
        self._finish(place)
        reached("finished")
        return str(place)

    def _go_on_from(self, row: Row) -> None:
        self._start = segments.Start(self._start.segment + 1, self._head)
        self._head = Head(row.seq, row.hash)
        self._writer.replaced()
        self._unsynced = True

    def _finish(self, place: Path) -> None:
        try:
            self._sync_folder()
            place.chmod(0o400)  # nobody has a reason to write to it any more
            self._head_file.write(self._head)
        except (LogUnavailableError, OSError) as error:
            _logger.warning("%s: not on the disk yet, the next append tries: %s", place, error)

    def _sync_folder(self) -> None:
        if not self._unsynced:
            return
        try:
            sync(self._files.folder)
        except OSError as error:
            why = f"its folder cannot be synced: {error.strerror}"
            raise LogUnavailableError(self.path, why) from error
        self._unsynced = False

    def read(self, after: int = 0, *, limit: int | None = None) -> Iterator[Entry]:
        """Yield durable entries of this segment in order, page by page; see EventLog."""
        after = max(after, self._start.before.seq)
        last = None if limit is None else after + limit
        while after < (until := min(self.head if last is None else last, self.head)):
            for row in self._page(after, min(until, after + PAGE_ROWS)):
                after = row.seq
                yield to_entry(row, self.path)

    def tidy(self) -> str:
        """Checkpoint as far as readers allow; return who lets the -wal grow, see EventLog."""
        self._check_usable()
        return tidy(self._writer, self._files.database)

    def snapshot(self, fold_version: int) -> Snapshot | None:
        """Return the newest readable snapshot of this fold version that fits the log."""
        self._check_usable()
        found = self._ask(_SNAPSHOT_NEWEST, (fold_version,))
        return next(to_snapshots(found, fold_version), None)

    def close(self) -> None:
        """Checkpoint and release the locks. Idempotent; in a forked child it does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            self._writer.checkpoint()
        finally:
            self._writer.give_up()
            self._head_file.close()
            self._lock.release()

    # --- appending ---

    def _rows_of(self, entries: Sequence[Entry]) -> list[Row]:
        rows: list[Row] = []
        seq, previous = self._head.seq, self._head.hash
        for entry in entries:
            seq += 1
            if entry.seq != seq:
                raise RuntimeError(f"{self.path}: append of row {entry.seq}, the next is {seq}")
            row = to_row(entry, previous)
            previous = row.hash
            rows.append(row)
        return rows

    def _settle(self, head: Head) -> bool:
        """After a failed append, find out what it left; True when it had written up to `head`.

        A commit whose sync failed may be whole. The caller then appends the same entries again,
        and they are there already, but perhaps only in memory: the kernel takes for synced what
        it once failed to. So they are written once more, into the database itself.
        """
        if not self._unsure:
            return False
        found = self._last()
        if found not in (self._head, head):
            raise RuntimeError(f"{self.path}: the head is {found.seq}, not {self._head.seq}")
        written = found == head != self._head
        if written:
            self._writer.write_through()
        self._unsure = False
        return written

    def _write(self, rows: list[Row], snapshot: Snapshot | None) -> None:
        database = self._writer.database()
        self._unsure = True
        database.execute("BEGIN IMMEDIATE")
        try:
            if rows:
                database.executemany(_INSERT, rows)
            if snapshot is not None:
                self._write_snapshot(database, snapshot)
            database.execute("COMMIT")
        except BaseException:
            self._writer.roll_back()
            raise
        self._unsure = False

    def _write_snapshot(self, database: sqlite3.Connection, snapshot: Snapshot) -> None:
        found = database.execute(_HASH, (snapshot.seq,)).fetchone()
        if found is None:
            raise RuntimeError(f"{self.path}: a snapshot of row {snapshot.seq}, which is not there")
        row = (snapshot.seq, found[0], snapshot.fold_version, to_json(snapshot.state))
        database.execute(_SNAPSHOT_INSERT, row)
        database.execute(_SNAPSHOT_PRUNE, (snapshot.fold_version, _SNAPSHOTS_KEPT))

    # --- reading ---

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError
        if self._closed:
            raise RuntimeError(f"{self.path}: the log is closed")

    def _check_head_file(self) -> None:
        expected = read_head(self._files.head)
        if expected is None or expected.seq < self._start.before.seq:
            return  # it was behind already when this segment began: nobody syncs it
        if self._hash(expected.seq) != expected.hash:
            note_cut(self._files.cuts, expected, self._head)

    def _hash(self, seq: int) -> str | None:
        """Return the hash of a row, or of the one before the first."""
        if seq == self._start.before.seq:
            return self._start.before.hash
        found = self._writer.execute(_HASH, (seq,))
        return str(found[0][0]) if found else None

    def _page(self, after: int, until: int) -> list[Row]:
        self._check_usable()
        page = to_rows(self._ask(_PAGE, (after, until)))
        for seq, row in zip_longest(range(after + 1, until + 1), page):
            if row is None or row.seq != seq:
                raise CorruptLogError(self.path, seq, "is missing")
        return page

    def _ask(self, statement: str, parameters: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._writer.execute(statement, parameters)
        except faults.RAISED as error:
            raise faults.on_open(self._files.database, error) from error

    def _last(self) -> Head:
        last = self._writer.execute(_LAST)
        return Head(*last[0]) if last else self._start.before


def _prepare_database(database: Path) -> None:
    check_companions(database)
    if not database.exists():
        # Empty is as good as none for SQLite, which would give it the mode of our umask.
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return
    if not database.is_file():
        raise StateError(str(database), "is no file")
    check_owner(database)
    if not os.access(database, os.R_OK | os.W_OK):
        raise StateError(str(database), "cannot be read and written by this user")


def _absent(files: StateFiles) -> tuple[Path, ...]:
    """Return what a failed opening has to remove: nothing where there was a database."""
    if files.database.exists():
        return ()
    paths = (files.database, *companions(files.database), files.head)
    return tuple(path for path in paths if not path.exists())
