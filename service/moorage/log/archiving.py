"""Archiving: the live database becomes an older segment, and a new one takes its place.

The new one is made whole beside the live one and then renamed over it, and that rename is the
moment it happens: whatever interrupts it, before it everything is as it was, and after it as it
is to be. The older name is a second link to the live file until then, so no row is ever moved.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from moorage.errors import StateError
from moorage.log import engine, faults, revisions, segments
from moorage.log.files import StateFiles, companions, sync
from moorage.log.rows import Row
from moorage.log.schema import events
from moorage.log.segment import ALL, Segment

_logger = logging.getLogger(__name__)

Reached = Callable[[str], None]

_INSERT = engine.compiled(events.insert())
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_BUSY_S = 1.0


def nowhere(_step: str) -> None:
    """Be told of a step and do nothing."""


def replace(files: StateFiles, log_id: str, first: int, row: Row, reached: Reached) -> Path:
    """Put a database with `row` alone in the place of the live one; return where that is kept.

    The live one must be one plain file that nobody has open. When this raises, the live one is
    still in its place, and `clean_up` removes what was begun.
    """
    _make(files.part, log_id, row, reached)
    place = files.archive / segments.name(first, row.seq - 1)
    if not files.archive.is_dir():
        files.archive.mkdir(mode=0o700)
        sync(files.folder)
    reached("folder made")
    _keep(files.database, place, reached)
    sync(files.archive)
    reached("kept")
    files.part.replace(files.database)
    return place


def _make(part: Path, log_id: str, row: Row, reached: Reached) -> None:
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    reached("begun")
    connection = engine.connect_writer(part, mode="rw", busy_timeout_s=_BUSY_S)
    try:
        revisions.upgrade(connection, log_id=log_id)
        reached("identified")
        engine.driver_connection(connection).execute(_INSERT, row)
    finally:
        engine.disconnect(connection)
    sync(part)
    reached("filled")


def _keep(database: Path, place: Path, reached: Reached) -> None:
    """Give the live database a second name, or a copy: without links, or on another device."""
    try:
        os.link(database, place)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        part = place.with_name(place.name + ".part")
        shutil.copyfile(database, part)
        reached("copied")
        sync(part)
        part.replace(place)


def clean_up(
    files: StateFiles,
    first: int,
    hash_of: Callable[[int], str | None],
    *,
    also: Sequence[Path] = (),
) -> None:
    """Remove what an archiving that was interrupted left.

    `hash_of` tells the hash of a row of the live database, which begins with `first`. An older
    segment goes only where the live one has all of its rows. What cannot be removed stays; it is
    no part of the log. `also` are further files to remove.
    """
    parts = (*also, files.part, *companions(files.part), *files.archive.glob("*.part"))
    try:
        for path in parts:
            path.unlink(missing_ok=True)
        for each in segments.archived(files.archive):
            if each.first == first and _is_double(each, files.database, hash_of(each.last)):
                each.path.unlink()
    except (OSError, StateError, sqlite3.Error, DBAPIError) as error:
        _logger.warning("%s: what an archiving left stays: %s", files.archive, error)


def _is_double(each: segments.Archived, database: Path, live_hash: str | None) -> bool:
    if each.path.samefile(database):
        return True
    if live_hash is None:
        return False
    segment = Segment(each.path)
    try:
        last = segment.page(each.last - 1, 1, ALL)
    finally:
        segment.close()
    return bool(last) and (last[0].seq, last[0].hash) == (each.last, live_hash)


def refusal(database: Path, error: sqlite3.Error | DBAPIError | OSError) -> Exception:
    """Say why a log could not be archived; all is as it was."""
    if isinstance(error, OSError):
        return StateError(str(database), f"cannot be archived: {error}")
    if faults.error_name(error).startswith(("BUSY", "LOCKED")):
        return StateError(
            str(database),
            "cannot be archived while another program has it open; end what reads it "
            "(`moorage events -f`, Datasette, sqlite3) and try again",
        )
    return faults.on_append(database, error)
