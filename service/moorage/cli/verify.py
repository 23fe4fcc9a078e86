"""`moorage verify`: whether a log is whole and sound."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from moorage.cli import ps, source, values
from moorage.cli.console import Console, harmless
from moorage.errors import CorruptLogError
from moorage.log.reader import LogReader
from moorage.log.verify import Flaw, flaws, head_beside


def run(options: argparse.Namespace, console: Console) -> int:
    """Print every flaw; 1 when there is one."""
    count = 0
    try:
        with LogReader(source.place(options.state)) as reader:
            end = reader.head
            for flaw in _flaws(reader, end, console):
                count += 1
                _print_flaw(console, flaw)
            _print_end(console, reader, end, count)
    except CorruptLogError as error:  # so bad that it cannot be read to its end
        count += 1
        _print_flaw(console, Flaw(error.seq, error.problem))
    return 1 if count else 0


def _flaws(reader: LogReader, end: int, console: Console) -> Iterator[Flaw]:
    def tell(seq: int) -> None:
        console.progress(f"checked {seq} of {end} rows")

    try:
        yield from flaws(reader, refold=True, tell=tell)
    finally:
        console.progress("")


def _print_flaw(console: Console, flaw: Flaw) -> None:
    console.progress("")
    console.object({"object": "flaw", "seq": flaw.seq, "problem": flaw.problem})
    row = console.paint(f"row {flaw.seq}", "red")
    console.line(f"{row} {harmless(flaw.problem)}")


def _print_end(console: Console, reader: LogReader, end: int, count: int) -> None:
    last = reader.entry(end) if not count else None
    has_head = head_beside(reader) is not None
    console.object(
        {"object": "verify", "rows": end, "flaws": count, "head_known": has_head}
        | {"at": last.at if last is not None else None, "log_id": reader.log_id}
    )
    if count:
        console.line(f"{count} flaws" if count > 1 else "1 flaw")
        return
    when = f", the last of {values.moment(last.at)}{ps.ago(last.at)}" if last is not None else ""
    console.line(f"whole: {end} rows{when}")
    if not has_head:
        console.line("no head is kept beside this copy: rows cut from its end would not show")
