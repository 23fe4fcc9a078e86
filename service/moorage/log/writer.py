"""The owner's connection: opened, kept where its files are, and opened anew when it broke."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from moorage.errors import LogUnavailableError, StateError
from moorage.log import engine, revisions
from moorage.log.files import companions

_logger = logging.getLogger(__name__)

_Identity = tuple[int, int]

_LOOK_BESIDE_S = 1.0  # a lost -wal costs events only when the owner dies as well


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How durable a commit is, and how long it waits for a foreign lock on the database."""

    synchronous: engine.Synchronous
    busy_timeout_s: float


class Writer:
    """The one writing connection of a log.

    `claim` is given the log's id before anything is written to a log that exists. Raises our
    errors, or those of the driver and SQLAlchemy for the caller to translate.
    """

    def __init__(
        self, database: Path, options: WriterOptions, claim: Callable[[str], None]
    ) -> None:
        self._path = database
        self._options = options
        # As text, as they are looked at before every append.
        self._watched, self._wal, self._shm, _ = map(str, (database, *companions(database)))
        self._connection: sa.Connection | None = None
        self.log_id = self._open(claim)
        self._place = _identity(self._watched)
        self._beside = self._look_beside()
        self._next_look = 0.0

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and fetch all of it: an open one would hold back every checkpoint."""
        return self.database().execute(statement, parameters).fetchall()

    def database(self) -> sqlite3.Connection:
        """Return the driver's connection, opened anew where the last one was given up."""
        if self._connection is None:
            self._connection = self._reconnect()
            self._beside = self._look_beside()
        return engine.driver_connection(self._connection)

    def check_in_place(self) -> None:
        """Notice files that were taken away: SQLite would go on writing to what nobody can open.

        Raises LogUnavailableError when it is the database. A lost -wal or -shm is made good: what
        it held is still open here and goes into the database, and new ones are begun.
        """
        if _identity(self._watched) != self._place:
            raise LogUnavailableError(
                str(self._path), "the database was moved, replaced or deleted while it was open"
            )
        now = time.monotonic()
        if self._connection is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_BESIDE_S
        if self._look_beside() != self._beside:
            self.checkpoint()
            self.give_up()

    def checkpoint(self) -> None:
        """Bring the -wal into the database as far as readers allow; what stays is safe there."""
        try:
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, DBAPIError) as error:
            _logger.warning("%s: the -wal stays, no checkpoint: %s", self._path, error)

    def write_through(self) -> None:
        """Bring all of the -wal into the database, and that to the disk.

        Raises the driver's error, and LogUnavailableError while others read an older state.
        """
        busy = self.execute("PRAGMA wal_checkpoint(FULL)")[0][0]
        if busy:
            raise LogUnavailableError(
                str(self._path),
                "the last append may not be on the disk, and others who read it hold up writing "
                "it again; end their queries (`moorage sql`, Datasette, sqlite3)",
            )

    def make_plain(self) -> None:
        """Turn the database into one whole file that nobody has open, and give it up.

        Raises the driver's error, `database is locked`, while others have it open.
        """
        mode = self.execute("PRAGMA journal_mode = DELETE")[0][0]
        self.give_up()
        # A file that belonged to this database would be taken for one of the next at this path.
        beside = [path for path in companions(self._path) if path.exists()]
        if mode != "delete" or beside:
            raise RuntimeError(
                f"{self._path}: still in journal mode {mode}, with {list(map(str, beside))}"
            )

    def replaced(self) -> None:
        """Take the database that is at the path now for the right one."""
        self._place = _identity(self._watched)

    def roll_back(self) -> None:
        """End a transaction that failed, as far as SQLite has not ended it already."""
        try:
            if self.database().in_transaction:
                self.execute("ROLLBACK")
        except sqlite3.Error as error:
            _logger.warning("%s: opened anew, as a rollback failed: %s", self._path, error)
            self.give_up()

    def give_up(self) -> None:
        """Close the connection; the next use opens another."""
        if self._connection is not None:
            engine.disconnect(self._connection)
            self._connection = None

    def _open(self, claim: Callable[[str], None]) -> str:
        connection = self._connect("rwc")
        try:
            with connection.begin():
                found = revisions.revision(connection, self._path)
                revisions.check_known(found, self._path)
                log_id = revisions.log_id(connection, self._path) if found is not None else None
            if log_id is not None:
                claim(log_id)
            self._prepare(connection)
            if found != revisions.head():
                revisions.upgrade(connection)
            if log_id is None:
                with connection.begin():
                    log_id = revisions.log_id(connection, self._path)
                claim(log_id)
        except BaseException:
            engine.disconnect(connection)
            raise
        self._connection = connection
        if found != revisions.head():
            self.checkpoint()  # a log that loses its -wal keeps its id and finds its servers
        return log_id

    def _reconnect(self) -> sa.Connection:
        connection = self._connect("rw")
        try:
            self._prepare(connection)
        except BaseException:
            engine.disconnect(connection)
            raise
        return connection

    def _connect(self, mode: Literal["rw", "rwc"]) -> sa.Connection:
        return engine.connect_writer(
            self._path, mode=mode, busy_timeout_s=self._options.busy_timeout_s
        )

    def _prepare(self, connection: sa.Connection) -> None:
        database = engine.driver_connection(connection)
        mode = engine.prepare_writer(database, self._options.synchronous)
        if mode != "wal":
            raise StateError(
                str(self._path), f"this file system allows no -wal file (journal mode {mode})"
            )

    def _look_beside(self) -> tuple[_Identity | None, _Identity | None]:
        return _identity(self._wal), _identity(self._shm)


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - three times as fast as Path.stat
    except OSError:
        return None
    return status.st_dev, status.st_ino
