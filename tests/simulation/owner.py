"""A service as a process of the simulated world runs it: its own composition, on tasks."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moorage.actors import messages as msg
from moorage.compose import Limits, Parts, Runtime
from moorage.service import OPEN_S, ModelService, _thread
from moorage.spec import ModelSpec
from simulation.scheduler import Process, Scheduler, SimQueue, SimThreads
from simulation.world import (
    SimAlarm,
    SimBackends,
    SimClock,
    SimFetcher,
    SimLog,
    SimPorts,
    SimProcesses,
    World,
)

FOLDER = Path("/simulated")
FIRST_OWNER_PID = 4_000


class SimRuntime(Runtime):
    """Knows which calls the registry has handled."""

    def ask(self, message: msg.FromCaller) -> None:
        self.told(message)
        super().ask(message)

    def told(self, message: msg.FromCaller) -> None:
        """Be told what a caller asks; replaced by who keeps the calls."""


class SimService(ModelService):
    """The service itself; only that it is not closed when the interpreter ends."""

    def __init__(self, runtime: Runtime, state: Path, on_close: str) -> None:
        super().__init__(runtime, state, on_close)
        atexit.unregister(self._close_at_exit)


class Opener:
    """Opens services for one process."""

    def __init__(self, world: World, scheduler: Scheduler, process: Process) -> None:
        self._world = world
        self._scheduler = scheduler
        self._process = process
        self.runtime: SimRuntime | None = None
        """The last one made: it is there while it opens, and after it ended."""
        self.log: SimLog | None = None

    def open(
        self,
        limits: Limits,
        *,
        on_close: str,
        models: tuple[ModelSpec, ...] | None,
        crash: Callable[[str], None],
        told: Callable[[msg.FromCaller], None],
        handled: Callable[[Any], None],
        snapshot_every: int,
    ) -> SimService:
        """Open as `ModelService.open` does. Blocks."""
        world, scheduler = self._world, self._scheduler
        process = self._process
        threads = SimThreads(scheduler, process, lambda: world.fault("no_thread"))
        self.log = log = SimLog(world, crash)
        parts = Parts(
            log=log,
            processes=SimProcesses(world, process),
            ports=SimPorts(world),
            backends=SimBackends(world),
            fetcher=SimFetcher(world),
            clock=SimClock(scheduler),
            new_alarm=lambda wake: SimAlarm(scheduler, process, wake),
            new_threads=lambda: threads,
            new_nonce=lambda: f"{len(log.rows):016x}",
            snapshot_every=snapshot_every,
        )
        runtime = SimRuntime(FOLDER, limits, parts, log, b"0" * 32)
        self.runtime = runtime
        runtime.pid = FIRST_OWNER_PID + process.number
        runtime.told = told  # type: ignore[method-assign]
        _watch_inbox(runtime, handled)
        try:
            runtime.open(limits, OPEN_S)
        except BaseException:
            runtime.end()
            raise
        service = SimService(runtime, FOLDER, on_close)
        service._take_up(models)
        return service


def _watch_inbox(runtime: Runtime, handled: Callable[[Any], None]) -> None:
    """Tell of each message once the registry has handled it, if it did not put it off."""
    inbox = runtime._ref.actor_inbox
    if not isinstance(inbox, SimQueue):
        raise TypeError("the registry runs on a thread")
    last: list[Any] = []
    take = inbox.get

    def get() -> Any:
        for ticket in last:
            waiting = (getattr(envelope.message, "ticket", None) for envelope in inbox.items)
            if all(other is not ticket for other in waiting):
                handled(ticket)
        last.clear()
        envelope = take()
        ticket = getattr(envelope.message, "ticket", None)
        if ticket is not None:
            last.append(ticket)
        return envelope

    inbox.get = get  # type: ignore[method-assign]


def be(owner: object) -> None:
    """Let the task that runs be another caller: tasks share a thread, whose own value says who."""
    _thread.owner = owner


def spec_of(name: str, options: Mapping[str, Any], version: int) -> ModelSpec:
    """Return a version of a model's spec."""
    more = dict(options)
    if version:
        more["args"] = (f"--version-{version}",)
    if version == 2:
        more["ttl_s"] = 5.0
    return ModelSpec(name=name, backend="sim", aliases=(f"{name}-alias",), **more)
