"""A dead run is not lent from the moment its exit was seen, before anybody has decided anything."""

from __future__ import annotations

import threading
from pathlib import Path

from moorage import ModelService, ModelSpec
from moorage.testing import FakeProcesses, fake_parts
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
