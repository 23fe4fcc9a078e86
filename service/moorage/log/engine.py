"""Connections to the database: the owner's one for writing, and those for reading."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event

Synchronous = Literal["FULL", "NORMAL", "EXTRA"]

# Pages in the -wal that make a commit checkpoint. A -wal that grows is synced at half the speed of
# one that is written over, which favours a short one; fewer checkpoints favour a long one.
_CHECKPOINT_PAGES = 2000
_JOURNAL_BYTES = 4096 * _CHECKPOINT_PAGES  # what the -wal shrinks to after a reader let it grow


def connect_writer(
    database: Path, *, mode: Literal["rw", "rwc"], busy_timeout_s: float
) -> sa.Connection:
    """Open a database for its only writer, `rwc` makes it. Close it with `disconnect`."""
    engine = _engine(database, mode, busy_timeout_s)

    # An explicit transaction always means to write: one that turns from reading to writing is
    # refused at once when another has written in between, whatever the busy timeout.
    @event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine.connect()


def prepare_writer(database: sqlite3.Connection, synchronous: Synchronous) -> str:
    """Set a log's connection to its durability; return the journal mode, `wal` when all is well."""
    mode: str = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    database.execute(f"PRAGMA synchronous = {synchronous}")
    database.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    database.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
    return mode


def connect_reader(
    database: Path, *, busy_timeout_s: float = 1.0, immutable: bool = False
) -> sa.Connection:
    """Open an existing database for reading. Close it with `disconnect`.

    `immutable` takes no locks and looks at no -wal: right only while nobody writes.
    """
    engine = _engine(database, "ro&immutable=1" if immutable else "ro", busy_timeout_s)

    @event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    connection = engine.connect()
    driver_connection(connection).execute("PRAGMA query_only = ON")
    return connection


def disconnect(connection: sa.Connection) -> None:
    """Close a connection and the database behind it, whatever state it is in."""
    connection.close()
    connection.engine.dispose()


def driver_connection(connection: sa.Connection) -> sqlite3.Connection:
    """Return the driver's own connection, for what costs too much through SQLAlchemy."""
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def compiled(statement: sa.Executable) -> str:
    """Return a statement as SQLite's text, its parameters as `?` in order."""
    return str(cast("sa.ClauseElement", statement).compile(dialect=_DIALECT))


_DIALECT = sa.create_engine("sqlite://").dialect


def _engine(database: Path, mode: str, busy_timeout_s: float) -> sa.Engine:
    uri = f"file:{quote(os.fsencode(database.absolute()))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        # The log is used by one thread at a time, but not always by the one that opened it.
        return sqlite3.connect(
            uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )

    return sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
