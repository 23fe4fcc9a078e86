"""Cold lease to ready, minus what the server itself takes, for each kind of server.

The server's own time is that of the same command line spawned by hand and asked every 0.2 ms
until it answers. Both sides alternate; medians count. The target is 10 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import common

from moorage import ModelService, ModelSpec
from moorage.backends import InstalledBackends
from moorage.protocols import LOOPBACK, LaunchPlan, PlanRequest
from soak import load

_POLL_S = 0.0002
_LIMIT_S = 30.0


def kinds(folder: Path) -> Iterator[tuple[str, ModelSpec]]:
    """Yield a model of every kind of server that runs here."""
    yield "trivial Python server", common.trivial("m")
    for kind in load.KINDS:
        fields = load.fields_of(kind)
        if fields is not None:
            yield f"llama.cpp ({kind})", load.specs(folder / "tiny.gguf", fields)[0]


def by_hand(plan: LaunchPlan, env: Mapping[str, str], port: int, output: Path) -> float:
    """Spawn the server, ask it until it answers, kill it; return the seconds to the answer."""
    with output.open("ab") as log:
        started = time.perf_counter()
        process = subprocess.Popen(
            plan.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **plan.env, **env},
            start_new_session=True,
        )
    try:
        while not common.healthy(port, plan.health_path):
            if time.perf_counter() - started > _LIMIT_S or process.poll() is not None:
                raise RuntimeError(f"{plan.argv[0]} did not become ready: {output.read_text()}")
            time.sleep(_POLL_S)  # noqa: TID251  the measured polling itself
        return time.perf_counter() - started
    finally:
        process.kill()
        process.wait()


def by_lease(service: ModelService, name: str) -> float:
    started = time.perf_counter()
    with service.lease(name):
        elapsed = time.perf_counter() - started
    service.stop(name, force=True)
    return elapsed


def compare(kind: str, spec: ModelSpec, folder: Path, times: int) -> dict[str, Any]:
    backend = InstalledBackends().get(spec.backend)
    ours: list[float] = []
    alone: list[float] = []
    with common.service(lambda _: [spec]) as (service, _):
        by_lease(service, spec.name)  # the folder of its logs, imports, caches
        for _ in range(times):
            ours.append(by_lease(service, spec.name))
            port = common.free_port()
            order = PlanRequest(spec=spec, path=spec.path, host=LOOPBACK, ports=(port,))
            alone.append(by_hand(backend.plan(order), spec.env, port, folder / "server.log"))
    lease, own = common.spread(ours, 1e3), common.spread(alone, 1e3)
    return {
        f"{kind}: lease to ready, median ms": lease["median"],
        f"{kind}: the server alone, median ms": own["median"],
        f"{kind}: on top, median ms": lease["median"] - own["median"],
        f"{kind}: on top, least against least ms": lease["min"] - own["min"],
        f"{kind}: lease / alone, medians": lease["median"] / own["median"],
        f"{kind}: half spread of the server alone ms": statistics.pstdev(alone) * 1e3 / 2,
    }


def measure(times: int) -> common.Results:
    results: dict[str, Any] = {}
    with common.folder() as folder:
        for kind, spec in kinds(folder):
            results |= compare(kind, spec, folder, times)
    return results


def main() -> None:
    options = common.arguments(__doc__, times=(30, "cold starts of each side and kind"))
    common.report(measure(options.times), as_json=options.json)


if __name__ == "__main__":
    main()
