"""A world so small that all of its histories can be made: every step is one of a few options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from moorage.protocols import ExitStatus
from simulation.callers import Caller, Interrupt
from simulation.choices import Choices
from simulation.engine import Looks, Simulation
from simulation.plan import Plan
from simulation.scheduler import Task, Timer
from simulation.world import Server
from support import collector

CALL_S = 1e6
"""Nobody's own deadline comes: that somebody gives up is an option of its own."""
BEGAN_S = 1e7
"""Times are far from every duration."""
BY_CHOICE = "-- from here on, by choice"
PATIENT_S = 30.0
"""What is due later than this does not come."""
OWN_FRAMES = 4
"""So many frames at most are the scheduler's own, with that of who waits."""


class Options(Choices):
    """Chooses among options; all else is quiet."""

    def choose(self, n: int) -> int:
        return 0

    def pick(self, options: Sequence[str]) -> int:
        """Return the place of the one to take."""
        raise NotImplementedError


class Given(Options):
    """Takes the options it was given, by their places."""

    def __init__(self, places: Sequence[int]) -> None:
        self.taken = []
        self._places = iter(places)

    def pick(self, options: Sequence[str]) -> int:
        place = next(self._places)
        self.taken.append(place)
        return place


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What can happen beside the service's own steps, and how often in one history."""

    most: int = 1
    """Leases that a caller holds."""
    held: bool = False
    """Begin with a loaded and leased by the first caller, else with nothing loaded."""

    acts: tuple[str, ...] = ("lease a", "lease b", "release")
    once: tuple[str, ...] = ("give up",)
    """Acts that are done once at most, by whomever."""
    exits: int = 0
    crashes: int = 0
    refusals: int = 0
    """Launches that come to nothing."""
    full: int = 0
    """Appends that the disk refuses."""


Act = Callable[["SmallCaller"], None]


class SmallCaller(Caller):
    """Does what it is told, one thing at a time."""

    def __init__(self, world: SmallWorld, number: int) -> None:
        super().__init__(world, number)
        self.world = world
        self.order: str = ""
        self.acted = False

    def run(self) -> None:
        scheduler = self.sim.scheduler
        while not self.sim.calm:
            scheduler.until(lambda: bool(self.order) or self.sim.calm, None)
            order, self.order = self.order, ""
            try:
                if order:
                    ACTS[order](self)
            except Interrupt:
                continue
        while self.held:
            self.held.pop(0)[1].release()
        self.over = True

    @property
    def idle(self) -> bool:
        return self.call is None and not self.order and not self.task.ready

    def can(self, act: str) -> bool:
        """Tell whether it could do this now."""
        if act == "give up":
            return self.call is not None and self.task.waits
        if not self.idle:
            return False
        if act == "release":
            return bool(self.held)
        if act in WAITS_FOR_LEASES:  # for those of others: nobody gives up for his own
            return not self.held
        return not act.startswith("lease") or len(self.held) < self.world.alphabet.most


def _lease(name: str) -> Act:
    def act(caller: SmallCaller) -> None:
        service = caller.service
        caller.make("lease", (name,), CALL_S, lambda: service.lease(name, CALL_S))

    return act


def _release(caller: SmallCaller) -> None:
    caller.held.pop(0)[1].release()


def _remove(caller: SmallCaller) -> None:
    service = caller.service
    caller.make(
        "remove", ("a",), CALL_S, lambda: service.remove("a", timeout_s=CALL_S), force=False
    )


def _stop(*, force: bool) -> Act:
    def act(caller: SmallCaller) -> None:
        service = caller.service
        caller.make(
            "stop",
            ("a",),
            CALL_S,
            lambda: service.stop("a", force, timeout_s=CALL_S),
            force=force,
            hold=False,
        )

    return act


def _pin(caller: SmallCaller) -> None:
    service = caller.service
    caller.make("pin", ("a",), CALL_S, lambda: service.pin("a"))


WAITS_FOR_LEASES = ("remove a", "stop a")
ACTS: dict[str, Act] = {
    "lease a": _lease("a"),
    "lease b": _lease("b"),
    "release": _release,
    "remove a": _remove,
    "stop a": _stop(force=False),
    "force a": _stop(force=True),
    "pin a": _pin,
}


def _passes(ready: Task | Timer) -> bool:
    """Tell whether who is ready only passes on what he was told, or takes his answer or order.

    What a worker looks at, does and tells is a step of its own each.
    """
    if isinstance(ready, Timer):
        return False
    return ready.name.startswith(("model-", "caller-", "main")) or (
        ready.name.startswith("worker-") and "get" in _innermost(ready)
    )


def _innermost(task: Task) -> list[str]:
    """Return the names of the functions in which a task waits, the scheduler's own first."""
    names: list[str] = []
    frame = task.greenlet.gr_frame
    while frame is not None and len(names) < OWN_FRAMES:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can happen now."""

    what: str
    work: Callable[[], str]


def small_plan(crash_budget: int = 2) -> Plan:
    """Return two models with one place and two ports, and no fault but those of the alphabet."""
    model = {"load_timeout_s": 600.0, "stop_timeout_s": 10.0, "crash_budget": crash_budget}
    return Plan(
        seed=0,
        steps=0,
        models=(model, model),
        ports=2,
        max_loaded=1,
        memory_limit=None,
        min_residency_s=0.0,
        callers=2,
        on_close="stop",
        patience=0,
        snapshot_every=1_000_000,
        max_waiting=1000,
        rates={},
        acts=("rest",),
    )


class SmallWorld(Simulation):
    """A simulation whose steps are options. What only passes a message on is done at once."""

    def __init__(self, choices: Options, judge: Looks, alphabet: Alphabet) -> None:
        super().__init__(small_plan(), choices, judge)
        self.options = choices
        self.alphabet = alphabet
        self.begun = False
        self.once = list(alphabet.once)
        self._left = {
            "exit": alphabet.exits,
            "crash": alphabet.crashes,
            "refused": alphabet.refusals,
            "append_fails": alphabet.full,
        }
        self.scheduler.now = self._next_process = BEGAN_S
        self.world.fault = self._perhaps  # type: ignore[method-assign]

    @contextmanager
    def played(self) -> Iterator[None]:
        """Hear of errors that nobody raises; at the end, nothing of it goes on."""
        with self._errors, collector.off():
            try:
                yield
            finally:
                if self._process is not None:
                    self.scheduler.kill(self._process)

    def come_to_rest(self) -> None:
        """Let faults cease and everything end; raise for what does not."""
        self.history.append("-- faults cease")
        self._come_to_rest()

    def left(self) -> tuple[object, ...]:
        """Return what can still happen."""
        return (*self._left.values(), *self.once)

    @property
    def small_callers(self) -> list[SmallCaller]:
        return [caller for caller in self._callers if isinstance(caller, SmallCaller)]

    def begin(self) -> None:
        """Open, define, and let the callers be idle; the first with a lease, if that is so."""
        while not self._at_peace():
            self.step()
        if self.alphabet.held:
            first = self.small_callers[0]
            first.order = "lease a"
            self.scheduler._poll()
            while not (first.held and self._at_peace()):
                self.step()
            first.acted = True
        self.begun = True
        self.history.append(BY_CHOICE)

    def _at_peace(self) -> bool:
        """Tell whether the service is open and nothing goes on."""
        callers = self.small_callers
        return bool(callers) and all(c.idle for c in callers) and not self.scheduler.ready

    def _spawn_callers(self) -> None:
        if self._callers or self._process is None or self.calm:
            return
        for number in range(1, self.plan.callers + 1):
            caller = SmallCaller(self, number)
            caller.task = self.scheduler.spawn(f"caller-{number}", caller.run, self._process)
            self._callers.append(caller)

    # --- faults ---

    def _perhaps(self, name: str) -> bool:
        if not self._left.get(name) or self.calm or not self.begun or self.service is None:
            return False
        if not self.options.pick((f"not {name}", name)):
            return False
        self._left[name] -= 1
        self.world.faults[name] += 1
        return True

    # --- a step ---

    def _do(self) -> str:
        if self.calm or not self.begun or self._process is None or self.service is None:
            return super()._do()
        options = list(self._options())
        option = options[self.options.pick([each.what for each in options])]
        told = option.work()
        self._pass_on()
        return f"{option.what}: {told}"

    def _pass_on(self) -> None:
        """Let those go on whose next stretch nobody else can tell from its being a part of this."""
        while self._process is not None:
            ready = self.scheduler.ready
            place = next((at for at, each in enumerate(ready) if _passes(each)), None)
            if place is None:
                return
            self.scheduler.run(place)

    def _options(self) -> Iterator[Option]:
        scheduler = self.scheduler
        for place, each in enumerate(scheduler.ready):
            name = each.name if isinstance(each, Task) else each.what
            yield Option(name, partial(scheduler.run, place))
        due = scheduler.next_at()
        if due is not None and (due <= scheduler.now or self._waits_for(due)):
            yield Option("time", partial(scheduler.pass_time, due))
        for caller in self.small_callers:
            yield from self._acts(caller)
        if self._left["exit"]:
            for server in self.world.servers.values():
                if server.leader_alive:
                    yield Option(f"exit {server.model}", partial(self._exit, server))
        if self._left["crash"]:
            yield Option("crash", self._killed)

    def _waits_for(self, due: float) -> bool:
        """Tell whether nobody can go on, and something is due that is worth waiting for."""
        return not self.scheduler.ready and due - self.scheduler.now <= PATIENT_S

    def _acts(self, caller: SmallCaller) -> Iterator[Option]:
        first = not self.small_callers[0].acted
        if first and caller.number > 1:
            return  # who acts first is the first: the other way round is the same history
        for act in ("lease a",) if first else (*self.alphabet.acts, *self.once):
            if caller.can(act):
                yield Option(f"{act} ({caller.number})", partial(self._act, caller, act))

    def _act(self, caller: SmallCaller, act: str) -> str:
        caller.acted = True
        if act in self.once:
            self.once.remove(act)
        if act == "give up":
            self.scheduler.interrupt(caller.task, Interrupt())
            return "interrupted"
        caller.order = act
        self.scheduler._poll()
        return self.scheduler.run(self.scheduler.ready.index(caller.task))

    def _exit(self, server: Server) -> str:
        self._left["exit"] -= 1
        self.world.exit(server, ExitStatus(signal=9))
        return "killed"

    def _killed(self) -> str:
        self._left["crash"] -= 1
        return self._crash()
