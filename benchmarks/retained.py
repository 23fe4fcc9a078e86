"""What a service still holds after thousands of cold starts that came and went.

One start in ten fails. After a warm-up the process is looked at, again after half of the starts
and after all: memory, threads, descriptors, objects. What is kept for ever grows in the second
half as in the first; caches that fill do not.
"""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import common
import psutil

from moorage import LoadError, ModelService, ModelSpec

WARM_UP = 100
ONE_FAILS_OF = 10
MODELS = 4


def look() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "resident KiB": process.memory_info().rss // 1024,
        "threads": threading.active_count(),
        "descriptors": process.num_fds(),
        "objects": len(gc.get_objects()),
        "child processes": len(process.children(recursive=True)),
    }


def specs(_folder: Path) -> list[ModelSpec]:
    failing = ModelSpec(
        name="failing", backend="command", args=("/bin/false", "{port}"), crash_budget=1_000_000
    )
    return [*(common.trivial(f"m{index}") for index in range(MODELS)), failing]


def start_and_stop(service: ModelService, times: int) -> None:
    for index in range(times):
        if index % ONE_FAILS_OF == 0:
            try:
                service.start("failing")
            except LoadError:
                continue
            raise RuntimeError("a start that cannot succeed did")
        with service.lease(f"m{index % MODELS}"):
            pass
    for index in range(MODELS):
        service.stop(f"m{index}")


def measure(starts: int) -> common.Results:
    half = starts // 2
    with common.service(specs) as (service, folder):
        start_and_stop(service, WARM_UP)
        looks, started = [look()], time.monotonic()
        for _ in range(2):
            start_and_stop(service, half)
            looks.append(look())
        elapsed = time.monotonic() - started
        log_bytes = (folder / "state" / "moorage.db").stat().st_size
        runs = service._runtime.registry.state.next_run - 1  # noqa: SLF001  no public count
    results: dict[str, float | int] = {"cold starts": 2 * half, "starts/s": 2 * half / elapsed}
    for name, value in looks[0].items():
        first, second = looks[1][name] - value, looks[2][name] - looks[1][name]
        results |= {name: value, f"{name}, first half": first, f"{name}, second half": second}
    return results | {"log, KiB per 1,000 starts": log_bytes / 1024 * 1000 / runs}


def main() -> None:
    options = common.arguments(__doc__, starts=(2_000, "cold starts after the warm-up"))
    common.report(measure(options.starts), as_json=options.json)


if __name__ == "__main__":
    main()
