"""Entries to and from rows of the table `events`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

from moorage.core import chain, codec
from moorage.core.events import Entry
from moorage.errors import CorruptLogError
from moorage.protocols import Snapshot

_text = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode
_ascii = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_Scan = Callable[[str, int], tuple[Any, int]]
_scan: _Scan = cast("Any", json.JSONDecoder()).scan_once  # half of what `loads` costs

PAGE_ROWS = 320
"""How many are read at once: two pages are fewer objects than bring the garbage collector."""


class Row(NamedTuple):
    """One row as it is stored; `data` is JSON text."""

    seq: int
    at: str
    kind: str
    version: int
    model: str | None
    run: int | None
    port: int | None
    pid: int | None
    cause: int | None
    data: str
    hash: str


def to_rows(found: Iterable[tuple[Any, ...]]) -> list[Row]:
    """Return rows of what a query of all columns finds."""
    return list(map(tuple[Any, ...].__new__, repeat(Row), found))  # `Row._make` in C


def to_json(value: Mapping[str, Any]) -> str:
    """Return compact JSON with sorted keys. Raises ValueError for a number that is not finite.

    Lone surrogates, which UTF-8 cannot hold, are escaped and come back as they were.
    """
    text = _text(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _ascii(value)
    return text


def to_row(entry: Entry, previous: str) -> Row:
    """Return the row of an entry that follows the row with hash `previous`."""
    event = entry.event
    columns, data = codec.encode(event)
    fields = (
        entry.seq,
        entry.at,
        event.kind,
        event.version,
        columns["model"],
        columns["run"],
        columns["port"],
        columns["pid"],
        entry.cause,
        to_json(data),
    )
    return Row(*fields, chain.link(previous, fields))


def to_entry(row: Row, path: Path | str) -> Entry:
    """Return the entry of a row. Raises CorruptLogError when it cannot be understood."""
    seq, at, kind, version, model, run, port, pid, cause, data, _hash = row
    columns = {"model": model, "run": run, "port": port, "pid": pid}
    try:
        event = codec.decode(kind, version, columns, to_object(data))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptLogError(str(path), seq, str(error)) from error
    return Entry(seq, at, cause, event)


def to_object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`. Raises ValueError when it is none."""
    try:
        value, end = _scan(text, 0)
        if end != len(text):  # never what we write
            value = json.loads(text)
    except StopIteration as stop:
        raise ValueError(f"the data is no JSON at character {stop.value}") from None
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None
    if value.__class__ is not dict:
        raise ValueError("the data is no JSON object")
    found: dict[str, Any] = value
    return found


def to_snapshots(found: Iterable[tuple[Any, ...]], fold_version: int) -> Iterator[Snapshot]:
    """Yield snapshots of what a query of seq and `state_bytes` finds.

    A cache that cannot be read is none: it is passed over.
    """
    for seq, state in found:
        try:
            data = to_object(str(state, "utf-8"))
        except (ValueError, TypeError):
            continue
        yield Snapshot(seq, fold_version, data)
