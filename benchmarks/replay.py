"""How long a log of a million events takes to become a state again, and how much memory.

`python benchmarks/replay.py [--events 1000000] [--json]` writes a log of synthetic but valid runs
(loads, evictions, undone drains, crashes, failed starts) and then measures, each in a process of
its own: rebuilding the state without a snapshot, opening a service's ledger with one, and
`verify`. The peak memory of a rebuild is measured on a tenth of the log as well: it stays flat.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import common

from moorage.actors.ledger import Ledger
from moorage.core.events import Entry, LogCreated
from moorage.core.fold import FOLD_VERSION, replay
from moorage.core.snapshot import state_to_data
from moorage.core.state import State
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from moorage.log.verify import flaws
from moorage.protocols import Snapshot
from moorage.world.clock import SystemClock
from support.history import History

BATCH = 2_000
RUNS = 1 << 40  # more than are ever drawn


def entries(log_id: str, count: int) -> Iterator[Entry]:
    for entry in islice(History().entries(RUNS), count):
        if isinstance(entry.event, LogCreated):
            yield entry._replace(event=dataclasses.replace(entry.event, log_id=log_id))
        else:
            yield entry


def write(folder: Path, events: int) -> None:
    """Write a log without a snapshot."""
    log = SqliteLog.open(folder, synchronous="NORMAL")
    source = entries(log.log_id, events)
    while batch := list(islice(source, BATCH)):
        log.append(batch)
    log.close()


def rebuild(folder: Path) -> State:
    with LogReader(folder) as reader:
        return replay(reader.read())


def add_snapshot(folder: Path) -> None:
    """Leave a snapshot as far behind the end as one may be."""
    behind = 1_999
    with LogReader(folder) as reader:
        state = replay(reader.read(limit=reader.head - behind))
    log = SqliteLog.open(folder)
    log.append((), snapshot=Snapshot(state.seq, FOLD_VERSION, state_to_data(state)))
    log.close()


def reopen(folder: Path) -> None:
    log = SqliteLog.open(folder)
    Ledger(log, SystemClock(), lambda _entries: None)
    log.close()


def verify(folder: Path) -> None:
    with LogReader(folder) as reader:
        assert not list(flaws(reader, refold=True))


WORK = {"rebuild": rebuild, "reopen": reopen, "verify": verify}


def measured(work: str, folder: Path) -> dict[str, float]:
    """Do one piece of work in a process of its own."""
    command = [sys.executable, __file__, work, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def labelled(what: str, found: dict[str, float]) -> dict[str, float]:
    return {f"{what}: {name}": value for name, value in found.items()}


def child(work: str, folder: Path) -> None:
    if work == "reopen":
        WORK[work](folder)  # the imports of the first time are not the log's
    started, used = time.perf_counter(), time.process_time()
    WORK[work](folder)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu_s": cpu, "peak_mb": peak}))


def main() -> None:
    options = common.arguments(__doc__ or "", events=(1_000_000, "events of the log"))
    results: dict[str, float] = {}
    with common.folder() as made:
        for name, events in (("a tenth", options.events // 10), ("all", options.events)):
            write(made / name, events)
            results |= labelled(f"rebuild, {name}", measured("rebuild", made / name))
        results |= labelled("verify, all", measured("verify", made / "all"))
        add_snapshot(made / "all")
        results |= labelled("reopen, all", measured("reopen", made / "all"))
    common.report({"events": options.events, **results}, as_json=options.json)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WORK:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
