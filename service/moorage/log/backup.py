"""A whole copy of a log, also of one that is being written."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from moorage.errors import StateError
from moorage.log import engine
from moorage.log.reading import ReadConnection, find_database


def backup(path_or_state: Path, target: Path) -> int:
    """Copy a log into one new database file and return its bytes; the owner is not held up.

    Raises StateError when the target exists or cannot be written; then nothing is left there.
    """
    source = ReadConnection(find_database(path_or_state))
    try:
        part = _claim(target)
    except BaseException:
        source.close()
        raise
    try:
        source.run(lambda connection: _copy(engine.driver_connection(connection), part))
        _keep(part, target)
    except sqlite3.Error as error:
        raise StateError(str(target), f"the copy failed: {error}") from error
    finally:
        source.close()
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _claim(target: Path) -> Path:
    """Make the file that becomes the target when it is whole, and return its path."""
    try:
        if target.exists():
            raise StateError(str(target), "exists already; a backup never writes over anything")
        part = target.with_name(f".{target.name}.part")
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    except OSError as error:
        raise StateError(str(target), f"cannot be written: {error.strerror}") from error
    return part


def _copy(source: sqlite3.Connection, part: Path) -> None:
    with closing(sqlite3.connect(part)) as copy:
        source.backup(copy)  # in one step: readers of a WAL hold up no writer


def _keep(part: Path, target: Path) -> None:
    try:
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(part, target)  # unlike rename, never replaces what came meanwhile
    except OSError as error:
        raise StateError(str(target), f"cannot be written: {error.strerror}") from error
