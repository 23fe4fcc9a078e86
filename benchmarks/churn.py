"""The soak's load: four models, room for two, two closed-loop clients without retries.

Each request leases a random model, completes one token over HTTP and releases. For each kind of
llama.cpp server that runs here: completions a second, and how long a request takes. With
`--router 1` the same load also goes to llama-server's own router, in rounds that alternate.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common

from moorage.gguf import write_tiny
from moorage.protocols import LOOPBACK
from soak import load

ROUNDS = 5
_LIMIT_S = 30.0


def churn(kind: str, seconds: float) -> tuple[load.Tally, int]:
    """Return what became of the requests, and how many loads there were."""
    fields = load.fields_of(kind)
    assert fields is not None

    def specs(folder: Path) -> tuple[common.ModelSpec, ...]:
        return load.specs(folder / "tiny.gguf", fields)

    with common.service(specs) as (service, _):
        tally = load.run(service, seconds=seconds)
        loads = service._runtime.registry.state.next_run - 1  # noqa: SLF001  no public count
    return tally, loads


@contextmanager
def router(folder: Path) -> Iterator[int]:
    """Run llama-server's router over the same models with the same room; yield its port."""
    fields = load.fields_of("binary")
    assert fields is not None, "the llama-server binary cannot run here"
    for name in load.MODELS:
        write_tiny(folder / "models" / f"{name}.gguf")
    port = common.free_port()
    place = ["--models-dir", str(folder / "models"), "--host", LOOPBACK, "--port", str(port)]
    place += ["--models-max", "2"]
    for name, value in load.SETTINGS.items():
        place += [f"--{name.replace('_', '-')}", str(value)]
    with (folder / "router.log").open("ab") as log:
        process = subprocess.Popen(
            [fields["executable"], *place], stdout=log, stderr=log, start_new_session=True
        )
    try:
        until = time.monotonic() + _LIMIT_S
        while not common.healthy(port, "/health"):
            assert process.poll() is None, "the router exited"
            assert time.monotonic() < until, "the router does not answer"
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def churn_router(seconds: float) -> load.Tally:
    with common.folder() as folder:
        (folder / "models").mkdir()
        with router(folder) as port:
            return load.run_clients(lambda name: load.complete(port, name), seconds=seconds)


def measure(seconds: float) -> common.Results:
    results: dict[str, Any] = {}
    for kind in load.KINDS:
        if load.fields_of(kind) is None:
            continue
        tally, loads = churn(kind, seconds)
        assert not tally.failures, tally.failures[:3]
        results |= {
            f"{kind}: completions/s": tally.per_second,
            f"{kind}: loads/s": loads / tally.elapsed_s,
            f"{kind}: failures": len(tally.failures),
            f"{kind}: p50 ms": tally.quantile(0.5) * 1e3,
            f"{kind}: p99 ms": tally.quantile(0.99) * 1e3,
            f"{kind}: max ms": tally.quantile(1.0) * 1e3,
        }
    return results


def compare(seconds: float) -> common.Results:
    """Alternate rounds of ours and the router's, with the same binary."""
    sides: dict[str, Callable[[], load.Tally]] = {
        "moorage": lambda: churn("binary", seconds / ROUNDS)[0],
        "router": lambda: churn_router(seconds / ROUNDS),
    }
    seen: dict[str, list[load.Tally]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, run in sides.items():
            seen[name].append(run())
    failures = [failure for tally in seen["moorage"] for failure in tally.failures]
    assert not failures, failures[:3]
    results: dict[str, Any] = {}
    for name, tallies in seen.items():
        results |= {
            f"{name}, completions/s, median": statistics.median(t.per_second for t in tallies),
            f"{name}, failures": sum(len(t.failures) for t in tallies),
            f"{name}, max ms": max(t.quantile(1.0) for t in tallies) * 1e3,
        }
    pairs = zip(seen["moorage"], seen["router"], strict=True)
    ratios = [ours.per_second / theirs.per_second for ours, theirs in pairs]
    return results | {"moorage / router, median of rounds": statistics.median(ratios)}


def main() -> None:
    options = common.arguments(
        __doc__,
        seconds=(20.0, "for each kind of server"),
        router=(0, "1: compare with llama-server's own router"),
    )
    measured = compare if options.router else measure
    common.report(measured(options.seconds), as_json=options.json)


if __name__ == "__main__":
    main()
