"""Kills the owner at every append of a life, before and after it is durable, and opens again.

An append that was not durable stands for every moment between the one before it and itself: what
was done in the world meanwhile is not in the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage import ModelService, ModelSpec, MoorageError
from moorage.core.fold import apply
from moorage.core.invariants import over_limits, violations
from moorage.core.lifecycle import HOLDING, Stage
from moorage.core.state import State
from moorage.testing import FakeProcesses, MemoryLog, Script, fake_parts
from support.services import settle, state_of

PORTS = range(18_000, 18_004)
NAMES = ("a", "b", "c")


class KilledError(Exception):
    """Stands for SIGKILL: the registry dies, the servers do not."""


class CountingLog(MemoryLog):
    """Counts appends and dies at one of them."""

    die_at: int | None = None
    committed = False
    appends = 0

    def append(self, entries, *, snapshot=None):
        self.appends += 1
        if self.appends == self.die_at:
            self.crash_next(KilledError(), committed=self.committed)
        super().append(entries, snapshot=snapshot)

    def heir(self) -> CountingLog:
        self.close()
        return CountingLog(self.log_id, storage=self._storage)


def spec(name: str, **more: object) -> ModelSpec:
    return ModelSpec(name=name, backend="fake", **more)


def evictions(service: ModelService, processes: FakeProcesses) -> None:
    for name in "abcab":
        service.lease(name).release()


def a_drain_that_is_undone(service: ModelService, processes: FakeProcesses) -> None:
    with service.lease("a"), service.lease("b"), pytest.raises(MoorageError):
        service.lease("c", timeout_s=0)
    service.lease("a").release()


def operators(service: ModelService, processes: FakeProcesses) -> None:
    service.start("a")
    service.pin("a")
    service.stop("a", hold=True)
    service.reset("a")
    service.start("b")
    service.define(spec("b", args=("changed",)))
    service.lease("b").release()
    service.remove("b")
    service.define(spec("b"))
    service.unpin("a")
    service.set_limits(max_loaded=1)


def gone(service: ModelService, name: str) -> bool:
    service.set_limits()  # raises when the registry was killed
    return service.model(name).run is None


def crashes(service: ModelService, processes: FakeProcesses) -> None:
    processes.will("a", Script(children=2))
    service.start("a")
    processes.server("a").exit(None, signal=9)
    settle(lambda: gone(service, "a"))
    service.start("a")


def failed_starts(service: ModelService, processes: FakeProcesses) -> None:
    processes.will("a", Script(refuse="no such file"))
    for _ in range(2):
        try:
            service.start("a")
        except MoorageError as error:
            if "no such file" not in str(error):
                raise


LIVES = (evictions, a_drain_that_is_undone, operators, crashes, failed_starts)


def open_(folder: Path, log: MemoryLog, processes: FakeProcesses) -> ModelService:
    parts = fake_parts(log=log, processes=processes)
    return ModelService.open(folder, ports=PORTS, max_loaded=2, parts=parts)


def live(
    folder: Path,
    log: CountingLog,
    processes: FakeProcesses,
    life: Callable[[ModelService, FakeProcesses], None],
) -> None:
    """Live until the end or until killed; servers are left as they are then."""
    try:
        service = open_(folder, log, processes)
    except (MoorageError, KilledError):
        return
    try:
        service.define(*map(spec, NAMES))
        life(service, processes)
    except MoorageError:
        pass
    finally:
        service.close()


def check_world(service: ModelService, processes: FakeProcesses) -> None:
    """The state is sound, and every server alive is that of an open run."""
    state = state_of(service)
    tokens = {f"{state.log_id}:{run.run}:{run.nonce}" for run in state.runs.values()}
    assert violations(state) == ()
    assert {server.order.token for server in processes.alive()} <= tokens
    assert len({server.model for server in processes.alive()}) == len(processes.alive())


def check_log(log: MemoryLog) -> None:
    state = State()
    ends: dict[int, int] = {}
    for entry in log.heir().read():
        apply(state, entry)
        assert violations(state) == (), entry
        if entry.event.kind == "run.reserved":
            assert not over_limits(state)
        if entry.event.kind in ("run.released", "run.abandoned"):
            ends[entry.event.run] = ends.get(entry.event.run, 0) + 1
    assert set(ends.values()) <= {1}
    assert len(ends) == state.next_run - 1
    assert not state.held


def at_rest(service: ModelService) -> bool:
    passing = {Stage.STOPPING, Stage.LAUNCHING, Stage.LOADING, Stage.RESERVED, Stage.FETCHING}
    runs = state_of(service).runs.values()
    return not any(run.stage in passing for run in runs)


def recovered(folder: Path, log: CountingLog, processes: FakeProcesses) -> None:
    """Open after a kill and judge everything, then use it, close it and judge again."""
    processes._next.clear()  # what the killed life still had in mind
    survivors = {server.model: server.pid for server in processes.alive() if server.alive}
    with open_(folder, log, processes) as service:
        settle(lambda: at_rest(service))
        check_world(service, processes)
        adopted = {
            run.model: run.pid for run in state_of(service).runs.values() if run.stage in HOLDING
        }
        assert adopted.items() <= survivors.items()
        service.define(*map(spec, NAMES))
        for name in NAMES:
            service.reset(name)
            with service.lease(name) as lease:
                assert processes.server(name).alive
                assert lease.run == service.model(name).run
        check_world(service, processes)
    assert processes.alive() == ()
    check_log(log)


def appends_of(folder: Path, life: Callable[[ModelService, FakeProcesses], None]) -> int:
    log, processes = CountingLog(), FakeProcesses()
    live(folder, log, processes, life)
    assert processes.alive() == ()
    return log.appends


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_a_kill_at_any_append_loses_nothing_and_leaks_nothing(tmp_path: Path, life) -> None:
    total = appends_of(tmp_path, life)

    assert total > 4
    for place in range(1, total + 1):
        for committed in (False, True):
            log, processes = CountingLog(), FakeProcesses()
            log.die_at, log.committed = place, committed
            live(tmp_path, log, processes, life)
            recovered(tmp_path, log.heir(), processes)


@pytest.mark.parametrize("committed", [False, True])
def test_a_second_kill_during_recovery_changes_nothing(tmp_path: Path, committed: bool) -> None:
    total = appends_of(tmp_path, evictions)
    for place in range(4, total + 1, 3):
        for again in (1, 2, 3):
            log, processes = CountingLog(), FakeProcesses()
            log.die_at, log.committed = place, committed
            live(tmp_path, log, processes, evictions)
            heir = log.heir()
            heir.die_at, heir.committed = again, committed
            live(tmp_path, heir, processes, lambda service, _: service.lease("a").release())
            recovered(tmp_path, heir.heir(), processes)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("again", range(1, 6))
def test_what_always_runs_runs_again_wherever_its_recovery_is_killed(
    tmp_path: Path, again: int, committed: bool
) -> None:
    def is_up(service: ModelService) -> bool:
        service.set_limits()  # raises when the registry was killed
        return service.model("a").state == "ready"

    log, processes = CountingLog(), FakeProcesses()
    service = open_(tmp_path, log, processes)
    service.define(spec("a", restart="always"))
    service.start("a")
    service.close("keep")
    processes.server("a").exit(1)
    heir = log.heir()
    heir.die_at, heir.committed = again, committed
    with contextlib.suppress(MoorageError, KilledError):
        killed = open_(tmp_path, heir, processes)
        try:
            settle(lambda: is_up(killed))
        finally:
            killed.close("keep")

    with open_(tmp_path, heir.heir(), processes) as service:
        settle(lambda: is_up(service))
