"""The public face held to what the design says of it, for orders of calls that nobody thought of.

After each step the service comes to rest, and then a small reference says what a call may have
come to and what must be so. Threads and asyncio are asked alike, by two machines.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from actors.bench import POOL, WAIT_S, Bench, spec
from moorage import (
    JointLease,
    Lease,
    LoadCancelledError,
    LoadError,
    LogUnavailableError,
    ModelHeldError,
    ModelStatus,
    ModelUnavailableError,
    NameClashError,
    NoRoomError,
    ServiceClosedError,
    ServiceFailedError,
    UnknownModelError,
    WaitTimeoutError,
    WouldDeadlockError,
)
from moorage.actors.deadlines import DRAIN_LOOK_S
from moorage.core import events as ev
from moorage.core.lifecycle import Stage
from moorage.core.state import Run
from moorage.testing import ExitStatus, Readiness, Script
from support.examples import NAMES, SHARES, Share

MODELS = ("a", "b", "c", "d")
ALIAS = "x"
FULL = "no space left on device"
RESTING = (Stage.QUEUED, Stage.READY, Stage.DRAINING)
TICK_S = 0.001
LOST_PORTS = 2
"""As many times another port is tried."""
GRANTED, WAITS = "granted", "waits"
Outcome = str | type[BaseException]

# What may come to somebody who waits while others act; what comes when it is due is held below.
LATER: frozenset[Outcome] = frozenset(
    {
        *(GRANTED, LoadError, LoadCancelledError, ModelHeldError, ModelUnavailableError),
        *(NoRoomError, UnknownModelError, WaitTimeoutError, LogUnavailableError),
    }
)
REFUSED: frozenset[Outcome] = frozenset({UnknownModelError, ModelHeldError, ModelUnavailableError})
"""What nobody waits for, whatever becomes of the other models that are asked for."""
models = st.sampled_from(MODELS)
names = st.sampled_from((*MODELS, ALIAS))


class Threads:
    """Calls the blocking face, each time from a thread of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def call(self, verb: str, *args: Any, **more: Any) -> Future[Any]:
        service = self.bench.service
        return self.bench.call(lambda: getattr(service, verb)(*args, **more))

    def nested(self, held: str, wanted: str) -> Future[Any]:
        service = self.bench.service

        def work() -> None:
            with service.lease(held), service.lease(wanted, WAIT_S):
                pass

        return self.bench.call(work)

    def close(self) -> None:
        """Have nothing to close: the bench joins its callers."""


class Tasks:
    """Calls the asyncio face, each time from a task of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop")
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, verb: str, *args: Any, **more: Any) -> Future[Any]:
        return self.run(getattr(self.bench.service, f"a{verb}")(*args, **more))

    def nested(self, held: str, wanted: str) -> Future[Any]:
        service = self.bench.service

        async def work() -> None:
            async with service.alease(held), service.alease(wanted, WAIT_S):
                pass

        return self.run(work())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@dataclass
class Waiter:
    """Somebody who leases and has no answer yet."""

    names: tuple[str, ...]
    future: Future[Any]
    deadline: float


class FaceMachine(RuleBasedStateMachine):
    """One service, its callers, and what they know of it."""

    face_class: type[Threads | Tasks] = Threads

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, max_loaded=2)
        self.face = self.face_class(self.bench)
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.leases: list[Lease] = []
        self.waiters: list[Waiter] = []
        self.full = False
        self.used: dict[int | None, float] = {}

    def teardown(self) -> None:
        try:
            self.bench.log.unavailable = None
            with self.bench:
                self.release_all()
                self.bench.service.close(drain_s=0)
                for waiter in self.waiters:
                    waiter.future.exception(WAIT_S)
                self.face.close()
                self.bench.lowered = True
        finally:
            shutil.rmtree(self.folder)

    @initialize()
    def define_all(self) -> None:
        for model in MODELS:
            self.define(model, (), alias=model == "a")

    # --- asking ---

    @property
    def service(self) -> Any:
        return self.bench.service

    def status(self, model: str) -> ModelStatus:
        found = self.service.status().model(model)
        assert found is not None
        return found

    def owner_of(self, name: str) -> str | None:
        return next((m for m, more in self.aliases.items() if name in (m, *more)), None)

    def rest(self) -> None:
        """Wait until nothing is under way but what waits for a caller, and hear the answers."""
        self.await_rest()
        self.hear()

    def await_rest(self) -> None:
        self.bench.until(self.quiet)
        # What is given back without a message is noticed when the registry looks the next time.
        self.bench.clock.advance(DRAIN_LOOK_S)
        self.bench.until(self.quiet)

    def heard(self) -> bool:
        """Tell whether the registry knows of everybody who waits.

        A joint request whose models have to drain waits for no run; it did, and has a deadline.
        """
        desk = self.service._runtime.registry.desk
        late = {number for _, number in desk._deadlines.copy()}
        known = late & {ticket.number for ticket in desk.joint()}
        for tickets in [each.copy() for each in list(desk._by_run.values())]:
            known |= {number for number, ticket in tickets.items() if ticket.open}
        return len(known) == sum(not waiter.future.done() for waiter in self.waiters)

    def quiet(self) -> bool:
        return self.still() and self.still()  # also after what was on its way until then

    def still(self) -> bool:
        if not self.heard():
            return False
        self.bench.settle_now()
        runs = self.service._runtime.registry.state.runs.values()
        return self.heard() and all(self.rests(run) for run in runs)

    def rests(self, run: Run) -> bool:
        if run.stage is Stage.READY:
            # One that was adopted is lent on once it was seen to answer.
            gate = self.service._hall.table.get(run.model)
            return gate is not None and not gate.closed
        if self.full or run.stage is Stage.QUEUED:
            return True
        return run.stage is Stage.DRAINING and bool(self.status(run.model).leases)

    def hear(self) -> None:
        for waiter in [each for each in self.waiters if each.future.done()]:
            self.waiters.remove(waiter)
            assert self.outcome(waiter.future) in LATER | {ServiceClosedError}, waiter

    def outcome(self, future: Future[Any]) -> Outcome:
        """Return what a call came to; leases are kept."""
        error = future.exception(WAIT_S)
        if error is not None:
            return type(error)
        found = future.result()
        if isinstance(found, JointLease):
            self.took(*found.values())
        elif isinstance(found, Lease):
            self.took(found)
        return GRANTED

    def took(self, *leases: Lease) -> None:
        self.leases += leases
        self.use(*(lease.run for lease in leases))

    def use(self, *runs: int | None) -> None:
        """Note a use now, as far as this caller knows of it."""
        self.used |= dict.fromkeys(runs, self.bench.clock.monotonic())

    def held(self, model: str) -> int:
        return sum(lease.model == model and not lease.lost for lease in self.leases)

    def order(self, verb: str, *args: Any, **more: Any) -> Outcome:
        """Give an order that ends by itself, and return what it came to."""
        self.bench.clock.advance(TICK_S)
        future = self.face.call(verb, *args, **more)
        done = self.outcome(future)
        self.rest()
        return done

    def changed(self, done: Outcome) -> bool:
        """Tell whether an order was carried out; only a full disk may refuse it."""
        assert done == GRANTED or (self.full and done is LogUnavailableError), done
        return done == GRANTED

    # --- models ---

    @rule(model=models, args=st.sampled_from(((), ("--other",))), alias=st.booleans())
    def define(self, model: str, args: tuple[str, ...], alias: bool) -> None:
        aliases = (ALIAS,) if alias else ()
        done = self.order("define", spec(model, args=args, aliases=aliases))
        if alias and self.owner_of(ALIAS) not in (None, model):
            assert done is NameClashError
        elif self.changed(done):
            self.aliases[model] = aliases

    @rule(model=models, force=st.booleans())
    def remove(self, model: str, force: bool) -> None:
        if model not in self.aliases:
            assert self.order("remove", model, force=force) is UnknownModelError
        elif self.held(model) and not force:
            used, noted = self.service.status().lru, self.bench.lru
            done = self.order("remove", model, timeout_s=0.01)
            assert done is WaitTimeoutError or (self.full and done is LogUnavailableError), done
            assert self.status(model).leases == self.held(model)
            assert self.full or self.service.status().lru == used
            assert self.full or self.bench.lru in (noted, used)
        elif self.changed(self.order("remove", model, force=force)):
            del self.aliases[model]
            assert self.service.status().model(model) is None

    @rule(model=models, hold=st.booleans())
    def stop(self, model: str, hold: bool) -> None:
        if model not in self.aliases:
            assert self.order("stop", model) is UnknownModelError
            return
        joint = (waiter.names for waiter in self.waiters if len(waiter.names) > 1)
        again = any(model in map(self.owner_of, names) for names in joint)  # is it loaded for one
        done = self.order("stop", model, force=self.held(model) > 0, hold=hold)
        if self.changed(done) and not (self.full or again):
            state = self.status(model).state
            assert state == "held" if hold else state in ("stopped", "held", "backoff", "failed")

    @rule(model=models, pinned=st.booleans())
    def pin(self, model: str, pinned: bool) -> None:
        done = self.order("pin" if pinned else "unpin", model)
        if model not in self.aliases:
            assert done is UnknownModelError
        elif self.changed(done):
            assert self.status(model).pinned is pinned

    @rule(model=models)
    def reset(self, model: str) -> None:
        done = self.order("reset", model)
        if model not in self.aliases:
            assert done is UnknownModelError
        elif self.changed(done):
            assert self.status(model).state not in ("held", "backoff", "failed")

    @rule(count=st.integers(1, 3))
    def set_limits(self, count: int) -> None:
        if self.changed(self.order("set_limits", max_loaded=count)):
            assert self.service.status().max_loaded == count
            self.bench.options["max_loaded"] = count  # as whoever opens it again

    # --- leases ---

    def may(self, name: str) -> set[Outcome]:
        """Return what a lease may come to, as things stand."""
        model = self.owner_of(name)
        if model is None:
            return {UnknownModelError}
        status = self.status(model)
        at_once: dict[str, set[Outcome]] = {"ready": {GRANTED}, "held": {ModelHeldError}}
        if status.state in at_once:
            return at_once[status.state]
        if status.state == "failed" or status.retry_at > self.bench.clock.now():
            return {ModelUnavailableError}
        if self.full:
            return {LogUnavailableError, WAITS}
        if self.waiters or status.state in RESTING:
            return {WAITS, GRANTED, LoadError, NoRoomError}
        return self.may_be_loaded(model)

    def may_be_loaded(self, model: str) -> set[Outcome]:
        now = self.service.status()
        loaded = [each for each in now.models if each.state in ("ready", "draining")]
        idle = [each for each in loaded if not (self.held(each.name) or each.pinned)]
        if now.loaded - len(idle) < now.max_loaded:
            fails = bool(self.bench.processes._next[model])
            return {LoadError} if fails else {GRANTED}
        # What drains goes, also while it is pinned: pinning undoes what drains for room.
        movable = [each for each in loaded if each.state == "draining" or not each.pinned]
        needed = now.loaded + 1 - now.max_loaded
        return {WAITS} if len(movable) >= needed else {NoRoomError}

    def ask(self, *asked: str, verb: str = "lease") -> Waiter:
        self.bench.clock.advance(TICK_S)
        future = self.face.call(verb, *asked, timeout_s=WAIT_S)
        waiter = Waiter(asked, future, self.bench.clock.monotonic() + WAIT_S)
        self.waiters.append(waiter)
        return waiter

    def come_to(self, waiter: Waiter) -> Outcome:
        """Return what a request came to, once all is at rest."""
        self.await_rest()
        if not waiter.future.done():
            return WAITS
        self.waiters.remove(waiter)
        return self.outcome(waiter.future)

    @rule(name=names)
    def lease(self, name: str) -> None:
        may = self.may(name)
        victims = self.victims()
        waited, before = bool(self.waiters), len(self.bench.log.rows)
        came = self.come_to(self.ask(name))
        assert came in may, (name, came, may, self.bench.told())
        if came == GRANTED and not waited and not self.full:
            evicted = [e.model for e in self.told(before) if isinstance(e, ev.RunEvicting)]
            assert evicted == victims[: len(evicted)], self.bench.told()
            port = self.leases[-1].port
            assert port in POOL
        self.rest()

    @rule(order=st.permutations(MODELS))
    def use_one_after_another(self, order: list[str]) -> None:
        """What a service does most of the time; `lease` looks at who has to go for whom."""
        for model in order[:3]:
            self.lease(model)
            if self.leases:
                self.release(-1)

    @rule(order=st.permutations(MODELS))
    def use_one_within_another(self, order: list[str]) -> None:
        """The last to leave is the last used, whoever came first."""
        for model in order[:2]:
            self.lease(model)
        for _ in self.leases[-2:]:
            self.release(-1)
        self.lease(order[2])

    def victims(self) -> list[str]:
        """Return who may be evicted, in the order in which it has to be."""
        for gate in self.gates():  # what became ready with nobody there, or was adopted
            self.used.setdefault(gate.run, gate.used_at)
        free = [m.name for m in self.service.status().models if m.state == "ready"]
        idle = [m for m in free if not (self.held(m) or self.status(m).pinned)]
        return sorted(idle, key=lambda model: self.used[self.status(model).run])

    def gates(self) -> list[Any]:
        return list({id(gate): gate for gate in self.service._hall.table.values()}.values())

    def told(self, after: int) -> list[ev.Event]:
        return [entry.event for entry in self.bench.entries() if entry.seq > after]

    @rule(pair=st.permutations(MODELS))
    def lease_all(self, pair: list[str]) -> None:
        first, second = pair[:2]
        single = self.may(first) | self.may(second)
        may = (single & REFUSED) or (single | {GRANTED, WAITS, NoRoomError, LoadError})
        came = self.come_to(self.ask(first, second, verb="lease_all"))
        assert came in may, (came, may)
        self.rest()

    @rule(name=names)
    def start(self, name: str) -> None:
        model = self.owner_of(name)
        if self.waiters or (model is not None and self.status(model).state == "draining"):
            return
        may = {GRANTED} if model is None else self.may(name)
        if model is not None and self.status(model).state in ("held", "backoff", "failed"):
            # A start ends these, and makes its own attempt.
            may = {LogUnavailableError, WAITS} if self.full else self.may_be_loaded(model)
        came = self.come_to(self.ask(name, verb="start"))
        assert came in (may if model is not None else {UnknownModelError}), (came, may)
        self.rest()

    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        self.bench.clock.advance(TICK_S)
        if self.leases:
            lease = self.leases.pop(which % len(self.leases))
            self.use(lease.run)
            lease.release()
            lease.release()
        self.rest()

    @rule(which=st.integers(0, 9))
    def lose(self, which: int) -> None:
        """Forget a lease without giving it back: its finaliser does."""
        self.bench.clock.advance(TICK_S)
        if self.leases:
            self.use(self.leases[which % len(self.leases)].run)
            known = weakref.ref(self.leases.pop(which % len(self.leases)))
            self.bench.until(lambda: known() is None)  # its caller's thread may still know it
        self.rest()

    def release_all(self) -> None:
        while self.leases:
            self.leases.pop().release()

    @rule(held=models, wanted=models)
    def want_what_only_the_own_lease_stands_in_the_way_of(self, held: str, wanted: str) -> None:
        alone = not (self.waiters or self.leases or self.full)
        if not alone or self.service.status().max_loaded != 1 or held == wanted:
            return
        if self.may(held) != {GRANTED} or self.owner_of(wanted) is None:
            return
        if self.status(wanted).state != "stopped" or self.status(held).state != "ready":
            return
        pinned = self.status(held).pinned
        came = self.outcome(self.face.nested(held, wanted))
        self.use(self.status(held).run)

        assert came is (NoRoomError if pinned else WouldDeadlockError)
        self.rest()

    # --- the world ---

    @rule(seconds=st.sampled_from((0.5, 5.0, WAIT_S + 1, 4000.0)))
    def pass_time(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        now = self.bench.clock.monotonic()
        late = [waiter for waiter in self.waiters if waiter.deadline < now]
        for waiter in late:
            assert waiter.future.exception(WAIT_S) is not None or waiter.future.result()
        self.rest()

    @rule(model=models, signal=st.sampled_from((9, 11)))
    def crash(self, model: str, signal: int) -> None:
        waited = bool(self.waiters)
        alive = [each for each in self.bench.processes.alive() if each.model == model]
        for server in alive:
            server.exit(signal=signal)
        self.rest()
        if alive and model in self.aliases and not (self.full or waited):
            assert self.status(model).state in ("backoff", "failed", "stopped", "held")

    @rule(model=models, exits=st.booleans())
    def fail_the_next_launch(self, model: str, exits: bool) -> None:
        if not self.bench.processes._next[model]:
            fault = Script(exits=ExitStatus(code=1)) if exits else Script(refuse="no executable")
            self.bench.processes.will(model, fault)

    @rule(model=models)
    def lose_the_next_port(self, model: str) -> None:
        if len(self.bench.ports._next[model]) < LOST_PORTS:
            self.bench.ports.will(model, Readiness("lost", "a stranger"))

    @rule(full=st.sampled_from((True, False, False)))
    def fill_or_empty_the_disk(self, full: bool) -> None:
        self.full = full
        self.bench.log.unavailable = FULL if self.full else None
        if not self.full:
            self.bench.advance_until(lambda: self.service.status().unwritten == 0, 1.0)
            self.bench.advance(5.0)
        self.rest()

    @rule(keep=st.booleans())
    def close_and_open(self, keep: bool) -> None:
        self.fill_or_empty_the_disk(full=False)
        ready = {m.name: m.run for m in self.service.status().models if m.state == "ready"}
        lost = any(self.bench.ports._next[model] for model in ready)
        self.service.close("keep" if keep else "stop", drain_s=0)
        self.begin_anew()
        for model, run in ready.items():
            if keep and lost:
                break  # a stranger was met when it was looked at again
            assert self.status(model).state == ("ready" if keep else "stopped")
            assert not keep or self.status(model).run == run

    @rule(committed=st.booleans())
    def crash_the_owner(self, committed: bool) -> None:
        self.fill_or_empty_the_disk(full=False)
        self.bench.log.crash_next(SystemError("killed"), committed=committed)
        self.face.call("define", spec("d", aliases=())).exception(WAIT_S)
        self.begin_anew()
        d = self.service.status().model("d")
        self.aliases.pop("d", None)
        if d is not None:
            self.aliases["d"] = d.aliases

    def begin_anew(self) -> None:
        """Reopen; every lease is lost and everybody who waits is told so."""
        self.bench.reopen()
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            assert self.outcome(waiter.future) in LATER | {ServiceClosedError, ServiceFailedError}
        leases, self.leases = self.leases, []
        for lease in leases:
            lease.release()
        self.rest()
        # Uses that were not noted before a crash are forgotten: the log's order holds.
        order = [self.status(model).run for model in self.bench.lru]
        self.used = {run: float(place - len(order)) for place, run in enumerate(order)}

    # --- what is always so ---

    @invariant()
    def nothing_is_counted_that_is_not_there(self) -> None:
        status = self.service.status()
        found = {model.name: model for model in status.models}

        assert set(found) == set(self.aliases)
        if not self.full:  # then what was under way may be granted at any time
            assert {name: model.leases for name, model in found.items() if model.leases} == {
                name: count for name in found if (count := self.held(name))
            }
        assert status.ports_free + len(status.ports_held) == len(POOL)
        assert len(set(status.lru)) == len(status.lru)
        assert all(count <= 1 for count in self.bench.processes.most_alive.values())

    @invariant()
    def a_lease_is_of_a_server_that_lives(self) -> None:
        for lease in self.leases:
            alive = [s.run for s in self.bench.processes.servers() if s.alive]
            assert lease.lost or lease.run in alive

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        status = self.service.status()
        # A run of a model whose last one still drains waits for that, and what was loaded for a
        # request of several stays until the others of it are.
        queued = [model for model in status.queue if self.status(model).state == "queued"]
        joint = any(len(waiter.names) > 1 for waiter in self.waiters)
        if self.full or joint or not queued:
            return
        loaded = [m for m in status.models if m.state in ("ready", "draining")]
        idle = [m for m in loaded if not (self.held(m.name) or m.pinned)]

        assert status.loaded - len(idle) >= status.max_loaded, self.bench.told()


class AsyncFaceMachine(FaceMachine):
    """The same through asyncio, where a call can be cancelled."""

    face_class = Tasks

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.waiters:
            waiter = self.waiters.pop(which % len(self.waiters))
            waiter.future.cancel()
            with pytest.raises(CancelledError):
                waiter.future.result(WAIT_S)
        self.rest()


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
@pytest.mark.parametrize(
    ("machine", "examples"), [(FaceMachine, 40), (AsyncFaceMachine, 20)], ids=["threads", "asyncio"]
)
def test_the_face_does_what_the_design_says_in_any_order(
    machine: type[FaceMachine], examples: int, share: Share
) -> None:
    chosen = share.seeded(type(machine.__name__, (machine,), {}))

    run_state_machine_as_test(chosen, settings=share.settings(examples, stateful_step_count=30))
