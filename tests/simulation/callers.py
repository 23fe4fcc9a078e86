"""Those who use a service: each a task that does what the choices say, through the real face."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moorage import JointLease, Lease, MoorageError
from moorage.actors.tickets import Ticket
from moorage.face import CALL_S, CLOSE_S
from simulation.owner import SimService, be, spec_of
from simulation.scheduler import Task
from simulation.sight import SeenAnswer, SeenCall, SeenLease

if TYPE_CHECKING:
    from simulation.engine import Simulation

MOST_HELD = 3
TIMEOUTS_S = (20.0, 120.0, 1.0, 0.01, 0.0)
STOP_TIMEOUTS_S = (60.0, 1.0, 0.0)
THINKS_S = (
    (10.0, 0.0, 0.0, 0.001, 0.02, 0.1),
    (20.0, 0.0, 0.0, 0.02, 0.5, 2.0),
    (60.0, 0.0, 0.01, 0.5, 3.0, 15.0),
)
"""Between two acts. The first is the quietest: its caller is out of the way for a while."""


class Interrupt(BaseException):
    """As KeyboardInterrupt comes over a thread that waits."""


def each(held: Lease | JointLease) -> tuple[Lease, ...]:
    """Return the leases of one answer."""
    return tuple(held.values()) if isinstance(held, JointLease) else (held,)


class Caller:
    """One caller. `task` is its thread, `call` what it waits for."""

    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim = sim
        self.number = number
        self.owner = object()
        self.task: Task
        self.call: SeenCall | None = None
        self.ticket: Ticket[Any] | None = None
        self.held: list[tuple[int, Lease | JointLease]] = []
        """What it holds, and of which owner of the log."""
        self.over = False
        self.closes = False
        """It was interrupted while it closed the service, and has to go on."""
        self._mend: Callable[[Caller], None] | None = None
        """What helps against the last error."""

    def run(self) -> None:
        """Act until the world is to come to rest, then let go of everything."""
        while not self.sim.calm:
            try:
                self._turn()
            except Interrupt:
                continue
        while self.held:
            self.held.pop(0)[1].release()
        self.over = True

    def _turn(self) -> None:
        sim = self.sim
        thinks = THINKS_S[sim.plan.patience]
        sim.scheduler.sleep(thinks[sim.choices.choose(len(thinks))])
        if sim.service is None or sim.calm:
            return
        mend, self._mend = self._mend, None
        if self.closes:
            _close(self)
        elif mend is not None and sim.choices.choose(3) < 2:
            mend(self)
        else:
            ACTS[sim.plan.acts[sim.choices.choose(len(sim.plan.acts))]](self)

    # --- calling ---

    def make(
        self,
        verb: str,
        names: tuple[str, ...],
        timeout_s: float,
        work: Callable[[], Any],
        **options: Any,
    ) -> Any:
        """Make a call and keep what it comes to; return its result, None for an error."""
        sim = self.sim
        now, owner = sim.scheduler.now, sim.owner
        call = SeenCall(
            caller=self.number,
            verb=verb,
            names=names,
            asked_at=now,
            deadline=now + timeout_s,
            options=options,
        )
        self.call = call
        sim.calls_changed = True
        error, result = "", None
        be(self.owner)
        try:
            result = work()
        except MoorageError as raised:
            error = type(raised).__name__
            self._mend = MENDS.get(error)
        finally:  # interrupted, it has gone: nobody waits for an answer
            self.call = self.ticket = None
            sim.calls_changed = True
        leases: tuple[SeenLease, ...] = ()
        if isinstance(result, Lease | JointLease):
            self.held.append((owner, result))
            leases = self._seen(owner, result)
        sim.answered(
            SeenAnswer(
                caller=self.number,
                verb=verb,
                names=names,
                asked_at=call.asked_at,
                answered_at=sim.scheduler.now,
                error=error,
                leases=leases,
                options=options,
            )
        )
        return result

    def _seen(self, owner: int, held: Lease | JointLease) -> tuple[SeenLease, ...]:
        return tuple(
            SeenLease(
                caller=self.number,
                model=lease.model,
                run=lease.run,
                port=lease.port,
                lost=lease.lost,
                owner=owner,
            )
            for lease in each(held)
        )

    def leases(self) -> tuple[SeenLease, ...]:
        return tuple(seen for owner, held in self.held for seen in self._seen(owner, held))

    @property
    def service(self) -> SimService:
        service = self.sim.service
        if service is None:
            raise RuntimeError("nobody has opened a service")
        return service

    def name(self) -> str:
        names = self.sim.plan.names
        chosen = self.sim.choices.choose(2 * len(names))
        name = names[chosen % len(names)]
        return name if chosen < len(names) else f"{name}-alias"

    def pick(self, values: tuple[Any, ...]) -> Any:
        return values[self.sim.choices.choose(len(values))]


# --- acts ---


def _rest(caller: Caller) -> None:
    if caller.held:
        _release(caller)


def _lease(caller: Caller) -> None:
    if len(caller.held) >= MOST_HELD:
        _release(caller)
        return
    name, timeout_s = caller.name(), caller.pick(TIMEOUTS_S)
    service = caller.service
    caller.make("lease", (name,), timeout_s, lambda: service.lease(name, timeout_s))


def _lease_all(caller: Caller) -> None:
    if len(caller.held) >= MOST_HELD:
        _release(caller)
        return
    names = (caller.name(), caller.name())
    timeout_s = caller.pick(TIMEOUTS_S)
    service = caller.service
    caller.make(
        "lease_all",
        names,
        timeout_s,
        lambda: service.lease_all(*names, timeout_s=timeout_s),
    )


def _release(caller: Caller) -> None:
    if caller.held:
        caller.held.pop(caller.sim.choices.choose(len(caller.held)))[1].release()


def _drop(caller: Caller) -> None:
    """Lose a lease: nothing of his refers to it any more."""
    if caller.held:
        _, held = caller.held.pop(caller.sim.choices.choose(len(caller.held)))
        caller.sim.dropped += [(weakref.ref(lease), lease.run) for lease in each(held)]


def _start(caller: Caller) -> None:
    name, timeout_s = caller.name(), caller.pick(TIMEOUTS_S)
    service = caller.service
    caller.make("start", (name,), timeout_s, lambda: service.start(name, timeout_s))


def _stop(caller: Caller) -> None:
    name, timeout_s = caller.name(), caller.pick(STOP_TIMEOUTS_S)
    force, hold = caller.pick((False, True)), caller.pick((False, False, True))
    service = caller.service
    caller.make(
        "stop",
        (name,),
        timeout_s,
        lambda: service.stop(name, force, hold, timeout_s=timeout_s),
        force=force,
        hold=hold,
    )


def _remove(caller: Caller) -> None:
    name, timeout_s = caller.name(), caller.pick(STOP_TIMEOUTS_S)
    force = caller.pick((False, True))
    service = caller.service
    caller.make(
        "remove",
        (name,),
        timeout_s,
        lambda: service.remove(name, force=force, timeout_s=timeout_s),
        force=force,
    )


def _define(caller: Caller) -> None:
    sim = caller.sim
    at = sim.choices.choose(len(sim.plan.models))
    spec = spec_of(sim.plan.names[at], sim.plan.models[at], sim.choices.choose(3))
    service = caller.service
    caller.make(
        "define",
        (spec.name,),
        CALL_S,
        lambda: service.define(spec),
        **{spec.name: spec.to_data()},
    )


def _pin(caller: Caller) -> None:
    name, service = caller.name(), caller.service
    caller.make("pin", (name,), CALL_S, lambda: service.pin(name))


def _unpin(caller: Caller) -> None:
    name, service = caller.name(), caller.service
    caller.make("unpin", (name,), CALL_S, lambda: service.unpin(name))


def _reset(caller: Caller) -> None:
    name, service = caller.name(), caller.service
    caller.make("reset", (name,), CALL_S, lambda: service.reset(name))


def _set_limits(caller: Caller) -> None:
    options: dict[str, Any] = {"max_loaded": caller.pick((caller.sim.plan.max_loaded, 1, 2, 3))}
    if caller.sim.plan.memory_limit is not None:
        options["memory_limit"] = caller.pick((caller.sim.plan.memory_limit, 100, 200))
    service = caller.service
    caller.make("set_limits", (), CALL_S, lambda: service.set_limits(**options), **options)


def _close(caller: Caller) -> None:
    keep, drain_s = caller.pick((False, True)), caller.pick((5.0, 0.0))
    service = caller.service
    how = "keep" if keep else "stop"
    caller.closes = True
    caller.make("close", (), CLOSE_S, lambda: service.close(how, drain_s=drain_s), keep=keep)
    caller.closes = False


def _archive(caller: Caller) -> None:
    service = caller.service
    caller.make("archive", (), CALL_S, service.archive)


def _look(caller: Caller) -> None:
    """Look at what is published: it never waits, and never fails."""
    if caller.service.status().waiting < 0:
        raise RuntimeError("less than nobody waits")


ACTS: Mapping[str, Callable[[Caller], None]] = {
    "rest": _rest,
    "lease": _lease,
    "release": _release,
    "drop": _drop,
    "lease_all": _lease_all,
    "start": _start,
    "stop": _stop,
    "remove": _remove,
    "define": _define,
    "pin": _pin,
    "unpin": _unpin,
    "reset": _reset,
    "set_limits": _set_limits,
    "archive": _archive,
    "look": _look,
    "close": _close,
}
MENDS: Mapping[str, Callable[[Caller], None]] = {
    "UnknownModelError": _define,
    "ModelHeldError": _reset,
    "ModelUnavailableError": _reset,
}
"""What is done about an error, as a rule."""
