"""What a log added up to at any point of its past."""

from __future__ import annotations

from datetime import UTC, datetime

from moorage.cli import source
from moorage.core.fold import FOLD_VERSION
from moorage.core.snapshot import state_from_data
from moorage.core.state import State
from moorage.errors import ConfigurationError
from moorage.log.reader import LogReader


def state_at(reader: LogReader, seq: int | None = None) -> State:
    """Return the state after an entry, by default the last; begins at the nearest snapshot.

    Raises CorruptLogError when the log contradicts itself.
    """
    state = _nearest(reader, seq)
    for entry in reader.read(state.seq, until=seq):
        source.fold(state, entry, reader.path)
    return state


def _nearest(reader: LogReader, seq: int | None) -> State:
    cached = reader.snapshot(FOLD_VERSION, until=seq)
    if cached is not None:
        try:
            return state_from_data(cached.state)
        except (LookupError, TypeError, ValueError, ConfigurationError):
            pass  # a cache of no use: the entries themselves are there
    return State()


def point(reader: LogReader, text: str) -> int:
    """Return the seq of a point given as a seq or as a time; a time without zone is UTC.

    Raises ConfigurationError.
    """
    if text.isdecimal():
        seq, head = int(text), reader.head
        if seq > head:
            raise ConfigurationError("--at", f"the log has no event {seq}, it ends at {head}")
    else:
        seq = reader.seq_at(log_time(text))
    if seq < reader.first and reader.first > 1:
        raise ConfigurationError(
            "--at",
            f"what is here of the log begins with event {reader.first}; the older segments are "
            "missing, bring them back into the folder `archive`",
        )
    return seq


def log_time(text: str) -> str:
    """Return a time as the log writes it. Raises ConfigurationError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            "--at", f"{text!r} is neither an event's number nor a time like 2026-01-31T23:59:59Z"
        ) from None
    moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
