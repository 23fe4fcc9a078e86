"""A whole copy of a log, also of one that is being written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from moorage.errors import StateError
from moorage.log import engine, faults
from moorage.log.files import whole_file
from moorage.log.reading import ReadConnection, find_database

# SQLite reports every fault of a copy on the target's connection. These are faults of reading, so
# of the source: a target is only written to.
_OF_SOURCE: Final = ("IOERR_READ", "IOERR_SHORT_READ", "IOERR_CORRUPTFS", "CORRUPT")


def backup(path_or_state: Path, target: Path) -> int:
    """Copy a log into one new database file and return its bytes; the owner is not held up.

    Raises StateError when the target exists or cannot be written, and what reading a log raises;
    then nothing is left there.
    """
    with closing(ReadConnection(find_database(path_or_state))) as source:
        _check_free(target)
        with whole_file(target) as part:
            source.run(lambda connection: _copy(engine.driver_connection(connection), part, target))
    return target.stat().st_size


def _check_free(target: Path) -> None:
    try:
        taken = target.exists()
    except OSError as error:
        raise StateError(str(target), f"cannot be written: {error.strerror}") from error
    if taken:
        raise StateError(str(target), "exists already; a backup never writes over anything")


def _copy(source: sqlite3.Connection, part: Path, target: Path) -> None:
    source.execute("PRAGMA schema_version").fetchone()  # what keeps it from being read is met here
    try:
        with closing(sqlite3.connect(part)) as copy:
            source.backup(copy)  # in one step: readers of a WAL hold up no writer
    except sqlite3.Error as error:
        if faults.error_name(error).startswith(_OF_SOURCE):
            raise
        raise StateError(str(target), f"cannot be written: {error}") from error
