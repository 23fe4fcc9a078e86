"""Durable appends against plain sqlite3 with the same durability, in the same run.

Prints, for one event a commit and for a hundred, the rate of each and their ratio. The plain side
inserts the same columns, ready made, into a table without index, trigger or hash. Rounds of both
sides alternate, and the median of each counts.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import get_args

from moorage.core.events import Entry, RunReleased
from moorage.log.engine import Synchronous
from moorage.log.rows import Row, to_row
from moorage.log.sqlite import SqliteLog

ROUNDS = 8
AT = "2026-01-31T23:59:59.123456Z"

WARM_UP_EVENTS = 2_000  # enough for the -wal to have its full length, which only grows once

type_batch = tuple[list[Entry], list[Row]]


def batches(first: int, count: int, times: int) -> Iterator[type_batch]:
    """Yield ready entries for our side and ready rows, hash included, for the plain one."""
    for start in range(first, first + count * times, count):
        entries = [entry(start + i) for i in range(count)]
        yield entries, [to_row(each, "0" * 64) for each in entries]


def entry(seq: int) -> Entry:
    event = RunReleased(
        model="smollm2",
        run=seq,
        port=18_000 + seq % 1000,
        outcome="ok",
        seconds=12.5,
        ready_s=11.25,
    )
    return Entry(seq, AT, seq - 1 or None, event)


@contextmanager
def ours(folder: Path, synchronous: Synchronous) -> Iterator[Callable[[type_batch], None]]:
    log = SqliteLog.open(folder / "state", synchronous=synchronous)
    with closing(log):
        yield lambda batch: log.append(batch[0])


@contextmanager
def plain(folder: Path, synchronous: Synchronous) -> Iterator[Callable[[type_batch], None]]:
    database = sqlite3.connect(folder / "plain.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {synchronous}")
    columns = ", ".join(Row._fields)
    database.execute(f"CREATE TABLE events ({columns.replace('seq', 'seq INTEGER PRIMARY KEY')})")
    insert = f"INSERT INTO events VALUES ({', '.join('?' * len(Row._fields))})"  # noqa: S608

    def append(batch: type_batch) -> None:
        database.execute("BEGIN IMMEDIATE")
        database.executemany(insert, batch[1])
        database.execute("COMMIT")

    with closing(database):
        yield append


def rate(append: Callable[[type_batch], None], work: Sequence[type_batch]) -> float:
    """Return events a second."""
    started = time.perf_counter()
    for batch in work:
        append(batch)
    return sum(len(batch[0]) for batch in work) / (time.perf_counter() - started)


def compare(synchronous: Synchronous, count: int, events: int) -> tuple[float, float]:
    """Return the median rates of ours and plain over rounds that alternate."""
    per_round = events // ROUNDS // count
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ours(folder, synchronous) as append, plain(folder, synchronous) as append_plain:
            warm_up = list(batches(1, count, WARM_UP_EVENTS // count))
            rates = [(rate(append, warm_up), rate(append_plain, warm_up))]
            for index in range(ROUNDS):
                first = 1 + WARM_UP_EVENTS + index * per_round * count
                work = list(batches(first, count, per_round))
                rates.append((rate(append, work), rate(append_plain, work)))
    medians = [statistics.median(side) for side in zip(*rates[1:], strict=True)]
    return medians[0], medians[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=16_000, help="for each side and line")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    sides = [(s, count) for s in get_args(Synchronous)[:2] for count in (1, 100)]
    rates = {side: compare(*side, options.events) for side in sides}
    if options.json:
        ratios = {f"{s}, {n} a commit: moorage / plain": a / b for (s, n), (a, b) in rates.items()}
        print(json.dumps(ratios))
        return
    print("synchronous  events/commit     moorage/s       plain/s   ratio")
    for (synchronous, count), (ours_rate, plain_rate) in rates.items():
        print(
            f"{synchronous:<11} {count:>14} {ours_rate:>13,.0f} {plain_rate:>13,.0f}"
            f" {ours_rate / plain_rate:>7.2f}"
        )


if __name__ == "__main__":
    main()
