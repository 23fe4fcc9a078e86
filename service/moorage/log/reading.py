"""A connection for reading that finds its way whether the log has an owner just now or not."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from moorage.errors import LogUnavailableError, StateError
from moorage.log import engine, faults
from moorage.log.files import StateFiles, check_companions, companions

_ATTEMPTS = 20  # a log that is opened and closed by others all the time

_Result = TypeVar("_Result")
_Signature = tuple[tuple[int, ...] | None, ...]


def find_database(path_or_state: Path) -> Path:
    """Return the database of a state folder, or the path itself. Raises StateError if missing."""
    path = path_or_state.expanduser().absolute()
    try:
        if path.is_dir():
            path = StateFiles(path).database
        if path.is_file():
            return path
    except OSError as error:
        raise StateError(str(path), f"cannot be read: {error.strerror}") from error
    raise StateError(str(path_or_state), "holds no event log; name a state folder or a database")


class ReadConnection:
    """Runs reads on a database that others may own, open and close.

    Without a -wal nobody has it open: it is read as a plain file, and read again when it turns out
    that someone came meanwhile. With one, SQLite's own read-only way is used. Where that is not
    possible, a -wal left by a crash in a folder that cannot be written or on a full disk, a
    temporary copy is read.
    `prepare` are statements about the TEMP schema, which each connection made begins with.
    """

    def __init__(self, database: Path, *, prepare: Sequence[str] = ()) -> None:
        check_companions(database)
        self._path = database
        self._prepare = tuple(prepare)
        self._wal = companions(database)[0]
        self._place = _identity(database)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._connection: sa.Connection | None = None
        self._quiet: _Signature | None = None  # of the files, while they are read as plain ones
        self.generation = 0

    @property
    def moved(self) -> bool:
        """Whether the path no longer leads to the database that was meant."""
        return _identity(self._path) != self._place

    def _refuse_moved(self) -> None:
        if self.moved:
            raise StateError(str(self._path), "was moved, replaced or deleted meanwhile")

    def run(self, work: Callable[[sa.Connection], _Result]) -> _Result:
        """Return what `work` reads in one transaction; it may be called more than once.

        Raises what `work` raises, the driver's errors translated, and StateError when the
        database is no longer where it was.
        """
        for _ in range(_ATTEMPTS):
            self._refuse_moved()
            try:
                connection = self._settled()
                with connection.begin():
                    result = work(connection)
            except faults.RAISED as error:
                self._refuse_moved()  # it may have gone between the look and the read
                if not self._disturbed():
                    raise faults.on_open(self._path, error) from error
            else:
                if not self._disturbed():
                    return result
        raise LogUnavailableError(str(self._path), "others open and close it all the time")

    def close(self) -> None:
        """Close the connection and remove a temporary copy. Idempotent."""
        self._disconnect()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _settled(self) -> sa.Connection:
        if self._disturbed():
            self._disconnect()
        if self._connection is None:
            self._connection = self._connect()
            self.generation += 1
            self._make_ready(engine.driver_connection(self._connection))
        return self._connection

    def _make_ready(self, database: sqlite3.Connection) -> None:
        if self._prepare:
            # Forbids to change the TEMP schema as well; the file itself is opened read-only.
            database.execute("PRAGMA query_only = OFF")
            for statement in self._prepare:
                database.execute(statement)
            database.execute("PRAGMA query_only = ON")

    def _disturbed(self) -> bool:
        return self._quiet is not None and self._quiet != self._signature()

    def _connect(self) -> sa.Connection:
        if self._copy is not None:
            return engine.connect_reader(Path(self._copy.name) / self._path.name)
        signature = self._signature()
        if signature[1] is not None:
            connection = engine.connect_reader(self._path)
            if _can_read(connection):
                return connection
            if self._wal.stat().st_size:
                return engine.connect_reader(self._copied())
        self._quiet = signature
        return engine.connect_reader(self._path, immutable=True)

    def _copied(self) -> Path:
        self._copy = tempfile.TemporaryDirectory(prefix="moorage-")
        folder = Path(self._copy.name)
        shutil.copyfile(self._wal, folder / self._wal.name)
        return Path(shutil.copyfile(self._path, folder / self._path.name))

    def _disconnect(self) -> None:
        self._quiet = None
        if self._connection is not None:
            engine.disconnect(self._connection)
            self._connection = None

    def _signature(self) -> _Signature:
        return _look(self._path), _look(self._wal)


def _can_read(connection: sa.Connection) -> bool:
    """Return whether SQLite gets at the database as it is; closes the connection if not."""
    try:
        engine.driver_connection(connection).execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        # IOERR_SHM: the disk is full, and the -shm is missing or was never made in whole.
        if faults.error_name(error).startswith(("CANTOPEN", "READONLY", "PERM", "IOERR_SHM")):
            engine.disconnect(connection)
            return False
        # Any other fault is met again, and told, by the read itself.
    return True


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
