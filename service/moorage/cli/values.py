"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from moorage.core.words import age, seconds, size

__all__ = ["age", "moment", "seconds", "since", "size"]


def since(at: str) -> float | None:
    """Return the seconds from a log's time to now, None for what is no time."""
    try:
        then = datetime.fromisoformat(at)
        return (datetime.now(UTC) - then).total_seconds()
    except (ValueError, TypeError):
        return None


def moment(at: str, *, digits: int = 3) -> str:
    """Return a log's time, UTC, with so many digits after the second."""
    whole, dot, rest = at.removesuffix("Z").partition(".")
    return f"{whole}{dot}{rest[:digits]}Z" if digits else f"{whole}Z"
