"""The segments of a log: one live database, and the older ones in the folder `archive` beside it.

Seqs, hashes, causes and run numbers go on from segment to segment, and all have the log's id. An
older segment is named after its first and last seq, `moorage-000000000001-000000052341.db`. It
belongs to the chain when it has the log's id and ends right before the next one begins; nothing
else in that folder is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moorage.core import chain
from moorage.core.events import LogContinued
from moorage.errors import CorruptLogError
from moorage.log.files import StateFiles
from moorage.log.head import Head
from moorage.log.rows import to_object

LARGE_BYTES: Final = 256 * 2**20
"""From here on a live segment is told to be worth archiving: some half a million events."""

FIRST: Final = "SELECT seq, kind, data FROM events ORDER BY seq LIMIT 1"
_NAME: Final = re.compile(r"moorage-(\d{1,18})-(\d{1,18})\.db")


@dataclass(frozen=True, slots=True, order=True)
class Archived:
    """An older segment by its name: the seqs it should hold, and where it is."""

    first: int
    last: int
    path: Path


@dataclass(frozen=True, slots=True)
class Start:
    """Where a segment begins: its number, and the row before its first one."""

    segment: int
    before: Head

    @property
    def seq(self) -> int:
        """The seq of its first row."""
        return self.before.seq + 1


def grown(database: Path) -> str:
    """Return what to do about a live segment that has become large, else ""."""
    size = database.stat().st_size
    if size < LARGE_BYTES or _NAME.fullmatch(database.name):
        return ""
    return (
        f"{database} has grown to {size >> 20} MB: `moorage archive`, or `archive()` of the "
        "service that owns it, begins a new one and keeps this one beside it"
    )


def name(first: int, last: int) -> str:
    """Return what an older segment with these seqs is called."""
    return f"moorage-{first:012d}-{last:012d}.db"


def archived(folder: Path) -> list[Archived]:
    """Return what lies in a folder under the name of an older segment, in order."""
    return sorted(_named(folder)) if folder.is_dir() else []


def _named(folder: Path) -> Iterator[Archived]:
    for path in folder.iterdir():
        found = _NAME.fullmatch(path.name)
        if found is not None:
            yield Archived(int(found[1]), int(found[2]), path)


def archive_of(database: Path) -> Path:
    """Return where the segments older than this one are: beside an older one, its elders."""
    return database.parent if _NAME.fullmatch(database.name) else _archive_beside(database)


def _archive_beside(database: Path) -> Path:
    return StateFiles(database.parent).archive


def start(row: tuple[Any, ...] | None, log_id: str, path: Path) -> Start:
    """Return where a segment begins; `row` is what `FIRST` gives, None when it is empty.

    Raises CorruptLogError when its beginning was cut off.
    """
    if row is None or row[0] == 1:
        return Start(1, Head(0, chain.genesis(log_id)))
    seq, kind, data = row
    if kind != LogContinued.kind:
        raise CorruptLogError(
            str(path), seq, "is the first one, but begins neither log nor segment"
        )
    try:
        event = to_object(data)
        return Start(int(event["segment"]), Head(seq - 1, str(event["base_hash"])))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CorruptLogError(str(path), seq, f"does not say what it continues: {error}") from error
