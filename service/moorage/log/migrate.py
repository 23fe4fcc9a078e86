"""What `moorage db` does: tell the revision of a log's schema and upgrade it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import DBAPIError

from moorage.errors import StateError
from moorage.log import engine, faults, revisions
from moorage.log.files import StateFiles
from moorage.log.sqlite import SqliteLog


def current(state: Path) -> tuple[str | None, str]:
    """Return the revision of a log's schema, None while it has none, and this program's own.

    Raises StateError when there is no log, or it cannot be read.
    """
    database = StateFiles(state).database
    if not database.is_file():
        raise StateError(str(state), "holds no event log")
    try:
        connection = engine.connect_reader(database)
        try:
            return revisions.revision(connection, database), revisions.head()
        finally:
            engine.disconnect(connection)
    except DBAPIError as error:
        raise faults.on_open(database, error) from error


def upgrade(state: Path) -> str:
    """Bring an existing log to this program's schema; return its revision.

    Takes the log for that moment: raises StateInUseError while a service has it open.
    """
    current(state)
    SqliteLog.open(state).close()
    return revisions.head()
