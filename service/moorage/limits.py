"""What a service may be opened with: ports and limits, checked before anything is touched."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moorage.core.state import MAX_PORT, Ranges, compress
from moorage.errors import ConfigurationError
from moorage.spec import quoted


def port_ranges(ports: Iterable[int]) -> Ranges:
    """Return a port pool as inclusive ranges. Raises ConfigurationError."""
    if isinstance(ports, range) and not ports and ports.start > ports.stop:
        raise ConfigurationError("port range", f"{ports.start}-{ports.stop} is reversed")
    try:
        listed = list(itertools.islice(ports, MAX_PORT + 1))
    except TypeError:
        raise ConfigurationError("port range", f"{quoted(ports)} is no range of ports") from None
    if not listed:
        raise ConfigurationError("port range", "is empty; give at least one port")
    for port in listed:
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= MAX_PORT:
            raise ConfigurationError("port range", f"{quoted(port)} is no port (1 to {MAX_PORT})")
    if len(set(listed)) != len(listed):
        raise ConfigurationError("port range", "names a port twice")
    return compress(listed)


def name(value: Any) -> str:
    """Return what may be a model's name or alias. Raises ConfigurationError."""
    if not isinstance(value, str):
        raise ConfigurationError("name", f"{quoted(value)} is no text")
    return value


def path(subject: str, value: Any) -> Path:
    """Return what names a file or a folder. Raises ConfigurationError."""
    try:
        found = Path(value)
        if value and b"\0" not in os.fsencode(found):
            return found
    except (TypeError, UnicodeError):
        pass
    raise ConfigurationError(subject, f"{quoted(value)} is no path")


def whole(subject: str, value: Any, *, low: int, high: int) -> int:
    """Return a whole number within bounds. Raises ConfigurationError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(
            subject, f"must be a whole number from {low} to {high}, not {quoted(value)}"
        )
    return value


def seconds(subject: str, value: Any, *, high: float = 86_400.0 * 365) -> float:
    """Return a number of seconds, 0 or more. Raises ConfigurationError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(subject, f"must be a number of seconds, not {quoted(value)}")
    if not 0 <= value <= high:  # neither is NaN, nor an integer that no float can hold
        raise ConfigurationError(subject, f"must lie between 0 and {high:g} s, not {quoted(value)}")
    return float(value)
