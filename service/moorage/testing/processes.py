"""Servers that are only told of: they start, exit and resist as a test scripts it."""

from __future__ import annotations

import itertools
import signal as signals
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage.protocols import (
    ExitStatus,
    Flag,
    FoundProcess,
    Identity,
    LaunchFailedError,
    LaunchOrder,
    RunProcess,
    StopReport,
    StopSignal,
)
from moorage.testing.holds import Hold

_FIRST_PID = 10_000_001  # no kernel gives out so high a number: nothing real can be meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one server behaves. The default one starts, and exits with 0 at the first signal."""

    refuse: str = ""
    """Nothing is spawned; why."""
    exits: ExitStatus | None = None
    """It ends by itself right after the spawn."""
    ignores: frozenset[int] = frozenset()
    """Signals it does not react to; SIGKILL always works."""
    unkillable: bool = False
    """No signal ends it, only `exit`."""
    children: int = 0
    """Processes that outlive the leader until they are swept."""
    stuck_children: int = 0
    """Those that outlive SIGKILL, until `let_go`."""
    log: tuple[str, ...] = ()
    """Its output."""
    peak_bytes: int | None = None


class FakeServer:
    """One launched server. `status` is None while its leader lives."""

    def __init__(self, order: LaunchOrder, script: Script, pids: Sequence[int], boot: str) -> None:
        self.order = order
        self.script = script
        leader, *others = pids
        self.identity = Identity(leader, leader, leader, leader, boot)
        self.children = set(others[: script.children])
        self.stuck = set(others[script.children :])
        self.signals: list[int] = []
        self.status: ExitStatus | None = None
        self.listeners: list[Callable[[ExitStatus], None]] = []
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """The model it was launched for."""
        return self.order.model

    @property
    def run(self) -> int:
        """The run it was launched for."""
        return self.order.run

    @property
    def pid(self) -> int:
        """The leader's pid."""
        return self.identity.pid

    @property
    def alive(self) -> bool:
        """True while the leader lives."""
        return self.status is None

    @property
    def gone(self) -> bool:
        """True when nothing of its tree is left."""
        return not (self.alive or self.children or self.stuck)

    def exit(self, code: int | None = 0, *, signal: int | None = None) -> None:
        """Let the leader end by itself and tell who watches, from the calling thread."""
        status = ExitStatus(None, signal) if signal is not None else ExitStatus(code, None)
        with self._lock:
            if self.status is not None:
                return
            self.status = status
            listeners, self.listeners = self.listeners, []
        for tell in listeners:
            tell(status)

    def let_go(self) -> None:
        """Let the children that outlived SIGKILL end."""
        self.stuck.clear()

    def listen(self, on_exit: Callable[[ExitStatus], None]) -> None:
        """Tell of the exit, at once when it was."""
        with self._lock:
            if self.status is None:
                self.listeners.append(on_exit)
                return
            status = self.status
        on_exit(status)

    def obey(self, order: Sequence[StopSignal], hurry: Flag) -> tuple[int, ...]:
        """Be stopped; return the pids that had to be killed beyond the leader."""
        for step in order:
            if not self.alive or hurry.is_set():
                break
            self.signals.append(step.number)
            if not self.script.unkillable and step.number not in self.script.ignores:
                self.exit(0)
        if self.alive:
            self.signals.append(signals.SIGKILL)
            if not self.script.unkillable:
                self.exit(None, signal=signals.SIGKILL)
        swept = tuple(sorted(self.children))
        self.children.clear()
        return swept

    @property
    def left(self) -> tuple[int, ...]:
        """Return the pids of its tree that live."""
        leader = {self.pid} if self.alive else set[int]()
        return tuple(sorted(leader | self.children | self.stuck))


class FakeProcesses:
    """The servers of a service under test. Any thread; survives the service, as servers do.

    `launches` and `stops` record every call, `most_alive` how many servers of one model lived at
    once at most.
    """

    def __init__(self, boot_id: str = "fake-boot") -> None:
        self._lock = threading.Lock()
        self._boot_id = boot_id
        self._pids = itertools.count(_FIRST_PID)
        self._next: dict[str, deque[Script]] = defaultdict(deque)
        self._always: dict[str, Script] = {}
        self._holds: dict[tuple[str, str], Hold] = {}
        self._servers: dict[str, FakeServer] = {}
        self.launches: list[LaunchOrder] = []
        self.stops: list[RunProcess] = []
        self.most_alive: dict[str, int] = defaultdict(int)
        self.closed = 0

    # --- for the test ---

    def will(self, model: str, *scripts: Script) -> None:
        """Script the next launches of a model, one each."""
        self._next[model].extend(scripts)

    def always(self, model: str, script: Script) -> None:
        """Script every launch of a model that `will` does not."""
        self._always[model] = script

    def hold_launch(self, model: str) -> Hold:
        """Make the model's launches wait, before the spawn, until the hold is released."""
        return self._holds.setdefault(("launch", model), Hold(f"launch of {model}"))

    def hold_stop(self, model: str) -> Hold:
        """Make the model's stops wait, before the first signal; being in a hurry ends the wait."""
        return self._holds.setdefault(("stop", model), Hold(f"stop of {model}"))

    def server(self, model: str) -> FakeServer:
        """Return the model's latest server. Raises LookupError when it never had one."""
        for server in reversed(self._servers.values()):
            if server.model == model:
                return server
        raise LookupError(f"no server of {model} was launched")

    def servers(self) -> tuple[FakeServer, ...]:
        """Return every server ever launched, oldest first."""
        return tuple(self._servers.values())

    def alive(self) -> tuple[FakeServer, ...]:
        """Return the servers of which something lives."""
        return tuple(server for server in self.servers() if not server.gone)

    def of(self, process: RunProcess) -> FakeServer | None:
        """Return the server of a run, None when it was never spawned."""
        return self._servers.get(process.token)

    # --- for the service ---

    def launch(self, order: LaunchOrder) -> Identity:
        """Start as scripted."""
        self.launches.append(order)
        hold = self._holds.get(("launch", order.model))
        if hold is not None:
            hold.wait()
        script = self._script(order.model)
        if script.refuse:
            raise LaunchFailedError(script.refuse)
        with self._lock:
            count = 1 + script.children + script.stuck_children
            pids = [next(self._pids) for _ in range(count)]
            server = FakeServer(order, script, pids, self._boot_id)
            self._servers[order.token] = server
            living = sum(s.model == order.model and s.alive for s in self._servers.values())
            self.most_alive[order.model] = max(self.most_alive[order.model], living)
        if script.exits is not None:
            server.exit(script.exits.code, signal=script.exits.signal)
        return server.identity

    def watch(
        self,
        process: RunProcess,
        on_exit: Callable[[ExitStatus], None],
        *,
        log_file: Path | None = None,  # noqa: ARG002  nothing is written here
    ) -> None:
        """Tell of the leader's exit once, from the thread that lets it exit."""
        if process.identity is None:
            raise ValueError(f"run {process.run} has no leader that could be watched")
        server = self.of(process)
        if server is None:
            on_exit(ExitStatus())
        else:
            server.listen(on_exit)

    def stop(
        self,
        process: RunProcess,
        signals: Sequence[StopSignal],
        *,
        kill_wait_s: float,  # noqa: ARG002  nothing takes time here
        hurry: Flag,
    ) -> StopReport:
        """Stop as scripted. Takes no time: a signal that is ignored is followed by the next."""
        self.stops.append(process)
        server = self.of(process)
        hold = self._holds.get(("stop", server.model)) if server is not None else None
        if hold is not None:
            hold.wait(hurry)
        return StopReport(
            swept=server.obey(signals, hurry) if server is not None else (),
            remaining=server.left if server is not None else (),
            unproven=(),
            ports_open=(),
            seconds=0.0,
            peak_bytes=self.memory(process),
        )

    def lives(self, process: RunProcess) -> bool:
        """Tell whether the leader lives, as the same process of the same boot."""
        server = self.of(process)
        return server is not None and server.alive and server.identity == process.identity

    def memory(self, process: RunProcess) -> int | None:
        """Return the peak its script gives."""
        server = self.of(process)
        return server.script.peak_bytes if server is not None else None

    def log_tail(self, log_file: Path, *, lines: int = 20) -> tuple[str, ...]:
        """Return the output its script gives; no file is written."""
        for server in reversed(self.servers()):
            if server.order.log_file == log_file:
                return server.script.log[-lines:]
        return ()

    def find(self, log_id: str) -> Sequence[FoundProcess]:
        """Return every live process of every server with a token of this log."""
        return [
            FoundProcess(
                pid=pid,
                start_ticks=pid,
                token=server.order.token,
                run=server.run,
                nonce=server.order.token.rpartition(":")[2],
                command=" ".join(server.order.argv),
            )
            for server in self.alive()
            if server.order.token.startswith(f"{log_id}:")
            for pid in server.left
        ]

    def boot_id(self) -> str:
        """Return what the constructor was given."""
        return self._boot_id

    def close(self) -> None:
        """Count it; servers are left alone and can be found by the next service."""
        self.closed += 1

    def _script(self, model: str) -> Script:
        with self._lock:
            scripted = self._next[model]
            return scripted.popleft() if scripted else self._always.get(model, Script())
