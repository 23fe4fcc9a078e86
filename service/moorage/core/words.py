"""Numbers in words, as people read them."""

from __future__ import annotations

from typing import Final

_BYTE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_THOUSAND: Final = 1000


def size(amount: int) -> str:
    """Return bytes in decimal units, as disks and downloads are measured."""
    if amount < _THOUSAND:
        return f"{amount} B"
    value = float(amount)
    for unit in _BYTE_UNITS:
        value /= _THOUSAND
        if round(value, 1) < _THOUSAND:
            return f"{value:.1f} {unit}"
    return f"{value:.1f} {_BYTE_UNITS[-1]}"


def seconds(amount: float) -> str:
    """Return a duration, in milliseconds below one second."""
    if amount < 1:
        return f"{amount * _THOUSAND:.0f} ms"
    return f"{amount:.1f} s" if amount < _MINUTE_S else age(amount)


def age(amount: float) -> str:
    """Return how long ago something was, in its two largest units."""
    whole = max(0, int(amount))
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"
