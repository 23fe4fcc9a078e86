"""Eight threads lease, release and stop one model: how fast, and does a build ever overlap another.

Each server takes a lock on one file while it lives and writes down when it finds it taken; the log
is asked as well. Both have to say that no two servers of the model were alive at once.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import common

from moorage import ModelService
from moorage.core.fold import apply
from moorage.core.state import State
from moorage.log.reader import LogReader

THREADS = 8


def hammer(service: ModelService, seconds: float) -> tuple[int, list[str]]:
    """Return how many rounds all threads made, and what failed."""
    rounds = [0] * THREADS
    failures: list[str] = []
    until = time.monotonic() + seconds

    def work(index: int) -> None:
        while time.monotonic() < until:
            try:
                with service.lease("m", timeout_s=30):
                    pass
                service.stop("m")
            except Exception as error:  # noqa: BLE001  any failure at all is what is looked for
                failures.append(f"{type(error).__name__}: {error}")
            else:
                rounds[index] += 1

    team = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return sum(rounds), failures


def overlaps(state: Path) -> int:
    """Return how many prefixes of the log have two runs of the model that hold room."""
    folded, found = State(), 0
    for entry in LogReader(state).read():
        apply(folded, entry)
        found += len(list(folded.holding())) > 1
    return found


def measure(seconds: float) -> common.Results:
    def specs(folder: Path) -> list[common.ModelSpec]:
        (folder / "alive").touch()
        return [common.trivial("m", str(folder / "alive"))]

    with common.service(specs) as (service, folder):
        rounds, failures = hammer(service, seconds)
        builds = service._runtime.registry.state.next_run - 1  # noqa: SLF001  no public count
        overlapping = (folder / "alive").read_text().count("overlap")
        in_log = overlaps(folder / "state")
    assert not failures, failures[:3]
    assert overlapping == in_log == 0, f"{overlapping} overlapping builds, {in_log} in the log"
    return {
        "threads": THREADS,
        "lease, release and stop, rounds/s": rounds / seconds,
        "builds": builds,
        "builds/s": builds / seconds,
        "rounds served by a build": rounds / builds,
        "overlapping builds": overlapping,
        "failures": len(failures),
    }


def main() -> None:
    options = common.arguments(__doc__, seconds=(10.0, "how long"))
    common.report(measure(options.seconds), as_json=options.json)


if __name__ == "__main__":
    main()
