"""Lease and release of a ready model, against a lock's acquire and release in the same run.

Rounds of all sides alternate; the least and the median of the rounds count. The target is 1.5 µs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import common


def per_call(work: Callable[[], object], calls: int, threads: int = 1) -> float:
    """Return the seconds of one call, as the wall clock of all threads together sees it."""
    gate = threading.Barrier(threads + 1)

    def repeat() -> None:
        gate.wait()
        for _ in range(calls):
            work()
        gate.wait()

    team = [threading.Thread(target=repeat) for _ in range(threads)]
    for thread in team:
        thread.start()
    gate.wait()
    started = time.perf_counter()
    gate.wait()
    elapsed = time.perf_counter() - started
    for thread in team:
        thread.join()
    return elapsed / (calls * threads)


def measure(calls: int, rounds: int) -> common.Results:
    lock = threading.Lock()

    def lock_pair() -> None:
        lock.acquire()
        lock.release()

    with common.service(lambda _: [common.trivial("m", aliases=("alias",))]) as (service, _):
        service.start("m")

        def lease_pair() -> None:
            service.lease("m").release()

        def with_lease() -> None:
            with service.lease("alias"):
                pass

        sides: dict[str, tuple[Callable[[], None], int]] = {
            "lock": (lock_pair, 1),
            "lease": (lease_pair, 1),
            "with lease": (with_lease, 1),
            "lock, 8 threads": (lock_pair, 8),
            "lease, 8 threads": (lease_pair, 8),
        }
        seen: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, (work, threads) in sides.items():
                seen[name].append(per_call(work, calls // threads, threads))
    results: dict[str, float] = {}
    for name, times in seen.items():
        found = common.spread(times, 1e6)
        results |= {f"{name}, least µs": found["min"], f"{name}, median µs": found["median"]}
    pairs = zip(seen["lease"], seen["lock"], strict=True)
    ratios = [lease / lock_time for lease, lock_time in pairs]
    return results | {"lease / lock, median": common.spread(ratios)["median"]}


def main() -> None:
    options = common.arguments(
        __doc__, calls=(40_000, "a round and side"), rounds=(25, "of all sides")
    )
    common.report(measure(options.calls, options.rounds), as_json=options.json)


if __name__ == "__main__":
    main()
