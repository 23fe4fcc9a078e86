"""One history of one world: steps, what each of them shows, and the rest at its end."""

from __future__ import annotations

import logging
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from moorage import Lease, MoorageError
from moorage.actors import messages as msg
from moorage.compose import Limits
from moorage.core.fold import apply
from moorage.core.lifecycle import Stage
from moorage.core.snapshot import state_to_data
from moorage.core.state import State
from moorage.log.rows import Row, to_entry, to_object
from moorage.protocols import ExitStatus
from moorage.service import OPEN_S
from simulation.callers import Caller, Interrupt
from simulation.choices import Choices
from simulation.owner import Opener, SimRuntime, SimService, spec_of
from simulation.plan import FIRST_PORT, Plan
from simulation.scheduler import KilledError, NoThreadError, Process, Scheduler
from simulation.sight import SeenAnswer, SeenCall, SeenLease, SeenRow, SeenServer, Sight
from simulation.world import World
from support import collector

REST_STEPS = 20_000
"""Steps in which a world without faults has to come to rest."""
MOST_RINGS = 200
"""More alarms at one moment are a registry that keeps itself busy."""
CREEPS_S = (0.001, 0.03, 0.3)
PATIENT_S = 0.5
"""Nobody who can go on is made to wait longer."""
OPENER = 0
"""The number of who opens and closes, among the callers."""
RETRY_OPEN_S = 1.0
OPENING_STEPS = 16
"""Within about so many the world of an earlier owner is taken over."""


class WrongError(Exception):
    """Something that must never be so, seen by the engine itself."""


class Looks(Protocol):
    """Who judges."""

    def look(self, sight: Sight) -> None:
        """Raise for what must never be so."""
        ...


@dataclass(slots=True)
class Tally:
    """What happened, by name."""

    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: Tally) -> None:
        self.steps += other.steps
        self.counts += other.counts
        self.faults += other.faults


@dataclass(slots=True)
class _Shown:
    """What was shown last: most of it is the same in the next step."""

    rows: int = 0
    calls: tuple[SeenCall, ...] = ()
    servers: tuple[SeenServer, ...] = ()
    strangers: Mapping[int, int] = field(default_factory=dict[int, int])
    state: State | None = None
    published: Mapping[str, Any] | None = None


class Simulation:
    """Everything of one history."""

    def __init__(self, plan: Plan, choices: Choices, judge: Looks) -> None:
        self.plan = plan
        self.choices = choices
        self.judge = judge
        self.scheduler = Scheduler(choices)
        self.scheduler.preempts = plan.rate("preempt")
        self.world = World(plan, self.scheduler)
        self.tally = Tally()
        self.calm = False
        self.service: SimService | None = None
        self.opener: Opener | None = None
        self.calls_changed = False
        self.dropped: list[tuple[weakref.ref[Lease], int]] = []
        """Leases that callers have lost, with their runs."""
        self.history: list[str] = []
        self.state: State | None = None
        self._answers: list[SeenAnswer] = []
        self._errors = _Errors()
        self._process: Process | None = None
        self._processes = 0
        self._next_process = 0.0
        self._crash_in = 0
        self._callers: list[Caller] = []
        self._main: Caller | None = None
        self.owner = 0
        self._open = False
        self._closed_for_good = False
        self._end = False
        self._shown = _Shown()
        self._rings = 0

    # --- the whole ---

    def run(self) -> Tally:
        """Play it to its end. Raises what the judge, or the engine itself, finds wrong."""
        with self._errors, collector.off():
            try:
                for _ in range(self.plan.steps):
                    self.step()
                self._come_to_rest()
            finally:
                if self._process is not None:
                    self.scheduler.kill(self._process)
                self.tally.faults += self.world.faults
        return self.tally

    def _come_to_rest(self) -> None:
        self._calm_down()
        for _ in range(REST_STEPS):
            self.step()
            if self._closed_for_good:
                break
        else:
            raise WrongError(f"no rest within {REST_STEPS} steps without faults")
        self._check_replay()
        self._end = True
        self._look("the end")

    def _calm_down(self) -> None:
        self.calm = True
        self.world.heal()
        self.scheduler.preempts = 0

    def _check_replay(self) -> None:
        state = State()
        for row in self.world.storage.rows:
            apply(state, to_entry(row, "sim"))
        if state != self.state:
            raise WrongError("the log replayed is not the live state")

    # --- a step ---

    def step(self) -> None:
        """Do one thing and show what came of it."""
        self.world.signalled.clear()
        self.choices.step()
        try:
            what = self._do()
        except (KilledError, WrongError):
            raise
        except Exception as error:
            told = "".join(traceback.format_exception(error))
            raise WrongError(f"a part of the service raised what it should not:\n{told}") from error
        self.tally.steps += 1
        self._look(what)

    def _do(self) -> str:
        process = self._process
        if process is not None and process.doomed:
            return self._crash()
        self._crash_in -= 1
        if process is not None and self._crash_in == 0 and not self.calm:
            return self._crash()
        if process is None:
            if self.scheduler.now >= self._next_process:
                return self._begin_process()
        elif not self.calm:
            what = self._fault(process)
            if what:
                return what
        return self._go_on()

    def _go_on(self) -> str:
        scheduler = self.scheduler
        ready = len(scheduler.ready)
        if ready:
            place = 0
            if scheduler.waited() < PATIENT_S:
                if not self.calm and self.world.fault("creep"):
                    creep = CREEPS_S[self.choices.choose(len(CREEPS_S))]
                    return f"{creep} s pass: {scheduler.pass_time(scheduler.now + creep)}"
                if ready > 1 and self.world.fault("reorder"):
                    place = self.choices.choose(ready)
            return scheduler.run(place)
        due = scheduler.next_at()
        if self._process is None:
            due = self._next_process if due is None else min(due, self._next_process)
        if due is None:
            raise WrongError("nobody can go on and nothing is due")
        later_s = max(due - scheduler.now, 0.0)
        done = scheduler.pass_time(due)
        self._rings = 0 if later_s else self._rings + 1
        if self._rings > MOST_RINGS:
            raise WrongError(f"no time passes: {done} again and again")
        return f"{later_s:g} s later: {done}"

    # --- faults ---

    def _fault(self, process: Process) -> str:
        world = self.world
        for name, work in _FAULTS:
            if world.rates.get(name) and world.fault(name):
                return f"{name}: {work(self, process)}"
        return ""

    def _fault_crash(self, process: Process) -> str:
        return self._crash()

    def _fault_exit(self, process: Process) -> str:
        servers = [s for s in self.world.servers.values() if s.leader_alive]
        if not servers:
            return "no server"
        server = servers[self.choices.choose(len(servers))]
        status = (ExitStatus(signal=9), ExitStatus(code=0), ExitStatus(code=3))
        self.world.exit(server, status[self.choices.choose(3)])
        return f"{server.model}{server.run}"

    def _fault_interrupt(self, process: Process) -> str:
        waiting = [c for c in self._callers if c.call is not None and c.task.waits]
        if not waiting:
            return "nobody waits"
        caller = waiting[self.choices.choose(len(waiting))]
        self.scheduler.interrupt(caller.task, Interrupt())
        return f"caller {caller.number}"

    def _fault_log_down(self, process: Process) -> str:
        world = self.world
        world.log_down = ("disk is full", "database is locked")[self.choices.choose(2)]
        seconds = (0.2, 2.0, 20.0)[self.choices.choose(3)]

        def up() -> None:
            world.log_down = ""

        self.scheduler.at(self.scheduler.now + seconds, "the disk is back", up)
        return f"{world.log_down} for {seconds:g} s"

    def _fault_stranger(self, process: Process) -> str:
        world = self.world
        port = FIRST_PORT + self.choices.choose(self.plan.ports)
        seconds = (0.1, 3.0, 60.0)[self.choices.choose(3)]
        world.come(port)
        self.scheduler.at(
            self.scheduler.now + seconds, f"the stranger on {port} goes", lambda: world.go(port)
        )
        return f"on {port} for {seconds:g} s"

    def _fault_sick(self, process: Process) -> str:
        servers = [s for s in self.world.servers.values() if s.answers]
        if not servers:
            return "no server"
        server = servers[self.choices.choose(len(servers))]
        server.sick = not server.sick
        self.world.changed(server)
        return f"{server.model}{server.run}: {server.sick}"

    # --- processes ---

    def crash(self, where: str) -> None:
        """Be killed here and now: the task that calls never goes on."""
        if self._process is None:
            raise RuntimeError("nobody is there to be killed")
        self._process.doomed = True
        self.scheduler.block()

    def exit(self) -> None:
        """End the process, with whatever its threads are at."""
        self.crash("at its end")

    def _crash(self) -> str:
        process = self._process
        if process is None:
            raise RuntimeError("nobody is there to be killed")
        self.tally.counts["crashes"] += 1
        self._end_process()
        self.owner += 1
        return f"process {process.number} is killed"

    def _end_process(self) -> None:
        if self._process is not None:
            self.scheduler.kill(self._process)
        if self.opener is not None and self.opener.log is not None:
            self.opener.log.close()
        self._callers = []
        self._main = None
        self._answers.clear()
        self.service = None
        self.opener = None
        self._process = None
        self._open = False
        self.calls_changed = True
        self._errors.clear()
        later_s = (0.1, 0.0, 5.0, 100.0)[self.choices.choose(4)]
        self._next_process = self.scheduler.now + later_s
        if self.world.fault("reboot"):
            self.world.reboot()

    def _begin_process(self) -> str:
        self._processes += 1
        process = self._process = Process(self._processes)
        self.opener = Opener(self.world, self.scheduler, process)
        self._main = Caller(self, OPENER)
        self._main.task = self.scheduler.spawn("main", self._live, process)
        return f"process {process.number} begins"

    def _live(self) -> None:
        """The main thread of a process: open, let callers do what they do, open again."""
        while True:
            service = self._open_service()
            if service is None:
                self.scheduler.sleep(RETRY_OPEN_S)
                continue
            self._spawn_callers()
            if self._wait_for_end(service):
                return
            if self.world.spawning:  # a host that closes in the midst of a launch ends with it
                self.exit()

    def _wait_for_end(self, service: SimService) -> bool:
        """Wait until the service was closed; tell whether that was for good."""
        ended = service._runtime.done.is_set
        self.scheduler.until(lambda: ended() or self._at_rest(), None)
        if not ended():
            return self._close_at_rest(service)
        self._after_close()
        return False

    def _close_at_rest(self, service: SimService) -> bool:
        """Close, or bring a closing to its end whose caller was interrupted: then open again."""
        again = service._runtime.registry.volatile.closed
        main = self._main
        if main is None:
            raise RuntimeError("there is no main thread")
        main.make("close", (), 30.0, lambda: service.close("stop", drain_s=0), keep=False)
        self._after_close()
        self._closed_for_good = not again
        return self._closed_for_good

    def _after_close(self) -> None:
        self.tally.counts["closings"] += 1
        self.state = self.service._runtime.registry.state if self.service else None
        self._open = False
        self.service = None

    def _at_rest(self) -> bool:
        if not self.calm or any(not caller.over for caller in self._callers):
            return False
        service = self.service
        if service is None:
            return False
        registry = service._runtime.registry
        if registry.volatile.closed:
            return True
        return not registry.ledger.backlog and all(
            run.stage is Stage.QUEUED
            or (run.stage is Stage.READY and not registry.hall.unproven(run.run))
            for run in registry.state.runs.values()
        )

    def _spawn_callers(self) -> None:
        if self._callers or self._process is None or self.calm:
            return
        for number in range(1, self.plan.callers + 1):
            caller = Caller(self, number)
            caller.task = self.scheduler.spawn(f"caller-{number}", caller.run, self._process)
            self._callers.append(caller)

    # --- opening ---

    def _open_service(self) -> SimService | None:
        main, opener = self._main, self.opener
        if main is None or opener is None:
            raise RuntimeError("there is no main thread")
        self.owner += 1
        limits = self._limits()
        first = not self.world.storage.rows
        whole = first or self.choices.choose(4) == 1
        models = tuple(
            spec_of(name, options, 0)
            for name, options in zip(self.plan.names, self.plan.models, strict=True)
        )
        options: dict[str, Any] = {"max_loaded": limits.max_loaded}
        if whole:
            options |= {spec.name: spec.to_data() for spec in models}

        def work() -> SimService:
            return opener.open(
                limits,
                on_close=self.plan.on_close,
                models=models if whole else None,
                crash=self.crash,
                told=self._told,
                handled=self._handled,
                snapshot_every=self.plan.snapshot_every,
            )

        try:
            service = main.make("open", (), OPEN_S + 30.0, work, **options)
        except NoThreadError:
            return None
        if service is not None:
            self.service = service
            self._open = True
            self.tally.counts["openings"] += 1
        return service

    def _limits(self) -> Limits:
        plan, pick = self.plan, self.choices.choose
        first, last = FIRST_PORT, FIRST_PORT + plan.ports - 1
        max_loaded, memory_limit = plan.max_loaded, plan.memory_limit
        if self.world.fault("other_ports"):
            first, last = first + pick(2), max(first + 1, last - pick(2))
        if self.world.fault("other_limits"):
            max_loaded = 1 + pick(3)
            if memory_limit is not None:
                memory_limit = (100, 200)[pick(2)]
        return Limits(
            ports=((first, last),),
            max_loaded=max_loaded,
            memory_limit=memory_limit,
            min_residency_s=plan.min_residency_s,
            max_waiting=plan.max_waiting,
        )

    # --- calls ---

    def _told(self, message: msg.FromCaller) -> None:
        current = self.scheduler.current
        for caller in self._everybody():
            if caller.task is current:
                caller.ticket = message.ticket

    def _handled(self, ticket: Any) -> None:
        for caller in self._everybody():
            if caller.ticket is ticket and caller.call is not None and not caller.call.heard:
                caller.call = replace(caller.call, heard=True)
                self.calls_changed = True

    def _everybody(self) -> tuple[Caller, ...]:
        return (*((self._main,) if self._main is not None else ()), *self._callers)

    def answered(self, answer: SeenAnswer) -> None:
        self._answers.append(answer)
        self.calls_changed = True
        if answer.leases:
            self.tally.counts["leases"] += len(answer.leases)
        if answer.error:
            self.tally.counts[f"answered {answer.error}"] += 1

    # --- what is shown ---

    def _look(self, what: str) -> None:
        if self._errors.found:
            raise WrongError(f"an error was logged that should not be: {self._errors.found[0]}")
        runtime = self.opener.runtime if self.opener is not None else None
        failure = runtime._failure if runtime is not None else None
        if failure is not None:
            raise WrongError(f"the registry stopped: {failure}")
        self.history.append(what)
        doomed = self._process is not None and self._process.doomed
        ended = runtime is None or runtime.done.is_set() or doomed
        open_ = self._open and not ended
        answers = tuple(self._answers)
        self._answers.clear()
        self.judge.look(
            Sight(
                step=self.tally.steps,
                what=what,
                now=self.scheduler.now,
                owner=self.owner,
                open=open_,
                rows=self._new_rows(),
                answers=answers,
                servers=self._seen_servers(),
                strangers=self._shown.strangers,
                signalled=tuple(self.world.signalled),
                leases=self._seen_leases(),
                calls=self._seen_calls(),
                published=None if ended or runtime is None else self._seen_state(runtime),
                unwritten=runtime.registry.ledger.backlog if runtime is not None else 0,
                log_works=self._log_works(runtime),
                calm=self.calm,
                lingering=self._lingering(),
                max_waiting=self.plan.max_waiting,
                end=self._end,
            )
        )

    def _log_works(self, runtime: SimRuntime | None) -> bool:
        failed, self.world.append_failed = self.world.append_failed, False
        unwritable = runtime is not None and runtime.registry.ledger.unwritable is not None
        return not (self.world.log_down or failed or unwritable)

    def _new_rows(self) -> tuple[SeenRow, ...]:
        rows = self.world.storage.rows
        if len(rows) == self._shown.rows:
            return ()
        new = tuple(_seen_row(row) for row in rows[self._shown.rows :])
        self._shown.rows = len(rows)
        counts = self.tally.counts
        for row in new:
            if row.kind in _COUNTED:
                counts[_COUNTED[row.kind]] += 1
        return new

    def _seen_servers(self) -> tuple[SeenServer, ...]:
        if self.world.dirty:
            self.world.dirty = False
            self._shown.strangers = dict(self.world.strangers)
            self._shown.servers = tuple(
                SeenServer(
                    model=server.model,
                    run=server.run,
                    token=server.token,
                    leader=server.pid,
                    leader_alive=server.leader_alive,
                    others=tuple(sorted(server.others)),
                    ports=server.ports,
                    memory_bytes=server.memory,
                    answers=server.answers and not server.sick,
                )
                for server in self.world.servers.values()
            )
        return self._shown.servers

    def _seen_leases(self) -> tuple[SeenLease, ...]:
        return tuple(lease for caller in self._callers if caller.held for lease in caller.leases())

    def _lingering(self) -> tuple[int, ...]:
        if self.dropped:
            self.dropped = [(lease, run) for lease, run in self.dropped if lease() is not None]
        return tuple(run for _, run in self.dropped)

    def _seen_calls(self) -> tuple[SeenCall, ...]:
        if self.calls_changed:
            self.calls_changed = False
            self._shown.calls = tuple(c.call for c in self._everybody() if c.call is not None)
        return self._shown.calls

    def _seen_state(self, runtime: SimRuntime) -> Mapping[str, Any] | None:
        state = runtime.registry.state
        if state is not self._shown.state:
            self._shown.state = state
            self._shown.published = state_to_data(state)
        return self._shown.published


_FAULTS: tuple[tuple[str, Callable[[Simulation, Process], str]], ...] = (
    ("crash", Simulation._fault_crash),
    ("exit", Simulation._fault_exit),
    ("interrupt", Simulation._fault_interrupt),
    ("log_down", Simulation._fault_log_down),
    ("stranger", Simulation._fault_stranger),
    ("sick", Simulation._fault_sick),
)
_COUNTED = {
    "run.evicting": "evictions",
    "run.launching": "launches",
    "run.ready": "loads",
    "run.adopted": "adoptions",
    "run.stop_failed": "stops failed",
    "run.reopened": "drains undone",
    "process.reaped": "strays reaped",
    "model.failed": "budgets spent",
}


def _seen_row(row: Row) -> SeenRow:
    return SeenRow(
        seq=row.seq,
        at=row.at,
        kind=row.kind,
        model=row.model,
        run=row.run,
        port=row.port,
        pid=row.pid,
        cause=row.cause,
        data=to_object(row.data),
    )


class _Errors(logging.Handler):
    """Hears errors that parts of the service log because nobody is there to raise them to."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self._levels: dict[str, tuple[int, bool]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or isinstance(error, KilledError | NoThreadError):
            return
        if isinstance(error, MoorageError):
            return
        told = "".join(traceback.format_exception(error))
        self.found.append(f"{record.getMessage()}\n{told}")

    def clear(self) -> None:
        self.found.clear()

    def __enter__(self) -> _Errors:
        for name in ("moorage", "pykka"):
            logger = logging.getLogger(name)
            self._levels[name] = (logger.level, logger.propagate)
            logger.setLevel(logging.ERROR)
            logger.propagate = False
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name, (level, propagate) in self._levels.items():
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate
