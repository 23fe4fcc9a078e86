"""Those who read the log beside its owner: what they cost it, and how one that pins it is told."""

from __future__ import annotations

import math
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from log.making import entries, released, some
from moorage import ModelService
from moorage.actors import deadlines
from moorage.core.events import Entry
from moorage.log import engine, upkeep
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from support.services import server, settle

Beside = Callable[[], AbstractContextManager[object]]

APPENDS = 1000
"""A round of them holds a checkpoint, too, which readers could hinder."""
PAIRS = (16, 32, 64, 128, 256, 512)
"""So many rounds alone and beside a reader are compared before a verdict is looked for."""
A_TENTH = 1.1
SURE = 3.3
"""Standard deviations that a median is beyond once in a thousand."""
WAL_LIMIT_BYTES = 2 * engine._JOURNAL_BYTES
"""Beyond a checkpoint's worth, for what is written while a page is read."""

LOOPER = """
import select, sys
from moorage.log.reader import LogReader
def asked():
    return select.select([sys.stdin], [], [], 0)[0]
def loop(reader):
    while True:
        for place, _ in enumerate(reader.read()):
            if place % 100 == 0 and asked():
                return
with LogReader(sys.argv[1]) as reader:
    while True:
        print("reading", flush=True)
        loop(reader)
        sys.stdin.readline()
        print("resting", flush=True)
        sys.stdin.readline()
"""

RUDE = """
import select, sqlite3, sys
connection = sqlite3.connect(sys.argv[1] + "/moorage.db", isolation_level=None)
while True:
    print("reading", flush=True)
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        connection.execute("BEGIN IMMEDIATE")
        select.select([sys.stdin], [], [], 0.004)
        connection.execute("COMMIT")
    sys.stdin.readline()
    print("resting", flush=True)
    sys.stdin.readline()
"""

FOREIGN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1] + "/moorage.db", isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM events").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


@contextmanager
def reading(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a reader in a process of its own until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        hear(process, "reading")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def hear(process: subprocess.Popen[str], what: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{what}\n"


def ask(process: subprocess.Popen[str], what: str) -> None:
    """Have a reader rest or read, and wait until it does: resting, it holds nothing open."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    hear(process, what)


@contextmanager
def reading_at_times(script: str, folder: Path) -> Iterator[Beside]:
    """Run a reader that reads only in the blocks that are asked for."""
    with reading(script, folder) as process:
        ask(process, "resting")

        @contextmanager
        def beside() -> Iterator[None]:
            ask(process, "reading")
            yield
            ask(process, "resting")

        yield beside


@dataclass(frozen=True)
class Took:
    """How long a round of appends took, and how much of that it waited for a processor."""

    wall_s: float
    waited_s: float

    @property
    def own_s(self) -> float:
        """What it ran, or waited for locks and the disk.

        Any busy process makes it wait for a processor; it is left out as no doing of the log.
        """
        return self.wall_s - self.waited_s


def take(log: SqliteLog) -> Took:
    """Append a round."""
    waited, began = waited_s(), time.perf_counter()
    for _ in range(APPENDS):
        log.append(some(1, after=log.head))
    return Took(time.perf_counter() - began, waited_s() - waited)


def waited_s() -> float:
    """Return how long this thread was ready to run while all processors were taken."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def grow(log: SqliteLog) -> None:
    """Write more than the -wal holds between two checkpoints, several times."""
    for _ in range(120):
        log.append(entries([released(1, error="x" * 400_000)], after=log.head))


def slowdown(log: SqliteLog, beside: Beside) -> tuple[float, float]:
    """Return between what the median lies of appends' time beside a reader to that without.

    Rounds of both kinds take turns, so that what else the machine does is met by both; there are
    as many as it takes to tell whether the median is beyond a tenth.
    """
    pairs: list[tuple[Took, Took]] = []
    for count in PAIRS:
        while len(pairs) < count:
            pairs.append(_pair(log, beside, first=len(pairs) % 2 == 0))
        low, high = bounds([together.own_s / alone.own_s for together, alone in pairs])
        if high <= A_TENTH or low > A_TENTH:
            break
    wall = statistics.median(together.wall_s / alone.wall_s for together, alone in pairs)
    print(f"slowdown {low:.3f} to {high:.3f}, {wall:.3f} by the wall clock, of {count} pairs")
    return low, high


def _pair(log: SqliteLog, beside: Beside, *, first: bool) -> tuple[Took, Took]:
    """Return a round beside the reader, be it the first or the second, and one alone."""
    alone = None if first else take(log)
    with beside():
        together = take(log)
    return together, alone or take(log)


def bounds(ratios: list[float]) -> tuple[float, float]:
    """Return between which of these numbers their true median lies, but for once in a thousand."""
    ordered, middle = sorted(ratios), len(ratios) / 2
    reach = SURE * math.sqrt(len(ratios)) / 2
    return ordered[math.floor(middle - reach)], ordered[math.ceil(middle + reach) - 1]


@pytest.fixture
def log(folder: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog.open(folder)) as log:
        log.append(some(3000))
        yield log


def test_a_reader_that_stays_in_the_middle_of_the_log_keeps_no_wal(
    log: SqliteLog, folder: Path
) -> None:
    """It has read a page and goes on minutes later: nothing is open meanwhile."""

    @contextmanager
    def begun() -> Iterator[Iterator[Entry]]:
        with LogReader(folder) as reader:
            read = reader.read()
            next(read)
            yield read

    with begun() as read:
        grow(log)
        size = Path(f"{log.path}-wal").stat().st_size
        rest = sum(1 for _ in read)

    assert size <= WAL_LIMIT_BYTES
    assert rest == log.head - 1


def test_a_reader_that_loops_lets_the_wal_be_written_over(log: SqliteLog, folder: Path) -> None:
    sizes: list[int] = []
    with reading(LOOPER, folder):
        for _ in range(5):  # a reader that the machine holds up in a page lets it grow meanwhile
            grow(log)
            sizes.append(Path(f"{log.path}-wal").stat().st_size)
            if sizes[-1] <= WAL_LIMIT_BYTES:
                break

    assert sizes[-1] <= WAL_LIMIT_BYTES, sizes


def test_bounds_enclose_the_median_and_come_closer_with_more_numbers() -> None:
    few, many = (bounds([1 + i / count for i in range(count)]) for count in (16, 512))

    assert few[0] < many[0] < 1.5 < many[1] < few[1]


@pytest.mark.soak  # it takes as long as it takes to be sure
@pytest.mark.parametrize("reader", ["resting", "looping"])
def test_a_reader_slows_appends_by_no_more_than_a_tenth(
    log: SqliteLog, folder: Path, reader: str
) -> None:
    @contextmanager
    def resting() -> Iterator[Iterator[Entry]]:
        with LogReader(folder) as opened:
            read = opened.read()
            next(read)
            yield read

    if reader == "resting":
        low, high = slowdown(log, resting)
    else:
        with reading_at_times(LOOPER, folder) as looping:
            low, high = slowdown(log, looping)

    assert high <= A_TENTH, f"the slowdown is between {low:.3f} and {high:.3f}"


@pytest.mark.soak
def test_a_reader_that_takes_the_write_lock_now_and_then_is_found_out(
    log: SqliteLog, folder: Path
) -> None:
    with reading_at_times(RUDE, folder) as rude:
        low, _ = slowdown(log, rude)

    assert low > A_TENTH


@pytest.fixture
def short_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WAL_ALARM_BYTES", 100_000)
    monkeypatch.setattr(deadlines, "NOTE_S", 0.02)


@pytest.mark.usefixtures("short_wal")
def test_a_foreign_reader_that_pins_the_wal_is_named_in_the_status_until_it_leaves(
    reopen: Callable[..., ModelService], folder: Path
) -> None:
    service = reopen()
    service.define(server("a"))
    with reading(FOREIGN, folder) as foreign:
        for _ in range(40):
            service.pin("a")
            service.unpin("a")
        settle(lambda: bool(service.status().warnings))
        (warning,) = service.status().warnings
    assert "cannot shrink" in warning
    assert f"process {foreign.pid} keeps a query" in warning

    settle(lambda: not service.status().warnings)
    service.pin("a")
    assert service.status().log_problem == ""


@pytest.mark.usefixtures("short_wal")
def test_an_idle_service_brings_its_wal_into_the_database(
    reopen: Callable[..., ModelService], folder: Path
) -> None:
    """So that a copy of the database alone, or a -wal that gets lost, misses little."""
    service = reopen()
    service.define(server("a"))
    head = service.status().seq

    def checkpointed() -> bool:
        path = f"file:{folder}/moorage.db?immutable=1"
        with closing(sqlite3.connect(path, uri=True)) as plain:
            (found,) = plain.execute("SELECT max(seq) FROM events").fetchone()
        return found is not None and found >= head

    settle(checkpointed)
