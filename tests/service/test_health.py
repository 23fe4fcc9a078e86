"""A run that stopped answering is replaced; one that is only busy is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from moorage import ModelService, ModelSpec
from moorage.actors import model
from moorage.protocols import Readiness
from moorage.testing import FakePorts, FakeProcesses, fake_parts
from support.services import LIMIT_S, Outcome, Seen, server, settle


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "HEALTH_S", 0.05)


def test_a_run_that_stops_answering_ends_with_its_reason_and_starts_anew_on_the_next_lease(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", health_interval_s=0.02, stop_timeout_s=0.1))
    seen = Seen(service)
    first = service.start("m")
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)

    draining = seen.wait("run.draining", reason="unhealthy")
    released = seen.wait("run.released", run=first.run)
    backoff = seen.wait("model.backoff")
    with service.lease("m") as lease:
        assert lease.run != first.run

    assert draining.event.error
    assert released.event.outcome == "failed: health"
    assert backoff.event.attempts == 1


def test_a_server_that_calls_itself_healthy_and_cannot_work_is_found_by_a_deeper_question(
    opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    sick = tmp_path / "sick"
    deep = {"health_path": "/v1/chat/completions", "health_interval_s": 0.02}
    service = opened(server("m", "--sick-file", str(sick), stop_timeout_s=5, **deep))
    seen = Seen(service)
    with service.lease("m") as first:
        sick.touch()
        seen.wait("run.draining", reason="unhealthy")
        with urlopen(f"{first.url}/health", timeout=LIMIT_S) as answer:
            shallow = answer.status
    released = seen.wait("run.released", run=first.run)
    sick.unlink()
    with service.lease("m") as second:
        again = second.run

    assert shallow == 200
    assert released.event.outcome == "failed: health"
    assert "500" in released.event.error
    assert again != first.run


def test_a_leased_run_that_stops_answering_is_not_taken_away_but_drains(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", health_interval_s=0.02, stop_timeout_s=0.1))
    seen = Seen(service)
    lease = service.lease("m")
    pid = service.model("m").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    seen.wait("run.draining", reason="unhealthy")

    assert not lease.lost
    lease.release()
    seen.wait("run.released", run=lease.run)


def test_a_healthy_run_is_asked_again_and_again_and_left_alone(tmp_path: Path) -> None:
    processes = FakeProcesses()
    ports = FakePorts(processes)
    parts = fake_parts(processes=processes, ports=ports)
    with ModelService.open(tmp_path / "state", parts=parts) as service:
        service.define(ModelSpec(name="m", backend="fake", health_interval_s=0.01))
        run = service.start("m").run
        settle(lambda: len(ports.asked) > 10)

        assert service.model("m").run == run
        assert service.model("m").state == "ready"


def test_a_hang_while_a_run_drains_for_another_is_found_when_it_stays_after_all(
    tmp_path: Path,
) -> None:
    processes = FakeProcesses()
    ports = FakePorts(processes)
    parts = fake_parts(processes=processes, ports=ports)
    with ModelService.open(tmp_path / "state", parts=parts, max_loaded=1) as service:
        seen = Seen(service)
        service.define(ModelSpec(name="m", backend="fake", health_interval_s=0.01))
        service.define(ModelSpec(name="other", backend="fake"))
        with service.lease("m"):
            other = Outcome(lambda: service.lease("other", timeout_s=LIMIT_S))
            seen.wait("run.evicting")
            ports.always("m", Readiness("timeout", "it hangs"))
            asked = len(ports.asked)
            settle(lambda: len(ports.asked) > asked + model.HEALTH_MISSES)
            service.set_limits(max_loaded=2)
            other.get().release()

            seen.wait("run.draining", reason="unhealthy")
