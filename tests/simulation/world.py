"""The world that is played: process trees, strangers on ports, files, and a disk with faults."""

from __future__ import annotations

import itertools
import signal as signals
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from moorage.core.events import Entry
from moorage.errors import LogUnavailableError
from moorage.protocols import (
    ExitStatus,
    FetchCancelledError,
    Fetched,
    FetchFailedError,
    Flag,
    FoundProcess,
    Identity,
    LaunchFailedError,
    LaunchOrder,
    LaunchPlan,
    Listener,
    PlanRequest,
    Progress,
    Readiness,
    ReadinessOrder,
    RunProcess,
    Snapshot,
    StopReport,
    StopSignal,
)
from moorage.spec import ModelSpec
from moorage.testing.log import MemoryLog, MemoryStorage
from simulation.choices import Choices
from simulation.plan import Plan
from simulation.scheduler import Process, Scheduler, Task, Timer
from simulation.sight import ORIGIN

LOG_ID = "00000000000000aa"
FIRST_PID = 10_000
NEVER = 1e12
RESCAN_S = 0.25
_BEGAN = datetime.fromisoformat(ORIGIN).replace(tzinfo=None)


class Server:
    """A process tree. What it will do is chosen when it is launched."""

    def __init__(self, order: LaunchOrder, pid: int, boot: str) -> None:
        self.order = order
        self.token = order.token
        self.model = order.model
        self.run = order.run
        self.identity = Identity(pid, pid, pid, pid, boot)
        argv = order.argv
        self.ports = tuple(int(argv[at + 1]) for at, arg in enumerate(argv) if arg == "--port")
        self.leader_alive = True
        self.status = ExitStatus()
        self.others: set[int] = set()
        self.dying: set[int] = set()
        self.signalled = False
        self.watchers: list[tuple[Process, Callable[[ExitStatus], None]]] = []
        self.waiters: list[Task] = []
        self.timers: list[Timer] = []
        self.bound = False
        self.answers = False
        self.sick = False
        self.hidden = False
        self.load_s = 0.0
        self.term_s = 0.0
        self.kill_s = 0.0
        self.children = 0
        self.loyal = False
        """Its children end with the leader."""
        self.memory = 50
        self.peak: int | None = None

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def alive(self) -> bool:
        return self.leader_alive or bool(self.others)

    @property
    def pids(self) -> tuple[int, ...]:
        """Everything that lives, the leader first."""
        return (*((self.pid,) if self.leader_alive else ()), *sorted(self.others))


class World:
    """What goes on without a service. `dirty` is set when a server or stranger changed."""

    def __init__(self, plan: Plan, scheduler: Scheduler) -> None:
        self.rates = dict(plan.rates)
        self.scheduler = scheduler
        self.choices: Choices = scheduler.choices
        self.faults: Counter[str] = Counter()
        self.servers: dict[str, Server] = {}
        """Trees of which something lives, by token."""
        self.strangers: dict[int, int] = {}
        self.port_waiters: list[Task] = []
        self.storage = MemoryStorage()
        self.log_down = ""
        self.append_failed = False
        """An append failed since somebody looked last."""
        self.boot = "boot-1"
        self.dirty = True
        self.signalled: list[int] = []
        self.spawning = 0
        """Launches that are under way."""
        self._pids = itertools.count(FIRST_PID)

    def fault(self, name: str) -> bool:
        """Tell whether a fault that exists in this world happens now."""
        rate = self.rates.get(name, 0)
        if rate and self.choices.happens(rate):
            self.faults[name] += 1
            return True
        return False

    def stall(self, name: str) -> None:
        """Let the task that calls wait longer than anybody expects."""
        if self.fault(name):
            self.scheduler.sleep((1.0, 20.0, 70.0)[self.choices.choose(3)])

    # --- servers ---

    def launch(self, order: LaunchOrder) -> Server:
        """Bring a server to life and choose what becomes of it."""
        server = Server(order, next(self._pids), self.boot)
        self.servers[server.token] = server
        pick = self.choices.choose
        server.term_s = (0.0, 0.01, 0.3)[pick(3)] if not self.fault("deaf") else NEVER
        server.kill_s = (3.0, 8.0, 40.0)[pick(3)] if self.fault("stuck") else 0.0
        server.children = 1 + pick(2) if self.fault("fork") else 0
        server.loyal = server.children > 0 and pick(2) == 1
        server.hidden = server.children > 0 and self.fault("hidden")
        server.load_s = NEVER if self.fault("hang") else (0.0, 0.02, 1.0, 5.0)[pick(4)]
        if self.fault("greedy"):
            server.memory = (80, 120, 400)[pick(3)]
        if pick(2):
            server.peak = server.memory
        bind_s = (1.0, 8.0, 40.0)[pick(3)] if self.fault("slow_bind") else 0.0
        if self.fault("early_exit"):
            self._later(server, (0.0, 0.01, 3.0)[pick(3)], "exits early", self._exit_early)
        if self.fault("late_exit"):
            self._later(server, (1.0, 10.0, 100.0)[pick(3)], "exits", self._exit_early)
        self._later(server, bind_s, "binds", self._bind)
        self.dirty = True
        return server

    def _later(
        self, server: Server, seconds: float, what: str, work: Callable[[Server], None]
    ) -> None:
        if seconds >= NEVER:
            return
        timer = self.scheduler.at(
            self.scheduler.now + seconds, f"{server.model}{server.run} {what}", lambda: work(server)
        )
        server.timers.append(timer)

    def _exit_early(self, server: Server) -> None:
        self.exit(server, ExitStatus(code=1))

    def _bind(self, server: Server) -> None:
        if not server.leader_alive:
            return
        if any(port in self.strangers for port in server.ports):
            self.faults["lost_bind"] += 1
            if self.choices.choose(2):
                self.exit(server, ExitStatus(code=98))
            return
        server.bound = True
        server.others |= {next(self._pids) for _ in range(server.children)}
        self._later(server, server.load_s, "answers", self._answer)
        self.changed(server)

    def _answer(self, server: Server) -> None:
        if server.leader_alive:
            server.answers = True
            self.changed(server)

    def exit(self, server: Server, status: ExitStatus) -> None:
        """End the leader."""
        if not server.leader_alive:
            return
        server.leader_alive = False
        server.status = status
        server.answers = False
        if server.loyal:
            server.others.clear()
        watchers, server.watchers = server.watchers, []
        if watchers and server.signalled and self.fault("exit_unseen"):
            watchers.clear()
        for process, tell in watchers:
            self._tell_exit(server, process, tell)
        self.changed(server)

    def _tell_exit(
        self, server: Server, process: Process, tell: Callable[[ExitStatus], None]
    ) -> None:
        what = f"exit of {server.model}{server.run} is told"
        self.scheduler.soon(what, lambda: tell(server.status), process)

    def watch(
        self, server: Server | None, process: Process, tell: Callable[[ExitStatus], None]
    ) -> None:
        """Tell of the exit of a leader once."""
        if server is None:
            self.scheduler.soon("exit is told", lambda: tell(ExitStatus()), process)
        elif server.leader_alive:
            server.watchers.append((process, tell))
        else:
            self._tell_exit(server, process, tell)

    def changed(self, server: Server) -> None:
        """Let those who wait for a change of it look."""
        self.dirty = True
        if not server.alive:
            self.servers.pop(server.token, None)
            for timer in server.timers:
                timer.off = True
        for task in (*server.waiters, *self.port_waiters):
            self.scheduler.wake(task)

    def signal(self, server: Server, pid: int, number: int) -> None:
        """Send a signal to one process."""
        self.signalled.append(pid)
        server.signalled = True
        if pid == server.pid and number != signals.SIGKILL:
            self._later(server, server.term_s, "obeys", lambda s: self.exit(s, ExitStatus(code=0)))
            return
        if pid in server.dying:
            return
        server.dying.add(pid)
        if server.kill_s:
            self.faults["outlives SIGKILL"] += 1
        self._later(server, server.kill_s, f"{pid} dies", lambda s: self.die(s, pid))

    def die(self, server: Server, pid: int) -> None:
        """End one process of a tree."""
        if pid == server.pid:
            self.exit(server, ExitStatus(signal=signals.SIGKILL))
        elif pid in server.others:
            server.others.discard(pid)
            self.changed(server)

    def reboot(self) -> None:
        """Start the machine anew: nothing lives."""
        self.boot = f"boot-{int(self.boot.rpartition('-')[2]) + 1}"
        for server in tuple(self.servers.values()):
            server.leader_alive = False
            server.others.clear()
            server.watchers.clear()
            self.changed(server)
        self.strangers.clear()
        self.dirty = True

    # --- strangers ---

    def come(self, port: int) -> None:
        """Let a stranger listen on a port, if nobody does."""
        if port not in self.strangers and self.holder(port) is None:
            self.strangers[port] = next(self._pids)
            self._strangers_changed()

    def go(self, port: int) -> None:
        """Let him go."""
        if self.strangers.pop(port, None) is not None:
            self._strangers_changed()

    def _strangers_changed(self) -> None:
        self.dirty = True
        for task in tuple(self.port_waiters):
            self.scheduler.wake(task)

    def holder(self, port: int) -> Server | None:
        """Return the server that listens on a port."""
        for server in self.servers.values():
            if server.bound and port in server.ports:
                return server
        return None

    # --- the end of all faults ---

    def heal(self) -> None:
        """Let every fault end, and none come."""
        self.rates = {name: rate for name, rate in self.rates.items() if name == "reorder"}
        self.log_down = ""
        for port in tuple(self.strangers):
            self.go(port)
        for server in tuple(self.servers.values()):
            for timer in server.timers:
                if "exits" in timer.what:
                    timer.off = True
            server.kill_s = min(server.kill_s, 1.0)
            server.hidden = False
            server.sick = False
            for pid in tuple(server.dying):
                self.die(server, pid)
        self.dirty = True


class SimClock:
    """The scheduler's time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._at = -1.0
        self._text = ""

    def now(self) -> str:
        self._scheduler.preempt()
        now = self._scheduler.now
        if now != self._at:
            self._at = now
            moment = _BEGAN + timedelta(seconds=now)
            self._text = f"{moment.isoformat(timespec='microseconds')}Z"
        return self._text

    def monotonic(self) -> float:
        self._scheduler.preempt()
        return self._scheduler.now


class SimAlarm:
    """Wakes the registry."""

    def __init__(self, scheduler: Scheduler, process: Process, wake: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._process = process
        self._wake = wake
        self._timer: Timer | None = None
        self._closed = False

    def set(self, at: float | None) -> None:
        timer = self._timer
        if timer is not None:
            if timer.at == at and not timer.off:
                return
            timer.off = True
        self._timer = None
        if at is not None and not self._closed:
            self._timer = self._scheduler.at(at, "alarm", self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._closed and not self._process.dead:
            self._wake()

    def close(self) -> None:
        self._closed = True


class SimProcesses:
    """The process calls of one owner."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._closed = False

    def launch(self, order: LaunchOrder) -> Identity:
        world, scheduler = self._world, self._world.scheduler
        world.spawning += 1
        try:
            scheduler.pause()
            world.stall("slow_launch")
            if world.fault("refused"):
                raise LaunchFailedError("the executable is missing")
            server = world.launch(order)
            scheduler.pause()  # it lives, and nobody knows it yet
        finally:
            world.spawning -= 1
        return server.identity

    def watch(
        self,
        process: RunProcess,
        on_exit: Callable[[ExitStatus], None],
        *,
        log_file: Path | None = None,
    ) -> None:
        if process.identity is None:
            raise ValueError(f"run {process.run} has no leader that could be watched")

        def unless_closed(status: ExitStatus) -> None:
            if not self._closed:
                on_exit(status)

        self._world.watch(self._of(process), self._process, unless_closed)

    def _of(self, process: RunProcess) -> Server | None:
        return self._world.servers.get(process.token)

    def stop(
        self, process: RunProcess, signals_: Sequence[StopSignal], *, kill_wait_s: float, hurry: Any
    ) -> StopReport:
        world, scheduler = self._world, self._world.scheduler
        began = scheduler.now
        scheduler.pause()
        world.stall("slow_stop")
        server = self._of(process)
        if server is None:
            return StopReport(
                swept=(), remaining=(), unproven=(), ports_open=(), seconds=0.0, peak_bytes=None
            )
        leader = self.lives(process)
        for step in signals_ if leader else ():
            if not server.leader_alive or hurry.is_set():
                break
            world.signal(server, server.pid, step.number)
            end = scheduler.now + step.wait_s
            while server.leader_alive and not hurry.is_set() and scheduler.now < end:
                scheduler.wait_for([server.waiters, hurry.waiters], end)
        swept = self._sweep(server, scheduler.now + kill_wait_s)
        remaining = () if server.hidden else server.pids
        return StopReport(
            swept=tuple(sorted(swept - {server.pid} if leader else swept)),
            remaining=remaining,
            unproven=server.pids if server.hidden else (),
            ports_open=server.ports if server.alive and server.bound else (),
            seconds=scheduler.now - began,
            peak_bytes=server.peak,
        )

    def _sweep(self, server: Server, deadline: float) -> set[int]:
        world, scheduler = self._world, self._world.scheduler
        swept: set[int] = set()
        while server.alive:
            provable = server.pids if not server.hidden else server.pids[: server.leader_alive]
            for pid in provable:
                world.signal(server, pid, signals.SIGKILL)
                swept.add(pid)
            if not provable or scheduler.now >= deadline:
                break
            scheduler.wait_for([server.waiters], min(deadline, scheduler.now + RESCAN_S))
        return swept

    def lives(self, process: RunProcess) -> bool:
        server = self._of(process)
        return server is not None and server.leader_alive and server.identity == process.identity

    def memory(self, process: RunProcess) -> int | None:
        server = self._of(process)
        return server.peak if server is not None else None

    def log_tail(self, log_file: Path, *, lines: int = 20) -> tuple[str, ...]:
        return ("its last line",)

    def find(self, log_id: str) -> Sequence[FoundProcess]:
        return [
            FoundProcess(
                pid=pid,
                start_ticks=pid,
                token=server.token,
                run=server.run,
                nonce=server.token.rpartition(":")[2],
                command="sim-server",
            )
            for server in self._world.servers.values()
            for pid in (server.pids if not server.hidden else server.pids[: server.leader_alive])
        ]

    def boot_id(self) -> str:
        return self._world.boot

    def close(self) -> None:
        self._closed = True


class SimPorts:
    """Ports as one owner sees them."""

    def __init__(self, world: World) -> None:
        self._world = world

    def stranger(self, port: int) -> Listener | None:
        self._world.scheduler.preempt()
        pid = self._world.strangers.get(port)
        if pid is not None:
            return Listener(port, pid, "stranger")
        server = self._world.holder(port)
        return None if server is None else Listener(port, server.pids[0], "sim-server")

    def lost(self, process: RunProcess) -> Listener | None:
        port = process.ports[0]
        pid = self._world.strangers.get(port)
        if pid is not None:
            return Listener(port, pid, "stranger")
        server = self._world.holder(port)
        if server is None or server.token == process.token:
            return None
        return Listener(port, server.pids[0], "sim-server")

    def wait_ready(self, order: ReadinessOrder, cancelled: Any) -> Readiness:
        world, scheduler = self._world, self._world.scheduler
        deadline = scheduler.now + order.timeout_s
        while not cancelled.is_set():
            server = world.servers.get(order.process.token)
            who = self.lost(order.process)
            if who is not None:
                return Readiness("lost", f"port {order.port} is answered by pid {who.pid}")
            if server is not None and server.answers and not server.sick:
                scheduler.pause()  # the answer is on its way
                return Readiness("ready", "status 200")
            if scheduler.now >= deadline:
                return Readiness("timeout", "last seen: nobody")
            scheduler.wait_for([cancelled.waiters, world.port_waiters], deadline)
        return Readiness("cancelled")


class SimBackends:
    """One backend of any name."""

    name = "sim"

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, name: str) -> SimBackends:
        return self

    def check(self, spec: ModelSpec) -> None:
        pass

    def plan(self, request: PlanRequest) -> LaunchPlan:
        self._world.scheduler.pause()
        self._world.stall("slow_plan")
        if self._world.fault("plan_refused"):
            raise LaunchFailedError("no such model file")
        ports = tuple(arg for port in request.ports for arg in ("--port", str(port)))
        return LaunchPlan(
            argv=("sim-server", request.spec.name, *ports, *request.spec.args),
            health_path="/health",
            stop_signals=(
                StopSignal(signals.SIGTERM, "leader", request.spec.stop_timeout_s),
                StopSignal(signals.SIGTERM, "leader", 1.0),
            ),
        )


class SimFetcher:
    """A hub that is slow, fails, and can be cancelled."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fetch(
        self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Flag
    ) -> Fetched:
        world = self._world
        progress(Progress(0, 100))
        pieces = 2 + world.choices.choose(3) if world.fault("fetch_slow") else 1
        for piece in range(pieces):
            if cancelled.wait((0.1, 5.0, 60.0)[min(piece, 2)]):
                raise FetchCancelledError
            progress(Progress(piece, 100))
        if world.fault("fetch_failed"):
            raise FetchFailedError("the hub is down")
        return Fetched(
            path=f"/cache/{spec.repo}",
            commit="0" * 40,
            files=(("m", 100, "f" * 64),),
            fetched_bytes=100,
        )


class SimLog(MemoryLog):
    """A log on a disk that may be full, slow, or the last thing its owner sees."""

    def __init__(self, world: World, crash: Callable[[str], None]) -> None:
        super().__init__(LOG_ID, path="sim", storage=world.storage)
        self._world = world
        self._crash = crash

    def append(self, entries: Sequence[Entry], *, snapshot: Snapshot | None = None) -> None:
        world, scheduler = self._world, self._world.scheduler
        if world.fault("append_slow"):
            scheduler.sleep((0.0, 0.02, 1.0)[world.choices.choose(3)])
        if world.log_down or world.fault("append_fails"):
            world.append_failed = True
            raise LogUnavailableError(self.path, world.log_down or "database is locked")
        if world.fault("crash_before"):
            self._crash("before commit")
        super().append(entries, snapshot=snapshot)
        if world.fault("crash_after"):
            self._crash("after commit")

    def snapshot(self, fold_version: int) -> Snapshot | None:
        if self._world.fault("no_snapshot"):
            return None
        return super().snapshot(fold_version)
