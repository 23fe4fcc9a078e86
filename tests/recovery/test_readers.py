"""Those who read the log beside its owner: what they cost it, and how one that pins it is told."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
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

ROUNDS = 60
A_TENTH = 1.1
NOISE = 0.15
"""What a busy machine adds to a ratio of the best of some rounds."""
WAL_LIMIT_BYTES = 2 * engine._JOURNAL_BYTES
"""Beyond a checkpoint's worth, for what is written while a page is read."""

LOOPER = """
import sys
from moorage.log.reader import LogReader
with LogReader(sys.argv[1]) as reader:
    print("reading", flush=True)
    while True:
        for _ in reader.read():
            pass
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
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def seconds(log: SqliteLog) -> float:
    """Return how long some appends take."""
    began = time.perf_counter()
    for _ in range(ROUNDS):
        log.append(some(1, after=log.head))
    return time.perf_counter() - began


def grow(log: SqliteLog) -> None:
    """Write more than the -wal holds between two checkpoints, several times."""
    for _ in range(120):
        log.append(entries([released(1, error="x" * 400_000)], after=log.head))


def slowdown(log: SqliteLog, beside: Callable[[], AbstractContextManager[object]]) -> float:
    """Return the time of appends beside a reader against that without, the best of each.

    The machine is busy with other things, which only ever add to a time.
    """
    alone: list[float] = []
    together: list[float] = []
    for _ in range(20):
        alone.append(seconds(log))
        with beside():
            together.append(seconds(log))
        if len(alone) > 2 and min(together) <= min(alone) * A_TENTH:
            break
    return min(together) / min(alone)


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
    with reading(LOOPER, folder):
        grow(log)
        size = Path(f"{log.path}-wal").stat().st_size

    assert size <= WAL_LIMIT_BYTES


@pytest.mark.soak  # a ratio of times holds on a machine that does nothing else
def test_neither_a_resting_nor_a_looping_reader_slows_appends_by_more_than_a_tenth(
    log: SqliteLog, folder: Path
) -> None:
    @contextmanager
    def resting() -> Iterator[None]:
        with LogReader(folder) as reader:
            next(reader.read())
            yield

    with reading(LOOPER, folder) as looper:

        @contextmanager
        def looping() -> Iterator[None]:
            looper.send_signal(signal.SIGCONT)
            yield
            looper.send_signal(signal.SIGSTOP)

        with looping():
            pass
        ratios = slowdown(log, resting), slowdown(log, looping)

    assert max(ratios) <= A_TENTH + NOISE


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
