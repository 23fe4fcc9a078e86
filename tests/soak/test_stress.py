"""Eight threads and eight tasks on real servers, while an operator and an enemy do their worst."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moorage import ModelService
from moorage.core import events as ev
from moorage.gguf import write_tiny
from moorage.log.reader import LogReader
from moorage.log.verify import flaws
from moorage.world.ports import LocalPorts
from moorage.world.processes import LocalProcesses
from soak import load, stress
from support import needed, seeds
from support.services import check_log, ports, settle, state_of

pytestmark = pytest.mark.real

LEAST = 50
"""Completions, on a machine that has much else to do."""
TAKEN = frozenset({"room", "memory", "idle", "reload"})
"""Reasons for which no run is stopped while it is leased."""


NEEDED = ("run.ready", "run.evicting", "run.draining", "run.exited", "run.released")
"""Has to have happened, else the run shows nothing."""


def fields_of_a_server() -> Mapping[str, Any]:
    """Choose the real llama-server where it can run, else the same code from a package."""
    fields = next(filter(None, map(load.fields_of, reversed(load.KINDS))), None)
    if fields is None:
        needed.missing("no llama.cpp server is installed that can run here")
    return fields


def taken_from_leases(entries: list[ev.Entry], lost: set[int]) -> list[str]:
    """Return which of these runs were stopped, alive, for what has to wait for leases."""
    over: set[int] = set()
    taken: list[str] = []
    for entry in entries:
        event = entry.event
        if isinstance(event, ev.RunExited):
            over.add(event.run)
        elif isinstance(event, ev.RunStopping) and event.run not in over:
            over.add(event.run)
            if event.run in lost and event.reason in TAKEN:
                taken.append(f"run {event.run} for {event.reason}, entry {entry.seq}")
    return taken


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(60.0, marks=[pytest.mark.first, pytest.mark.timeout(400)]),
        pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(1500)]),
    ],
)
def test_nothing_is_lost_or_mixed_up_under_stress(seconds: float, tmp_path: Path) -> None:
    seed = str(seeds.seed("STRESS"))
    model, folder, pool = tmp_path / "tiny.gguf", tmp_path / "state", ports()
    write_tiny(model)
    more = {"crash_budget": 100_000, "stop_timeout_s": 1.0, "health_interval_s": 0.5}
    specs = load.specs(model, fields_of_a_server(), **more)
    with ModelService.open(folder, ports=pool, max_loaded=2, models=specs) as service:
        crowd = stress.Crowd(service, specs, seed)
        crowd.go(seconds)
        tally = crowd.tally
        print(f"{dict(tally.done)}, refused {dict(tally.refused)}")
        crowd.recover()
        settle(lambda: service.status().waiting == 0)

        assert tally.wrong == []
        assert not any(one.leases for one in service.status().models)
        assert service.audit() == ()
    closed = state_of(service)
    entries = check_log(folder, closed)
    counts = {kind: sum(e.event.kind == kind for e in entries) for kind in NEEDED}
    print(f"{len(entries)} entries, {counts}")

    assert taken_from_leases(entries, tally.lost) == []
    assert all(counts.values())
    assert tally.done["completions"] > LEAST
    assert tally.done["killed"]
    assert tally.done["frozen"]
    with LogReader(folder) as reader:
        assert list(flaws(reader, refold=True)) == []
    assert closed.held == {}
    assert [port for port in pool if LocalPorts().stranger(port)] == []
    assert processes_of(closed.log_id) == []


def processes_of(log_id: str) -> list[object]:
    processes = LocalProcesses()
    try:
        return list(processes.find(log_id))
    finally:
        processes.close()
