"""Whether values are what their dataclasses say: a log that was tampered with may hold anything."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from types import UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from moorage.core.events import Entry
from moorage.spec import ModelSpec

_Check = Callable[[Any], bool]

_TIMES: Final = frozenset(
    {"at", "until", "began_at", "reserved_at", "launched_at", "ready_at"}
)  # as text, '' for none
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_MOST: Final = 1 << 63


def misfit(value: Any) -> str:
    """Return the first field of a dataclass that holds what it cannot mean, '' for none.

    Reading does not look: no writer of ours makes one, and a replay has a million events to read.
    """
    fields = _fields(value.__class__)
    return next((name for name, fits in fields if not fits(getattr(value, name))), "")


def flaw(entry: Entry) -> str:
    """Return what is wrong with an entry by itself, '' for nothing."""
    if not _is_time(entry.at):
        return "has a time that is none"
    if entry.cause is not None and not _is_whole(entry.cause):
        return "has a cause that is no row"
    name = misfit(entry.event)
    return f"has a {name} of a type that no such event has" if name else ""


@cache
def _fields(cls: Any) -> tuple[tuple[str, _Check], ...]:
    hints = get_type_hints(cls)
    return tuple(
        (each.name, _is_time_or_none if each.name in _TIMES else _check(hints[each.name]))
        for each in dataclasses.fields(cls)
    )


def _check(hint: Any) -> _Check:
    plain = _PLAIN.get(hint)
    if plain is not None:
        return plain
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        checks = tuple(map(_check, parts))
        return lambda value: any(fits(value) for fits in checks)
    if origin is tuple:
        return _tuple(parts)
    if origin is dict:
        return _dict(*map(_check, parts))
    cls = cast("type[Any]", hint)
    if dataclasses.is_dataclass(cls) and cls is not ModelSpec:  # which checks itself
        return lambda value: isinstance(value, cls) and not misfit(value)
    return lambda value: isinstance(value, cls)


def _tuple(parts: tuple[Any, ...]) -> _Check:
    if parts[-1] is Ellipsis:
        return partial(_are, tuple, _check(parts[0]))
    checks = tuple(map(_check, parts))

    return lambda value: (
        value.__class__ is tuple
        and len(value) == len(checks)
        and all(fits(item) for fits, item in zip(checks, value, strict=True))
    )


def _are(cls: type[Any], each: _Check, value: Any) -> bool:
    return isinstance(value, cls) and all(map(each, value))


def _dict(key: _Check, item: _Check) -> _Check:
    return lambda value: _are(dict, key, value) and all(map(item, value.values()))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value < _MOST


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else _is_whole(value)


def _is_time_or_none(value: Any) -> bool:
    return value == "" or _is_time(value)


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


_PLAIN: Final[dict[Any, _Check]] = {
    Any: lambda value: True,  # noqa: ARG005 - whatever it is
    None: lambda value: value is None,
    int: _is_whole,
    float: _is_number,
}
