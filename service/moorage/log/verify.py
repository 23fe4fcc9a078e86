"""Whether a log is whole: every row in its place, unchanged, none cut off, and sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from moorage.core import chain
from moorage.core.events import Entry, LogContinued
from moorage.core.fold import FOLD_VERSION, apply
from moorage.core.invariants import CONTRADICTIONS, violations
from moorage.core.shape import flaw
from moorage.core.snapshot import state_to_data
from moorage.core.state import State
from moorage.errors import CorruptLogError
from moorage.log import segments
from moorage.log.files import StateFiles
from moorage.log.head import Head, read_head
from moorage.log.reader import LogReader
from moorage.log.rows import Row, to_entry, to_json
from moorage.protocols import Snapshot

_TELL_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Flaw:
    """A row that is not as it was written; `seq` names the first one concerned.

    `unsound` where nothing can be told from a state that it was folded into.
    """

    seq: int
    problem: str
    unsound: bool = False


def flaws(
    reader: LogReader, *, refold: bool = False, tell: Callable[[int], None] | None = None
) -> Iterator[Flaw]:
    """Yield every flaw, in order; nothing when the log is whole.

    After a changed row the check goes on from the hash that row says, so that each change is
    named once. `refold` also folds the rows: none contradicts those before it, every invariant
    holds after each, and snapshots are what the rows add up to. `tell` is given the seq reached,
    now and then.
    """
    # Read first: it may be behind the rows when they are read, never ahead of them.
    head = head_beside(reader)
    folding = _Refold(reader) if refold else None
    before = reader.before
    if before.seq:
        yield _gap(reader, before.seq)
    previous, seq, at_head = before.hash, before.seq, before.hash
    for row in reader.rows():
        found, entry = _alone(row, Head(seq, previous), reader.path)
        yield from found
        if entry is None:
            folding = None
        elif folding is not None:
            yield from folding.add(entry)
        previous, seq = row.hash, row.seq
        if head is not None and row.seq == head.seq:
            at_head = row.hash
        if tell is not None and seq % _TELL_ROWS == 0:
            tell(seq)
    if head is None or head.seq >= before.seq:  # else it was behind when that segment began
        yield from _cut(head, seq, at_head)


def _gap(reader: LogReader, last: int) -> Flaw:
    """Name the rows whose segments are not there; what is left begins with a base state."""
    folder = segments.archive_of(Path(reader.path))
    known = [each.last for each in segments.archived(folder) if each.last < last]
    first = max(known, default=0) + 1
    also = f", and all up to row {last}" if last > first else ""
    return Flaw(first, f"is missing{also}: no segment in {folder} holds it")


def head_beside(reader: LogReader) -> Head | None:
    """Return the head kept beside the database of a state folder; a copy has none."""
    files = StateFiles(Path(reader.path).parent)
    return read_head(files.head) if Path(reader.path) == files.database else None


def _alone(row: Row, before: Head, path: str) -> tuple[list[Flaw], Entry | None]:
    """Return what is wrong with a row by itself, and its entry where that can be folded."""
    found = list(_misplaced(row, before.hash, before.seq))
    try:
        entry = to_entry(row, path)
    except CorruptLogError as error:
        return [*found, Flaw(row.seq, f"cannot be understood: {error.problem}")], None
    if problem := flaw(entry):
        found = [replace(each, unsound=True) for each in found]
        return found or [Flaw(row.seq, problem, unsound=True)], None
    return [*found, *_misled(entry, before.hash)], entry


def _misplaced(row: Row, previous: str, seq: int) -> Iterator[Flaw]:
    if row.seq != seq + 1:
        yield Flaw(seq + 1, f"is missing; row {row.seq} follows row {seq}")
    elif not _linked(row, previous):
        yield Flaw(row.seq, "was changed, or the row before it was: its hash does not fit")


def _linked(row: Row, previous: str) -> bool:
    try:
        return chain.link(previous, row[:-1]) == row.hash
    except TypeError:  # a value of a type that no column has
        return False


def _misled(entry: Entry, previous: str) -> Iterator[Flaw]:
    if isinstance(entry.event, LogContinued) and entry.event.base_hash != previous:
        yield Flaw(entry.seq, "names another hash as that of the row before it")
    if entry.cause is not None and entry.cause >= entry.seq:
        yield Flaw(entry.seq, f"names a later row, {entry.cause}, as its cause")


def _cut(head: Head | None, seq: int, at_head: str) -> Iterator[Flaw]:
    if head is not None and head.seq > seq:
        yield Flaw(seq + 1, f"is missing: the log was cut, it once ended at row {head.seq}")
    elif head is not None and head.seq and at_head != head.hash:
        yield Flaw(head.seq, "differs from the one that was written there")


class _Refold:
    """Folds the rows again, as far as they go together."""

    def __init__(self, reader: LogReader) -> None:
        self._state: State | None = State()
        self._snapshots = {snapshot.seq: snapshot for snapshot in _snapshots(reader)}

    def add(self, entry: Entry) -> Iterator[Flaw]:
        state = self._state
        if state is None:
            return
        try:
            apply(state, entry)
            broken = violations(state)
        except CONTRADICTIONS as error:
            why = str(error) or type(error).__name__
            yield Flaw(entry.seq, f"contradicts the rows before it: {why}")
            self._state = None
            return
        for problem in broken:
            yield Flaw(entry.seq, f"breaks an invariant: {problem}")
        if broken:
            self._state = None  # each row after it would say the same
        snapshot = self._snapshots.get(entry.seq)
        if snapshot is not None and to_json(snapshot.state) != to_json(state_to_data(state)):
            yield Flaw(entry.seq, "has a snapshot that is not what the rows add up to")


def _snapshots(reader: LogReader) -> Iterator[Snapshot]:
    """Yield the snapshots that an opening would use, newest first."""
    found = reader.snapshot(FOLD_VERSION)
    while found is not None:
        yield found
        found = reader.snapshot(FOLD_VERSION, until=found.seq - 1)
