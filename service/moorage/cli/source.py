"""The log a command reads: where it is, what it adds up to, and who owns it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from moorage.core.fold import FOLD_VERSION
from moorage.core.invariants import CONTRADICTIONS, check, fold
from moorage.core.snapshot import cached_state
from moorage.core.state import State
from moorage.errors import ConfigurationError, CorruptLogError, MoorageError, UnknownModelError
from moorage.log.reader import Filter, LogReader
from moorage.log.verify import flaws

VARIABLE = "MOORAGE_STATE"


def place(given: str | None) -> Path:
    """Return the state a command was told to look at.

    Raises ConfigurationError when it was told nothing.
    """
    named = given if given is not None else os.environ.get(VARIABLE, "")
    if not named:
        raise ConfigurationError(
            "state", f"which log? name its folder with --state DIR, or set {VARIABLE}"
        )
    return Path(named)


@contextmanager
def reading(given: str | None) -> Generator[LogReader]:
    """Read the log a command was told to look at.

    Entries are not looked at one by one, see `shape`: when something goes wrong with what they
    say, it is their fault if there is a flaw in them, and a fault of ours otherwise. Raises
    CorruptLogError in the first case.
    """
    with LogReader(place(given)) as reader:
        try:
            yield reader
        except MoorageError:
            raise
        except CONTRADICTIONS as error:
            found = next(flaws(reader, refold=True), None)
            if found is None:
                raise
            raise CorruptLogError(reader.path, found.seq, found.problem) from error


def state_at(reader: LogReader, seq: int | None = None) -> State:
    """Return the state after an entry, by default the last; begins at the nearest snapshot.

    Raises CorruptLogError when the log contradicts itself.
    """
    state = _nearest(reader, seq)
    for entry in reader.read(state.seq, until=seq):
        fold(state, entry, reader.path)
    check(state, reader.path)
    return state


def _nearest(reader: LogReader, seq: int | None) -> State:
    cached = reader.snapshot(FOLD_VERSION, until=seq)
    state = cached_state(cached.seq, cached.state) if cached is not None else None
    return state or State()  # where the cache is of no use, the entries themselves are there


def model_called(reader: LogReader, name: str) -> str:
    """Return the name of the model that has this name or alias, or had it as its name.

    Raises UnknownModelError.
    """
    names = state_at(reader).names
    if name in names:
        return names[name]
    # No name has another letter, and those of an argument that is no UTF-8 cannot be asked for.
    if name.isascii() and any(reader.rows(limit=1, only=Filter(model=name))):
        return name
    raise UnknownModelError(name, near(name, names))


def near(name: str, names: dict[str, str]) -> list[str]:
    """Return the names that a mistyped one may have meant."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    return difflib.get_close_matches(name, names, n=3)
