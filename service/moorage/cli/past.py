"""Points of a log's past, as people name them."""

from __future__ import annotations

from datetime import UTC, datetime

from moorage.errors import ConfigurationError
from moorage.log.reader import LogReader

_MOST_DIGITS = 19
"""No log has an event whose number is as long as that."""


def point(reader: LogReader, text: str) -> int:
    """Return the seq of a point given as a seq or as a time; a time without zone is UTC.

    Raises ConfigurationError.
    """
    if text.isdecimal() and len(text) < _MOST_DIGITS:
        seq, head = int(text), reader.head
        if seq > head:
            raise ConfigurationError("--at", f"the log has no event {seq}, it ends at {head}")
    else:
        seq = reader.seq_at(log_time(text, "--at"))
    if seq < reader.first and reader.first > 1:
        raise ConfigurationError(
            "--at",
            f"what is here of the log begins with event {reader.first}; the older segments are "
            "missing, bring them back into the folder `archive`",
        )
    return seq


def log_time(text: str, option: str) -> str:
    """Return a time as the log writes it. Raises ConfigurationError."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):  # the latter: before year 1 or after 9999 in UTC
        raise ConfigurationError(
            option, f"{text!r} is neither an event's number nor a time like 2026-01-31T23:59:59Z"
        ) from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
