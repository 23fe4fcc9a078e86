"""What `moorage db` does: tell the revision of a log's schema and upgrade it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from moorage.log import revisions
from moorage.log.reading import ReadConnection, find_database
from moorage.log.sqlite import SqliteLog


def current(state: Path) -> tuple[str | None, str]:
    """Return the revision of a log's schema, None while it has none, and this program's own.

    Raises StateError when there is no log, or it cannot be read.
    """
    database = find_database(state)
    with closing(ReadConnection(database)) as connection:
        found = connection.run(lambda reading: revisions.revision(reading, database))
    return found, revisions.head()


def upgrade(state: Path) -> str:
    """Bring an existing log to this program's schema; return its revision.

    Takes the log for that moment: raises StateInUseError while a service has it open.
    """
    current(state)
    SqliteLog.open(state).close()
    return revisions.head()
