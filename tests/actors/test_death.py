"""A dead run is not lent from the moment its exit was seen, before anybody has decided anything."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from moorage import LoadError, ModelService, ModelSpec
from moorage.actors.hall import Hall
from moorage.core.state import State
from moorage.protocols import Flag, Readiness, ReadinessOrder
from moorage.testing import FakePorts, FakeProcesses, fake_parts
from support.services import LIMIT_S, Outcome, settle


class SlowTail(FakeProcesses):
    """Reads the last log lines of a dead server slowly: until then the registry knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()
        self.read = threading.Event()

    def log_tail(self, log_file: Path, *, lines: int = 20) -> tuple[str, ...]:
        self.reading.set()
        self.read.wait(LIMIT_S)
        return ()


def test_who_comes_between_a_death_and_its_handling_gets_the_next_run(tmp_path: Path) -> None:
    processes = SlowTail()
    with ModelService.open(tmp_path / "state", parts=fake_parts(processes=processes)) as service:
        service.define(ModelSpec(name="a", backend="fake"))
        held = service.lease("a")
        killed = Outcome(lambda: processes.server("a").exit(None, signal=9))
        assert processes.reading.wait(LIMIT_S)

        assert held.lost
        assert service.model("a").state == "ready"  # nobody has told the registry
        newcomer = Outcome(lambda: service.lease("a"))
        settle(lambda: service.status().waiting == 1)
        processes.read.set()
        killed.get()
        with newcomer.get() as lease:
            assert lease.run != held.run
            assert not lease.lost
            assert processes.server("a").alive


class DiesAsItAnswers(FakePorts):
    """Servers that are ready once more, and never again."""

    def __init__(self, processes: SlowTail) -> None:
        super().__init__(processes)
        self._slow = processes
        self.killed: list[Outcome] = []

    def wait_ready(self, order: ReadinessOrder, cancelled: Flag) -> Readiness:
        readiness = super().wait_ready(order, cancelled)
        server = self._slow.server("a")
        self.killed.append(Outcome(lambda: server.exit(None, signal=9)))
        assert self._slow.reading.wait(LIMIT_S)
        return readiness


def test_a_server_that_dies_as_it_answers_is_not_lent_at_all(tmp_path: Path) -> None:
    processes = SlowTail()
    ports = DiesAsItAnswers(processes)
    parts = fake_parts(processes=processes, ports=ports)
    with ModelService.open(tmp_path / "state", parts=parts) as service:
        service.define(ModelSpec(name="a", backend="fake"))
        caller = Outcome(lambda: service.lease("a"))
        settle(lambda: len(ports.killed) == 1)
        service.set_limits(max_loaded=2)  # what came before this was handled
        service.set_limits(max_loaded=1)
        early = service.model("a").state
        processes.read.set()
        with pytest.raises(LoadError, match="signal 9"):
            caller.get()

        assert early == "loading"


def test_a_gate_is_dead_from_the_start_when_its_run_is_and_that_is_not_remembered_for_ever() -> (
    None
):
    hall = Hall(lambda: 0.0, lambda _run: None)
    hall.died(1)
    gate = hall.build("a", 1, (18000,))
    known = hall.has_died(1)
    hall.settle(State())

    assert gate.dead
    assert gate.closed
    assert known
    assert not hall.has_died(1)
