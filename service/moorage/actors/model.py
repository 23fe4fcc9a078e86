"""What the actor of a model does: drives the workers of its runs, one operation at a time a run."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, assert_never

from moorage.actors import messages as msg
from moorage.core.pace import Pace
from moorage.errors import ConfigurationError
from moorage.protocols import (
    LOOPBACK,
    Backends,
    ExitStatus,
    FetchCancelledError,
    Fetcher,
    FetchFailedError,
    Flag,
    Identity,
    LaunchFailedError,
    LaunchOrder,
    LaunchPlan,
    PlanRequest,
    Ports,
    Processes,
    Progress,
    Readiness,
    ReadinessOrder,
    RunProcess,
    StopSignal,
)
from moorage.spec import ModelSpec

KILL_WAIT_S = 5.0
"""Seconds after SIGKILL until a stop is called failed."""
MASK = "***"
MASKED_FROM = 4
"""Fewer characters of a secret's beginning say nothing at the end of a line."""
CUT = "…"
HEALTH_MISSES = 3
"""So many questions in a row without an answer make a run unhealthy."""
HEALTH_S = 5.0
"""At least so long each of them waits for its answer."""
HEALTH_PATH = "/health"
"""Asked of an adopted server whose backend is not there any more."""

_log = logging.getLogger(__name__)


class Worker(Protocol):
    """Runs functions one after another, off the actor's thread."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run this after all that was submitted before."""
        ...

    def close(self) -> None:
        """End after what was submitted."""
        ...


class SettableFlag(Flag, Protocol):
    """What `threading.Event` offers of itself."""

    def set(self) -> None:
        """Set it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that a model actor reaches the world through."""

    log_id: str
    logs: Path
    processes: Processes
    ports: Ports
    backends: Backends
    fetcher: Fetcher
    new_worker: Callable[[str], Worker]
    new_flag: Callable[[], SettableFlag]
    monotonic: Callable[[], float]
    died: Callable[[int], None]
    """Told first of a run whose leader ended: its gate closes before anybody decides."""


@dataclass(slots=True)
class _Run:
    """What the actor knows of one run. Fields past `hurry` are set by its worker only."""

    number: int
    worker: Worker
    cancelled: SettableFlag
    hurry: SettableFlag
    spec: ModelSpec | None = None
    plan: LaunchPlan | None = None
    ports: tuple[int, ...] = ()
    process: RunProcess | None = None
    log_file: Path | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    left: bool = False
    """Its actor has ended: nobody will order the stop of what is spawned from now on."""
    unknown_secrets: bool = False


class ModelLogic:
    """The plain logic behind a model actor; `handle` runs in the actor's thread, never blocks."""

    def __init__(self, name: str, world: World, tell: Callable[[msg.FromModel], None]) -> None:
        self.name = name
        self._world = world
        self._tell = tell
        self._runs: dict[int, _Run] = {}

    def handle(self, message: msg.ToModel) -> None:
        """Start what the registry decided."""
        if isinstance(message, msg.Forget):
            self._forget(message.run)
            return
        try:
            run = self._runs.get(message.run) or self._begin(message.run)
        except RuntimeError as error:  # of threads; the other runs of the model go on
            self._tell(refused(message, f"no thread for the run: {error}"))
            return
        match message:
            case msg.Fetch():
                run.worker.submit(lambda: self._fetch(run, message))
            case msg.Prepare():
                run.worker.submit(lambda: self._prepare(run, message))
            case msg.Launch():
                run.worker.submit(lambda: self._launch(run, message))
            case msg.Adopt():
                run.worker.submit(lambda: self._adopt(run, message))
            case msg.StopRun():
                run.cancelled.set()
                if message.hurry:
                    run.hurry.set()
                run.worker.submit(lambda: self._stop(run, message))
            case _:
                assert_never(message)

    def _forget(self, number: int) -> None:
        run = self._runs.pop(number, None)
        if run is not None:  # else it ended while it queued
            run.cancelled.set()
            run.worker.close()

    def close(self) -> None:
        """End the workers; what they are in goes on to its end."""
        for run in self._runs.values():
            run.left = True
            run.cancelled.set()
            run.worker.close()
        self._runs.clear()

    def _begin(self, number: int) -> _Run:
        world = self._world
        run = _Run(
            number=number,
            worker=world.new_worker(f"{self.name}-{number}"),
            cancelled=world.new_flag(),
            hurry=world.new_flag(),
        )
        self._runs[number] = run
        return run

    # --- in the worker ---

    def _fetch(self, run: _Run, order: msg.Fetch) -> None:
        done = msg.FetchDone(run.number, None, "the fetch ended without an answer")
        run.secrets = _parts(order.spec)
        pace = Pace()

        def tell(progress: Progress) -> None:
            now = self._world.monotonic()
            seen = pace.note(now, progress.done_bytes, progress.total_bytes, progress.waiting)
            if seen is not None:
                self._tell(msg.FetchProgress(run.number, seen))

        try:
            fetched = self._world.fetcher.fetch(order.spec, tell, run.cancelled)
            done = msg.FetchDone(run.number, fetched)
        except FetchFailedError as error:
            problem = self._masked(run, error.problem)
            done = msg.FetchDone(run.number, None, problem, error.reason)
        except FetchCancelledError:
            done = msg.FetchDone(run.number, None, "cancelled")
        finally:
            self._tell(done)

    def _prepare(self, run: _Run, order: msg.Prepare) -> None:
        done = msg.PrepareDone(run.number, None, problem="preparing ended without an answer")
        try:
            run.spec, run.ports = order.spec, order.ports
            run.secrets = _parts(order.spec)
            run.plan = plan = self._plan(order.spec, order.path, order.ports)
            run.log_file = self._world.logs / self.name / f"{run.number:06d}.log"
            argv = tuple(self._masked(run, arg) for arg in plan.argv)
            done = msg.PrepareDone(run.number, plan, argv, str(run.log_file))
        except (LaunchFailedError, ConfigurationError) as error:
            done = msg.PrepareDone(run.number, None, problem=self._masked(run, str(error)))
        finally:
            self._tell(done)

    def _launch(self, run: _Run, order: msg.Launch) -> None:
        done = msg.LaunchDone(run.number, None, "the launch ended without an answer")
        identity: Identity | None = None
        try:
            if run.cancelled.is_set():
                done = msg.LaunchDone(run.number, None, "cancelled before the spawn")
                return
            launch = self._order(run, order)
            identity = self._world.processes.launch(launch)
            run.process = RunProcess(
                run=run.number, token=launch.token, identity=identity, ports=run.ports
            )
            done = msg.LaunchDone(run.number, identity)
        except LaunchFailedError as error:
            done = msg.LaunchDone(run.number, None, self._masked(run, error.problem))
        finally:
            self._tell(done)
        if run.process is not None:
            self._world.processes.watch(run.process, lambda status: self._exited(run, status))
            if run.left:
                run.hurry.set()
                self._world.processes.stop(
                    run.process, (), kill_wait_s=KILL_WAIT_S, hurry=run.hurry
                )
                return
            self._wait_ready(run, run.process, self._timeout_s(run))

    def _timeout_s(self, run: _Run) -> float:
        if run.spec is None:
            raise RuntimeError(f"run {run.number} was launched without a spec")
        return run.spec.load_timeout_s

    def _adopt(self, run: _Run, order: msg.Adopt) -> None:
        run.spec, run.process, run.ports = order.spec, order.process, order.process.ports
        run.secrets = _parts(order.spec)
        run.unknown_secrets = order.unknown_secrets
        if order.log_file:  # beside the log, which may have been moved with all of its folder
            run.log_file = self._world.logs / self.name / Path(order.log_file).name
        try:
            run.plan = self._plan(order.spec, order.path, run.ports)
        except (LaunchFailedError, ConfigurationError) as error:
            # It runs already: only how it wants to be asked and stopped is not known any more.
            _log.warning("adopting run %d without its backend: %s", run.number, error)
        self._world.processes.watch(
            order.process, lambda status: self._exited(run, status), log_file=run.log_file
        )
        self._wait_ready(run, order.process, order.timeout_s)

    def _plan(self, spec: ModelSpec, path: str | None, ports: tuple[int, ...]) -> LaunchPlan:
        backend = self._world.backends.get(spec.backend)
        return backend.plan(PlanRequest(spec=spec, path=path, host=LOOPBACK, ports=ports))

    def _order(self, run: _Run, order: msg.Launch) -> LaunchOrder:
        spec, plan, log_file = run.spec, run.plan, run.log_file
        if spec is None or plan is None or log_file is None:
            raise LaunchFailedError("the launch was ordered before it was prepared")
        return LaunchOrder(
            model=self.name,
            run=run.number,
            token=f"{self._world.log_id}:{run.number}:{order.nonce}",
            argv=plan.argv,
            log_file=log_file,
            env={**plan.env, **spec.env, **spec.secrets},
            inherit_env=spec.inherit_env,
            cwd=spec.cwd,
        )

    def _wait_ready(self, run: _Run, process: RunProcess, timeout_s: float) -> None:
        spec = run.spec
        if spec is None:
            raise RuntimeError(f"run {run.number} is awaited without a spec")
        planned = run.plan.health_path if run.plan else HEALTH_PATH
        order = ReadinessOrder(
            process=process,
            port=run.ports[0],
            health_path=spec.health_path or planned,
            timeout_s=timeout_s,
            owner_check=spec.owner_check,
        )
        readiness = self._ask(run, order)
        self._tell(msg.ReadyDone(run.number, readiness))
        if readiness.outcome == "ready" and spec.health_interval_s is not None:
            self._watch_health(run, order, spec.health_interval_s)

    def _ask(self, run: _Run, order: ReadinessOrder) -> Readiness:
        try:
            return self._world.ports.wait_ready(order, run.cancelled)
        except Exception as error:  # noqa: BLE001  unanswered, its callers would wait for the deadline
            _log.exception("run %d cannot be asked whether it is ready", run.number)
            return Readiness("timeout", f"it could not be asked: {error}")

    def _watch_health(self, run: _Run, order: ReadinessOrder, every_s: float) -> None:
        """Ask again and again until the run ends; its worker has nothing else to do."""
        order = dataclasses.replace(order, timeout_s=max(every_s, HEALTH_S))
        misses = 0
        while not run.cancelled.wait(every_s):
            readiness = self._ask(run, order)
            misses = 0 if readiness.outcome == "ready" else misses + 1
            if misses == HEALTH_MISSES and not run.cancelled.is_set():
                self._tell(msg.Unhealthy(run.number, readiness.detail))
                misses = 0  # a run that drains may stay after all, and is watched on

    def _exited(self, run: _Run, status: ExitStatus) -> None:
        """Runs in the watcher's thread."""
        self._world.died(run.number)
        run.cancelled.set()
        tail = self._world.processes.log_tail(run.log_file) if run.log_file else ()
        if tail and run.unknown_secrets:
            tail = (f"withheld: {run.log_file} may hold secrets that its new owner was not given",)
        masked = tuple(self._masked(run, line) for line in tail)
        self._tell(msg.ExitSeen(run.number, status, masked))

    def _stop(self, run: _Run, order: msg.StopRun) -> None:
        done = msg.StopDone(run.number, None, "the stop ended without an answer")
        try:
            signals = order.signals
            if signals is None:
                signals = run.plan.stop_signals if run.plan else self._plain_stop(order.spec)
            process = run.process or order.process
            if run.process is None and process.identity is not None:
                run.process = process
                self._world.processes.watch(process, lambda status: self._exited(run, status))
            report = self._world.processes.stop(
                process,
                signals,
                kill_wait_s=KILL_WAIT_S,
                hurry=run.hurry,
            )
            done = msg.StopDone(run.number, report)
        finally:
            self._tell(done)

    def _plain_stop(self, spec: ModelSpec) -> tuple[StopSignal, ...]:
        """How a server is stopped whose backend is not known any more."""
        return (StopSignal(signal.SIGTERM, "leader", spec.stop_timeout_s),)

    def _masked(self, run: _Run, text: str) -> str:
        for secret in run.secrets:
            text = text.replace(secret, MASK)
            if text.endswith(CUT):  # where a long line was cut, a beginning of one may be left
                text = _without_beginning(text.removesuffix(CUT), secret) + CUT
        return text


def refused(message: msg.Order, problem: str) -> msg.FromModel:
    """Return the report of an order that could not be given."""
    match message:
        case msg.Fetch():
            return msg.FetchDone(message.run, None, problem)
        case msg.Prepare():
            return msg.PrepareDone(message.run, None, problem=problem)
        case msg.Launch():
            return msg.LaunchDone(message.run, None, problem)
        case msg.Adopt():
            return msg.ReadyDone(message.run, Readiness("timeout", problem))
        case msg.StopRun():
            return msg.StopDone(message.run, None, problem)


def _parts(spec: ModelSpec) -> tuple[str, ...]:
    """Return what is masked: line by line, as output is seen; the longest first, or ends stay."""
    values = spec.secrets.values()
    parts = {part for value in values for part in (value, *value.splitlines()) if part.strip()}
    return tuple(sorted(parts, key=len, reverse=True))


def _without_beginning(text: str, secret: str) -> str:
    found = (n for n in range(len(secret) - 1, 0, -1) if text.endswith(secret[:n]))
    length = next(found, 0)
    return text[: len(text) - length] + MASK if length >= MASKED_FROM else text
