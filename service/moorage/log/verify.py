"""Whether a log is whole: every row where it belongs, unchanged, and none cut from its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moorage.core import chain
from moorage.errors import CorruptLogError
from moorage.log.files import StateFiles
from moorage.log.head import read_head
from moorage.log.reader import LogReader
from moorage.log.rows import to_entry


@dataclass(frozen=True, slots=True)
class Flaw:
    """A row that is not as it was written; `seq` names the first one concerned."""

    seq: int
    problem: str


def flaws(reader: LogReader) -> Iterator[Flaw]:
    """Yield every flaw, in order; nothing when the log is whole.

    After a changed row the check goes on from the hash that row says, so that each change is
    named once.
    """
    path = Path(reader.path)
    # Read first: it may be behind the rows when they are read, never ahead of them.
    head = read_head(StateFiles(path.parent).head)
    previous, seq, at_head = chain.genesis(reader.log_id), 0, ""
    for row in reader.rows():
        if row.seq != seq + 1:
            yield Flaw(seq + 1, f"is missing; row {row.seq} follows row {seq}")
        elif chain.link(previous, row[:-1]) != row.hash:
            yield Flaw(row.seq, "was changed, or the row before it was: its hash does not fit")
        if row.cause is not None and row.cause >= row.seq:
            yield Flaw(row.seq, f"names a later row, {row.cause}, as its cause")
        try:
            to_entry(row, path)
        except CorruptLogError as error:
            yield Flaw(row.seq, f"cannot be understood: {error}")
        previous, seq = row.hash, row.seq
        if head is not None and row.seq == head.seq:
            at_head = row.hash
    if head is not None and head.seq > seq:
        yield Flaw(seq + 1, f"is missing: the log was cut, it once ended at row {head.seq}")
    elif head is not None and head.seq and at_head != head.hash:
        yield Flaw(head.seq, "differs from the one that was written there")
