"""`moorage archive`: begin a new segment of a log that no service owns just now."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

from moorage.actors.ledger import Ledger
from moorage.cli import source, values
from moorage.cli.console import Console
from moorage.errors import StateError
from moorage.log.files import StateFiles
from moorage.log.reading import find_database
from moorage.log.sqlite import SqliteLog
from moorage.world.clock import SystemClock


def run(options: argparse.Namespace, console: Console) -> int:
    """Archive the live segment and tell where it is; 0 also when there was nothing to archive."""
    log = SqliteLog.open(_state(source.place(options.state)), owner_note="moorage archive")
    try:
        first, last, size = log.first, log.head, Path(log.path).stat().st_size
        place = _archive(log) if last > first else None
    finally:
        log.close()
    told = {"first": first, "last": last, "bytes": size, "path": place}
    console.object({"object": "archive", "archived": place is not None} | told)
    if place is None:
        console.line("nothing to archive: no event has come since the log or its segment began")
    else:
        console.line(f"events {first} to {last} ({values.size(size)}) are in {place}")
        console.line(f"the log goes on with event {last + 1} in {log.path}")
    return 0


def _archive(log: SqliteLog) -> str:
    return Ledger(log, SystemClock(), lambda _: None).archive(version("moorage"))


def _state(place: Path) -> Path:
    """Return the folder of an existing live log. Raises StateError."""
    database = find_database(place)
    if database != StateFiles(database.parent).database:
        raise StateError(str(database), "is a copy or an older segment; name a state folder")
    return database.parent
