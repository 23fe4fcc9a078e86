"""Events to and from what the log stores. Older versions are upcast here, on read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from moorage.core.events import KINDS, Event

COLUMNS = ("model", "run", "port", "pid")

_FIELDS = {kind: tuple(f.name for f in dataclasses.fields(cls)) for kind, cls in KINDS.items()}

# (kind, version) -> function from that version's data to the next version's.
UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


class UnknownKindError(ValueError):
    """The log holds a kind or version of event this program does not know."""


def encode(event: Event) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split an event into the columns it has (`model run port pid`, None when not) and its data."""
    columns: dict[str, Any] = dict.fromkeys(COLUMNS)
    data: dict[str, Any] = {}
    for name in _FIELDS[event.kind]:
        (columns if name in columns else data)[name] = getattr(event, name)
    return columns, data


def decode(kind: str, version: int, columns: Mapping[str, Any], data: dict[str, Any]) -> Event:
    """Rebuild an event from columns and data (lists become tuples).

    Raises UnknownKindError for a kind or version of a newer program and ValueError for data that
    does not fit.
    """
    cls = KINDS.get(kind)
    if cls is None or version > cls.version:
        raise UnknownKindError(f"event {kind!r} version {version} is not known to this program")
    while version < cls.version:
        data, version = UPCASTS[kind, version](data), version + 1
    values = {name: frozen(value) for name, value in data.items()}
    for name in COLUMNS:
        if name in _FIELDS[kind]:
            values[name] = columns[name]
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"event {kind!r} has data that does not fit: {error}") from error


def frozen(value: Any) -> Any:
    """Return lists as tuples, all the way down."""
    if isinstance(value, list):
        return tuple(frozen(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return value
