"""SIGKILL of the owner with real servers: at named points, and at seeded random moments.

`pytest -m soak tests/recovery --timeout=0` kills three hundred times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from moorage import ModelService
from moorage.core.lifecycle import HOLDING, Stage
from moorage.log.reader import LogReader
from moorage.world.processes import LocalProcesses
from recovery.owner import NAMES, answered_by
from support.services import LIMIT_S, check_log, ports, settle, state_of

OWNER = Path(__file__).with_name("owner.py")
TESTS = OWNER.parents[1]
PASSING = {Stage.RESERVED, Stage.LAUNCHING, Stage.LOADING, Stage.STOPPING, Stage.DRAINING}
POINTS = [
    (kind, count, when)
    for kind, counts in {"append": range(1, 18), "launch": (1, 2, 4), "stop": (1, 2, 4)}.items()
    for count in counts
    for when in ("before", "after")
]
FEW_POINTS = [
    *(("append", count, "before") for count in (3, 5, 7, 12)),
    *(("append", count, "after") for count in (5, 6)),
    *((kind, 2, when) for kind in ("launch", "stop") for when in ("before", "after")),
]


@pytest.fixture
def strangers() -> Iterator[None]:
    """A process of nobody's, which has to outlive everything."""
    stranger = subprocess.Popen(["/bin/sleep", "600"])
    yield
    alive = stranger.poll() is None
    stranger.kill()
    stranger.wait()
    assert alive, "a stranger was signalled"


def own(folder: Path, pool: range, seconds: float, *point: object, kill_after: float | None) -> str:
    """Run an owner until it is killed (or its time is up) and return what it said."""
    command = [
        sys.executable,
        str(OWNER),
        str(folder),
        str(pool[0]),
        str(seconds),
        *map(str, point),
    ]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    try:
        said, _ = owner.communicate(timeout=LIMIT_S if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
        owner.send_signal(signal.SIGKILL)
        said, _ = owner.communicate(timeout=LIMIT_S)
    assert owner.returncode == -signal.SIGKILL, said
    return said


def leases(said: str) -> list[tuple[str, int, int]]:
    """Return (model, run, pid) of every lease an owner was granted; it was never another's."""
    lines = [line.split() for line in said.splitlines()]
    assert not [line for line in lines if line[0] == "wrong"]
    return [(model, int(run), int(pid)) for kind, model, run, pid in lines if kind == "leased"]


def at_rest(service: ModelService) -> bool:
    runs = state_of(service).runs.values()
    return not any(r.stage in PASSING for r in runs) and all(
        service._hall.table.get(r.model) for r in runs
    )


def take_over(folder: Path, pool: range, granted: list[tuple[str, int, int]]) -> None:
    """Open what a killed owner left and hold it to everything that is promised."""
    with ModelService.open(folder, ports=pool, max_loaded=2) as service:
        settle(lambda: at_rest(service))
        state = state_of(service)
        with LogReader(folder) as reader:
            log_id = reader.log_id
            known = {e.event.run for e in reader.read() if e.event.kind == "run.ready"}
        assert {run for _, run, _ in granted} <= known
        for run in state.runs.values():
            assert (run.model, run.run, run.pid) in granted or run.run in known
        found = LocalProcesses.find(service._runtime._processes, log_id)
        assert {process.run for process in found} <= {r.run for r in state.holding()}
        for run in state.runs.values():
            assert run.stage in HOLDING
            with service.lease(run.model) as lease:
                assert service.model(run.model).pid == run.pid
                assert answered_by(lease.port) == run.model
        for name in NAMES if state.models else ():
            with service.lease(name) as lease:
                assert answered_by(lease.port) == name
        assert not [f for f in service.audit() if f.kind != "stranger-on-port"]
        live = state_of(service)
    assert not [p for p in psutil.process_iter() if log_id in tokens_of(p)]
    check_log(folder)
    assert live.log_id == log_id


def tokens_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("MOORAGE_RUN", "")
    except psutil.Error:
        return ""


def kill_at(folder: Path, kind: str, count: int, when: str) -> None:
    pool = ports()[:20]
    granted = leases(own(folder, pool, 30, kind, count, when, kill_after=None))
    take_over(folder, pool, granted)


def kill_twice(folder: Path, seed: int) -> None:
    """Kill one owner under load and the next one while it recovers or works."""
    chance = random.Random(seed)
    pool = ports()[:20]
    granted = leases(own(folder, pool, 30, kill_after=0.6 + chance.random()))
    if chance.random() < 0.5:
        granted += leases(own(folder, pool, 30, kill_after=0.4 + chance.random() / 2))
    take_over(folder, pool, granted)


@pytest.mark.parametrize(("kind", "count", "when"), FEW_POINTS, ids=str)
@pytest.mark.usefixtures("strangers")
def test_a_kill_at_a_named_point(tmp_path: Path, kind: str, count: int, when: str) -> None:
    kill_at(tmp_path / "state", kind, count, when)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("strangers")
def test_a_kill_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    kill_twice(tmp_path / "state", seed)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "count", "when"), POINTS, ids=str)
@pytest.mark.usefixtures("strangers")
def test_a_kill_at_every_named_point(tmp_path: Path, kind: str, count: int, when: str) -> None:
    kill_at(tmp_path / "state", kind, count, when)


@pytest.mark.soak
@pytest.mark.usefixtures("strangers")
def test_three_hundred_kills_at_random_moments(tmp_path: Path) -> None:
    for seed in range(1000, 1300):
        print(f"seed {seed}")
        kill_twice(tmp_path / f"state-{seed}", seed)
