"""The events of all segments as one table, for SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy as sa

from moorage.log import engine
from moorage.log.reader import LogReader
from moorage.log.schema import events

_COLUMNS: Final = ", ".join(events.c.keys())
_AS_IN_A_LOG: Final = engine.compiled(
    sa.schema.CreateTable(
        sa.Table(
            "events",
            sa.MetaData(),
            *(sa.Column(c.name, c.type, primary_key=c.primary_key) for c in events.c),
            prefixes=["TEMP"],
        )
    )
)
_INDEX: Final = "CREATE INDEX temp.events_run ON events (run) WHERE run IS NOT NULL"


def temporary(database: Path) -> tuple[int, tuple[str, ...]]:
    """Return the first seq that is there, and what makes `events` in the TEMP schema one table.

    No statements when there is one segment only. The rows are copied, some 400,000 a second: for a
    view of several tables SQLite looks through all of them for each row of a join, which took 40
    times as long for some of ours. Raises as a LogReader does.
    """
    with LogReader(database) as reader:
        first, older = reader.first, [segment.path for segment in reader.chain()[:-1]]
    return first, (_AS_IN_A_LOG, *_copies(older), _INDEX) if older else ()


def _copies(older: list[Path]) -> Iterator[str]:
    for path in older:
        # Nobody writes to an older segment: it is read as the plain file that it is.
        yield f"ATTACH 'file:{quote(os.fsencode(path))}?mode=ro&immutable=1' AS older"
        yield _copy("older")
        yield "DETACH older"
    yield _copy("main")


def _copy(schema: str) -> str:
    return f"INSERT INTO temp.events SELECT {_COLUMNS} FROM {schema}.events"  # noqa: S608
