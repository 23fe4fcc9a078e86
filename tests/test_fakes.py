"""One contract for processes and ports, held by the real ones and by the fakes."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage import ModelService, ModelSpec
from moorage.protocols import (
    ExitStatus,
    FetchCancelledError,
    FetchFailedError,
    Identity,
    LaunchFailedError,
    LaunchOrder,
    PlanRequest,
    Ports,
    Processes,
    Readiness,
    ReadinessOrder,
    RunProcess,
    StopReport,
    StopSignal,
)
from moorage.testing import (
    FakeBackends,
    FakeClock,
    FakeFetcher,
    FakePorts,
    FakeProcesses,
    Hold,
    MemoryLog,
    Script,
    fake_parts,
)
from moorage.world.ports import LocalPorts
from moorage.world.processes import LocalProcesses
from support.servers import HeldPort, misbehave

WAIT_S = 10.0
LOG_ID = "00000000000000fa"
TERM = (StopSignal(signal.SIGTERM, "leader", WAIT_S),)
_runs = itertools.count(1)


class Stage:
    """A world under test: what differs between the real one and the fakes is here."""

    processes: Processes
    ports: Ports

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[RunProcess] = []

    def launch(self, kind: str) -> RunProcess:
        """Launch a server that is `good`, `deaf` to SIGTERM, or `dies` with 7 at once."""
        run = next(_runs)
        order = LaunchOrder(
            model=kind,
            run=run,
            token=f"{LOG_ID}:{run}:beef",
            argv=self.argv(kind),
            log_file=self.folder / kind / f"{run}.log",
        )
        identity = self.processes.launch(order)
        process = RunProcess(run=run, token=order.token, identity=identity, ports=(self.port(),))
        self.running.append(process)
        return process

    def argv(self, kind: str) -> tuple[str, ...]:
        raise NotImplementedError

    def port(self) -> int:
        raise NotImplementedError

    def stop(self, process: RunProcess, *, hurry: bool = False) -> StopReport:
        flag = threading.Event()
        if hurry:
            flag.set()
        return self.processes.stop(process, TERM, kill_wait_s=WAIT_S, hurry=flag)

    def close(self) -> None:
        for process in self.running:
            self.stop(process, hurry=True)
        self.processes.close()


class FakeStage(Stage):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.processes = processes = FakeProcesses()
        self.ports = FakePorts(processes)
        processes.always("deaf", Script(ignores=frozenset({signal.SIGTERM})))
        processes.always("dies", Script(exits=ExitStatus(code=7), log=("it was the end",)))
        processes.always("missing", Script(refuse="no such file"))

    def argv(self, kind: str) -> tuple[str, ...]:
        return (kind,)

    def port(self) -> int:
        return 18000


class RealStage(Stage):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.processes = processes = LocalProcesses()
        self.ports = LocalPorts(processes)
        self._held: list[HeldPort] = []

    def argv(self, kind: str) -> tuple[str, ...]:
        self._held.append(HeldPort())
        match kind:
            case "good":
                return misbehave(self.port())
            case "deaf":
                return misbehave(self.port(), "--ignore-term")
            case "dies":
                return ("/bin/sh", "-c", "echo it was the end; exit 7")
            case _:
                return (str(self.folder / "missing"),)

    def port(self) -> int:
        return self._held[-1].number

    def close(self) -> None:
        super().close()
        for held in self._held:
            held.close()


class Told:
    """Hears exits."""

    def __init__(self) -> None:
        self.statuses: list[ExitStatus] = []
        self.event = threading.Event()

    def __call__(self, status: ExitStatus) -> None:
        self.statuses.append(status)
        self.event.set()


@pytest.fixture(params=[FakeStage, RealStage], ids=["fake", "real"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    stage: Stage = request.param(tmp_path)
    yield stage
    stage.close()


def _ready(stage: Stage, process: RunProcess, cancelled: threading.Event) -> Readiness:
    order = ReadinessOrder(
        process=process,
        port=process.ports[0],
        health_path="/health",
        timeout_s=WAIT_S,
        owner_check=True,
    )
    return stage.ports.wait_ready(order, cancelled)


# --- the contract ---


def test_a_launched_server_lives_becomes_ready_and_is_found_by_its_token(stage: Stage) -> None:
    process = stage.launch("good")
    ready = _ready(stage, process, threading.Event())
    found = stage.processes.find(LOG_ID)

    assert ready.outcome == "ready"
    assert stage.processes.lives(process)
    assert [(f.run, f.nonce, f.token) for f in found] == [(process.run, "beef", process.token)]
    assert process.identity is not None
    assert found[0].pid == process.identity.pid
    assert found[0].start_ticks == process.identity.start_ticks
    assert stage.processes.find("00000000000000fb") == []
    assert stage.processes.boot_id() == process.identity.boot_id


def test_a_stop_is_clean_and_its_exit_is_told_once(stage: Stage) -> None:
    process = stage.launch("good")
    told = Told()
    stage.processes.watch(process, told)
    _ready(stage, process, threading.Event())
    report = stage.stop(process)
    heard = told.event.wait(WAIT_S)
    again = stage.stop(process)

    assert report.clean
    assert again.clean
    assert heard
    assert len(told.statuses) == 1
    assert not stage.processes.lives(process)
    assert stage.processes.find(LOG_ID) == []


def test_a_server_deaf_to_its_signal_is_killed_at_once_in_a_hurry(stage: Stage) -> None:
    process = stage.launch("deaf")
    told = Told()
    stage.processes.watch(process, told)
    _ready(stage, process, threading.Event())
    report = stage.stop(process, hurry=True)
    told.event.wait(WAIT_S)

    assert report.clean
    assert told.statuses == [ExitStatus(signal=signal.SIGKILL)]


def test_a_server_that_dies_is_told_with_its_code_also_to_who_watches_later(stage: Stage) -> None:
    process = stage.launch("dies")
    told = Told()
    stage.processes.watch(process, told)
    told.event.wait(WAIT_S)
    tail = stage.processes.log_tail(stage.folder / "dies" / f"{process.run}.log")
    report = stage.stop(process)

    assert told.statuses == [ExitStatus(code=7)]
    assert tail == ("it was the end",)
    assert report.clean


def test_readiness_of_a_dead_server_is_not_told_until_it_is_cancelled(stage: Stage) -> None:
    process = stage.launch("dies")
    cancelled = threading.Event()
    stage.processes.watch(process, lambda _status: cancelled.set())

    assert _ready(stage, process, cancelled).outcome == "cancelled"


def test_what_cannot_be_launched_says_why_and_leaves_nothing(stage: Stage) -> None:
    with pytest.raises(LaunchFailedError) as caught:
        stage.launch("missing")

    assert caught.value.problem
    assert stage.processes.find(LOG_ID) == []


def test_a_run_of_another_boot_or_start_does_not_live(stage: Stage) -> None:
    process = stage.launch("good")
    known = process.identity
    assert known is not None
    other = Identity(known.pid, known.group, known.session, known.start_ticks + 1, known.boot_id)
    stranger = RunProcess(run=0, token=f"{LOG_ID}:0:beef", identity=other, ports=process.ports)

    assert not stage.processes.lives(stranger)
    assert stage.processes.lives(process)


def test_a_run_without_a_leader_cannot_be_watched(stage: Stage) -> None:
    unknown = RunProcess(run=1, token=f"{LOG_ID}:1:beef", identity=None, ports=())
    with pytest.raises(ValueError, match="no leader"):
        stage.processes.watch(unknown, Told())


def test_nothing_is_known_of_a_run_that_was_never_spawned(stage: Stage) -> None:
    unknown = RunProcess(run=1, token=f"{LOG_ID}:1:beef", identity=None, ports=())

    assert stage.stop(unknown).clean
    assert stage.processes.log_tail(stage.folder / "no.log") == ()


def test_closing_twice_is_fine_and_leaves_servers_alone(stage: Stage) -> None:
    stage.processes.close()
    stage.processes.close()


# --- the fakes alone ---


def test_a_fake_tells_who_occupies_a_port() -> None:
    ports = FakePorts(FakeProcesses())
    ports.occupy(18000, pid=5, command="nginx")
    held = ports.stranger(18000)
    ports.vacate(18000)

    assert held is not None
    assert (held.pid, held.command) == (5, "nginx")
    assert ports.stranger(18000) is None


def test_a_hold_that_is_never_released_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.testing.holds.LONGEST_S", 0.01)
    hold = Hold("the launch of a")
    with pytest.raises(TimeoutError, match="the launch of a: not released"):
        hold.wait()
    with pytest.raises(TimeoutError, match="not released"):
        hold.wait(threading.Event())
    with pytest.raises(TimeoutError, match="nobody came"):
        Hold("the stop of b").wait_reached(0.01)

    assert hold.reached


def test_a_fake_clock_rings_at_its_time_once_and_never_when_closed() -> None:
    clock = FakeClock()
    rung: list[float] = []
    alarm = clock.new_alarm(lambda: rung.append(clock.monotonic()))
    alarm.set(5.0)
    clock.advance(4)
    early = list(rung)
    clock.advance(2)
    clock.advance(2)
    alarm.set(7.0)
    alarm.set(None)
    alarm.set(20.0)
    alarm.close()
    clock.advance(60)

    assert early == []
    assert rung == [6.0, 8.0]
    assert clock.now() == "2026-01-01T00:01:08.000000Z"


def test_a_fake_hub_fetches_fails_and_can_be_cancelled() -> None:
    fetcher = FakeFetcher()
    spec = ModelSpec(name="a", backend="x", repo="org/a", file="a.gguf")
    fetched = fetcher.fetch(spec, lambda _progress: None, threading.Event())
    fetcher.will_fail("a", "no network")
    with pytest.raises(FetchFailedError, match="no network"):
        fetcher.fetch(spec, lambda _progress: None, threading.Event())
    fetcher.hold("a")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(FetchCancelledError):
        fetcher.fetch(spec, lambda _progress: None, cancelled)

    assert fetched.files[0][0] == "a.gguf"
    assert len(fetcher.fetches) == 3


def test_a_fake_backend_plans_anything_until_it_refuses() -> None:
    backends = FakeBackends()
    request = PlanRequest(
        spec=ModelSpec(name="a", backend="x"), path=None, host="127.0.0.1", ports=(18000,)
    )
    plan = backends.get("whatever").plan(request)
    backends.refuse("a", "no executable")
    with pytest.raises(LaunchFailedError, match="no executable"):
        backends.plan(request)
    backends.refuse("a", None)

    assert plan.argv == ("fake-server", "a", "--port", "18000")
    assert backends.plan(request) == plan


def test_a_host_tests_its_program_on_the_fakes_and_reads_the_real_log(tmp_path: Path) -> None:
    processes = FakeProcesses()
    processes.will("a", Script(exits=ExitStatus(code=1)))
    parts = fake_parts(processes=processes)
    with ModelService.open(tmp_path, parts=parts, ports=range(18000, 18002)) as service:
        service.define(ModelSpec(name="a", backend="anything"))
        with pytest.raises(Exception, match="status 1"):
            service.start("a")
        service.start("a")
        kinds = [entry.event.kind for entry in service.events()]

    assert kinds.count("run.ready") == 1
    assert processes.closed == 1
    assert processes.alive() == ()


def test_the_servers_of_the_fakes_outlive_a_service_that_keeps_them(tmp_path: Path) -> None:
    processes, log = FakeProcesses(), MemoryLog()
    parts = fake_parts(processes=processes, log=log)
    with ModelService.open(
        tmp_path, parts=parts, ports=range(18000, 18002), on_close="keep"
    ) as service:
        service.define(ModelSpec(name="a", backend="anything"))
        pid = service.start("a").pid
    kept = [server.pid for server in processes.alive()]
    parts = fake_parts(processes=processes, log=log.reopened())
    with ModelService.open(tmp_path, parts=parts, ports=range(18000, 18002)) as service:
        service.lease("a").release()
        again = service.model("a").pid

    assert kept == [pid]
    assert again == pid
    with pytest.raises(LookupError):
        processes.server("nobody")
