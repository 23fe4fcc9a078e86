"""Events to and from what the log stores. Older versions are upcast here, on read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from moorage.core.events import KINDS, Event

COLUMNS = ("model", "run", "port", "pid")

_FIELDS = {kind: tuple(f.name for f in dataclasses.fields(cls)) for kind, cls in KINDS.items()}


class _Shape(NamedTuple):
    """What is to be known of a kind: its fields, its columns, what JSON gives back as a list."""

    cls: type[Event]
    version: int
    names: frozenset[str]
    columns: tuple[str, ...]
    sequences: tuple[str, ...]


def _shape(cls: type[Event]) -> _Shape:
    written = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    columns = tuple(name for name in COLUMNS if name in written)
    sequences = tuple(name for name in written if "tuple" in written[name])
    return _Shape(cls, cls.version, frozenset(written), columns, sequences)


_SHAPES = {kind: _shape(cls) for kind, cls in KINDS.items()}

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
    """Rebuild an event from columns and data (lists become tuples); takes the data over.

    Raises UnknownKindError for a kind or version of a newer program and ValueError for data that
    does not fit.
    """
    shape = _SHAPES.get(kind)
    if shape is None or version > shape.version:
        raise UnknownKindError(f"event {kind!r} version {version} is not known to this program")
    cls, current, names, placed, sequences = shape
    while version < current:
        data, version = UPCASTS[kind, version](data), version + 1
    for name in sequences:
        if name in data:
            data[name] = frozen(data[name])
    for name in placed:
        data[name] = columns[name]
    if data.keys() != names:  # a field was not written, or is none of this kind
        return _filled(cls, data)
    event = object.__new__(cls)  # a third of what `__init__` costs, and a replay makes a million
    object.__setattr__(event, "__dict__", data)
    return event


def _filled(cls: type[Event], data: dict[str, Any]) -> Event:
    try:
        return cls(**data)
    except TypeError as error:
        raise ValueError(f"event {cls.kind!r} has data that does not fit: {error}") from error


def frozen(value: Any) -> Any:
    """Return lists as tuples, all the way down."""
    if value.__class__ is list:  # isinstance would make its items unknown to the type checker
        # A list is made faster than a generator, and this is where a replay spends its time.
        return tuple([frozen(item) if item.__class__ is list else item for item in value])
    return value
