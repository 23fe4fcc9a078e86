"""Entries to fill logs with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from moorage.core.events import Entry, Event, ModelPinned, RunReleased
from moorage.log.sqlite import SqliteLog

AT = "2026-01-31T23:59:59.123456Z"


def released(run: int, *, model: str = "m", error: str = "") -> Event:
    return RunReleased(model=model, run=run, port=18_000, outcome="ok", error=error)


def pinned(model: str = "m") -> Event:
    return ModelPinned(model=model)


def database(log: SqliteLog) -> sqlite3.Connection:
    """The log's own connection, to make it meet what a foreign one could not bring about."""
    return log._writer.database()


def entries(events: Iterable[Event], *, after: int = 0) -> list[Entry]:
    return [Entry(seq, AT, seq - 1 or None, event) for seq, event in enumerate(events, after + 1)]


def some(count: int, *, after: int = 0) -> list[Entry]:
    return entries((released(after + i + 1) for i in range(count)), after=after)
