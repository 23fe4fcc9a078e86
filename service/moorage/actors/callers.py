"""What callers ask of the registry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from moorage.actors import messages as msg
from moorage.actors.answers import grant, grant_joint, held_gate
from moorage.actors.desk import AnyTicket
from moorage.actors.effects import RESTART, UNTIL_DEFINED, order_stop
from moorage.actors.reports import PORT_TRIES, begin_again
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.draft import Draft
from moorage.core.lifecycle import LOADING, WAITING, Stage
from moorage.core.room import note_usage
from moorage.core.space import FOR_ROOM, could_ever_fit, who_holds
from moorage.core.state import Run, State
from moorage.errors import (
    ConfigurationError,
    MoorageError,
    NoRoomError,
    ServiceClosedError,
    WouldDeadlockError,
)

if TYPE_CHECKING:
    from moorage.actors.registry import Fact, Registry, UsageMap


_log = logging.getLogger(__name__)


def answer(registry: Registry, message: msg.FromCaller) -> None:
    """Do what a caller asks, or fail its ticket with what stood in the way."""
    if isinstance(message, msg.Left):
        left(registry, message.ticket)
        return
    if isinstance(message, msg.Close) and registry.volatile.closing is not None:
        return  # asked twice: one ticket, one answer
    if registry.volatile.closing is not None or registry.volatile.closed:
        message.ticket.fail(ServiceClosedError(message.ticket.asked))
        registry.desk.leave(message.ticket)
        return
    try:
        _do(registry, message)
    except MoorageError as error:
        message.ticket.fail(error)
        left(registry, message.ticket)


def _do(registry: Registry, message: msg.FromCaller) -> None:
    match message:
        case msg.Want():
            _want(registry, message.ticket)
        case msg.Define():
            _define(registry, message)
        case msg.Remove():
            _remove(registry, message)
        case msg.Stop():
            _stop(registry, message)
        case msg.Pin():
            name, pinned = message.name, message.pinned
            _decided(registry, message, lambda draft, _: decide.pin(draft, name, pinned=pinned))
        case msg.Reset():
            name = message.name
            _decided(registry, message, lambda draft, _: decide.reset(draft, name, "operator"))
        case msg.SetLimits():
            _set_limits(registry, message)
        case msg.Archive():
            if message.ticket.open:
                message.ticket.grant(registry.ledger.archive(message.program))
        case msg.Close():
            registry.volatile.closing = message
            registry.desk.fail_all(lambda ticket: ServiceClosedError(ticket.asked))
        case msg.Open():
            _open(registry, message)
        case msg.Left():
            pass


# --- leases and starts ---


def _want(registry: Registry, ticket: AnyTicket) -> None:
    if not ticket.open or _served(registry, ticket):
        left(registry, ticket)
        return
    runs: list[int] = []
    asked: set[int] = set()  # restarts nobody had asked for until now

    def fact(draft: Draft, _usage: UsageMap) -> None:
        runs[:] = [
            decide.request(draft, name, ticket.asked, start=not ticket.leases).run
            for name in ticket.names
            if held_gate(registry, ticket, name) is None
        ]
        _refuse_too_many(draft, ticket)
        _refuse_deadlock(registry, draft, ticket, runs)
        asked.update(registry.volatile.unasked.intersection(runs))
        registry.volatile.unasked -= asked

    def then() -> None:
        for run in runs:
            if not registry.hall.serves(run):
                registry.desk.attach(ticket, run)

    try:
        if not registry.settle(fact, must=True, then=then):
            registry.later(msg.Want(ticket))
            return
    except MoorageError:
        registry.volatile.unasked |= asked
        raise
    if len(ticket.names) > 1:
        grant_joint(registry)


def _served(registry: Registry, ticket: AnyTicket) -> bool:
    """Grant one model that is ready, or that its owner holds already, also while it drains.

    Decided on first, a ready run might be evicted in that very decision.
    """
    if len(ticket.names) != 1:
        return False
    name = ticket.names[0]
    decide.resolve(registry.ledger.draft(), name)
    gate = held_gate(registry, ticket, name) or registry.hall.table.get(name)
    if gate is None or gate.dead:
        return False
    grant(registry, gate, [ticket])
    return True


def _refuse_too_many(draft: Draft, ticket: AnyTicket) -> None:
    """Refuse a joint request that can never be met as a whole."""
    names = {draft.state.names[name] for name in ticket.names}
    if len(names) > 1 and not could_ever_fit(draft.state, *names):
        raise NoRoomError(" with ".join(sorted(names)), "all at once", who_holds(draft.state))


def _refuse_deadlock(registry: Registry, draft: Draft, ticket: AnyTicket, runs: list[int]) -> None:
    """Refuse what can only be had when leases of the very same caller end."""
    state = draft.state
    held = frozenset(registry.hall.owned().get(ticket.owner, ()))
    waiting = [run for run in map(state.runs.__getitem__, runs) if run.stage in WAITING]
    if not held or not waiting:
        return
    names = sorted({state.names[name] for name in ticket.names})
    behind = any(state.models[run.model].run in held for run in waiting)
    room = could_ever_fit(state, *names) and not could_ever_fit(state, *names, without=held)
    if behind or room:
        mine = [state.runs[run].model for run in sorted(held) if run in state.runs]
        raise WouldDeadlockError(" with ".join(names), mine)


def left(registry: Registry, ticket: AnyTicket) -> None:
    """Take a caller that waits no more out of the count; undo what was begun for it alone."""
    for number in registry.desk.leave(ticket):
        run = registry.state.runs.get(number)
        if run is not None and run.stage in WAITING and number not in registry.volatile.unasked:
            _unwanted(registry, run)
    for number in registry.desk.forget_end(ticket):
        if registry.volatile.removers.get(number) is ticket:
            _give_up_removal(registry, number)


def _unwanted(registry: Registry, run: Run) -> None:
    if run.requested_by == RESTART:  # it goes on by itself, and what drains for it need not
        registry.volatile.unasked.add(run.run)
        registry.settle(lambda _draft, _usage: None, must=False)
    else:
        registry.settle(lambda draft, _: decide.cancel(draft, run.run, "nobody waits"), must=False)


def _give_up_removal(registry: Registry, number: int) -> None:
    del registry.volatile.removers[number]
    run = registry.state.runs.get(number)
    if run is None or run.reason != "remove" or run.stage is not Stage.DRAINING:
        return
    reason, error = registry.volatile.going.get(number, ("", ""))

    def fact(draft: Draft, usage: UsageMap) -> None:
        if reason:
            leases = _leases(draft, usage, run.model)
            decide.stop(draft, number, reason, force=False, leases=leases, error=error)
        else:
            decide.reopen(draft, number, "the removal was given up")

    registry.settle(fact, must=False)


# --- models ---


def _define(registry: Registry, message: msg.Define) -> None:
    names = {spec.name for spec, _ in message.specs}

    def fact(draft: Draft, usage: UsageMap) -> None:
        if message.whole:
            for name in sorted(set(draft.state.models) - names):
                if not decide.leaving(draft, name):
                    decide.remove(draft, name, force=False, leases=_leases(draft, usage, name))
        for spec, secrets_hash in message.specs:
            old = draft.state.models.get(spec.name)
            if decide.define(draft, spec, secrets_hash):
                for run in decide.outdated(draft, draft.state.models[spec.name], old):
                    _reload(registry, draft, run, _leases(draft, usage, spec.name))

    def then() -> None:
        registry.volatile.specs.update({spec.name: spec for spec, _ in message.specs})
        for name in names:
            if registry.volatile.restarts.get(name) == UNTIL_DEFINED:
                registry.volatile.restarts[name] = registry.clock.monotonic()
        message.ticket.grant(None)

    _once(registry, registry.settle(fact, must=True, then=then), message)


def _reload(registry: Registry, draft: Draft, run: Run, leases: int) -> None:
    decide.stop(draft, run.run, "reload", force=False, leases=leases)
    model = draft.state.models[run.model]
    ends = run.stage in (Stage.STOPPING, Stage.STOP_FAILED)  # and tells its waiters of that
    if registry.desk.waiting(run.run) and model.next_run is None and not ends:
        decide.begin(draft, run.model, run.requested_by)


def _leases(draft: Draft, usage: UsageMap, name: str) -> int:
    seen = usage.get(draft.state.models[name].run or 0)
    return seen.leases if seen else 0


def _remove(registry: Registry, message: msg.Remove) -> None:
    if not message.ticket.open:
        return  # given up before it began
    waits_for: list[int | None] = []

    def fact(draft: Draft, usage: UsageMap) -> None:
        model = decide.resolve(draft, message.name)
        if message.force and model.run is not None:
            registry.volatile.forced.add(model.run)
        leases = _leases(draft, usage, model.name)
        run = decide.remove(draft, message.name, force=message.force, leases=leases)
        waits_for[:] = [run]

    def then() -> None:
        run = waits_for[0]
        if run is None:
            message.ticket.grant(None)
            return
        registry.desk.await_end(run, message.ticket)
        registry.volatile.removers[run] = message.ticket
        was = before.runs[run]
        if was.stage is Stage.DRAINING and was.reason in decide.WANTED_ENDS:
            registry.volatile.going[run] = (was.reason, was.error)

    before = registry.state
    _once(registry, _settle_forced(registry, fact, must=True, then=then), message)


def _settle_forced(registry: Registry, fact: Fact, *, must: bool, then: Callable[[], None]) -> bool:
    """Settle what may force runs; refused, it has forced none."""
    before = registry.volatile.forced.copy()
    try:
        return registry.settle(fact, must=must, then=then)
    except MoorageError:
        registry.volatile.forced = before
        raise


def _stop(registry: Registry, message: msg.Stop) -> None:
    """Operators' stops do not wait for the disk, holds do: they are asked to last."""
    waits_for: list[int | None] = [None]
    names: list[str] = []

    def fact(draft: Draft, usage: UsageMap) -> None:
        model = decide.resolve(draft, message.name)
        waits_for[:] = [model.run]
        if message.hold:
            decide.hold(draft, message.name, "stopped on purpose")
        names[:] = [model.name]
        if model.next_run is not None:
            decide.cancel(draft, model.next_run, "operator")
        if model.run is not None:
            if message.force:
                registry.volatile.forced.add(model.run)
            leases = _leases(draft, usage, model.name)
            decide.stop(draft, model.run, "operator", force=message.force, leases=leases)
            decide.stop_again(draft, model.run, "operator")
        decide.stay_down(draft, model.name)

    def then() -> None:
        registry.volatile.restarts.pop(names[0], None)
        run = registry.state.runs.get(waits_for[0] or 0)
        if run is None:
            message.ticket.grant(None)
        else:
            _await_stop(registry, run, message.ticket)

    before = registry.state
    _once(registry, _settle_forced(registry, fact, must=message.hold, then=then), message)
    run = before.runs.get(waits_for[0] or 0)
    if run is not None and run.stage is Stage.STOPPING and message.force:
        order_stop(registry, run, hurry=True)


def _await_stop(registry: Registry, run: Run, ticket: AnyTicket) -> None:
    """Wait for its end; one that lost its port gets no successor, as that would undo the stop."""
    registry.volatile.port_tries[run.model] = PORT_TRIES
    registry.desk.await_end(run.run, ticket)


def _decided(registry: Registry, message: msg.Pin | msg.Reset | msg.SetLimits, fact: Fact) -> None:
    if registry.ledger.backlog:  # what is so already must last, too, before it is said to be so
        fact(registry.ledger.draft(), {})  # what cannot be is refused first, for what it is
        registry.ledger.write()
    settled = registry.settle(fact, must=True, then=lambda: _granted(message))
    _once(registry, settled, message)


def _granted(message: msg.Pin | msg.Reset | msg.SetLimits) -> None:
    message.ticket.grant(None)


def _once(registry: Registry, settled: bool, message: msg.FromCaller) -> None:
    if not settled:
        registry.later(message)


def _set_limits(registry: Registry, message: msg.SetLimits) -> None:
    def fact(draft: Draft, _usage: UsageMap) -> None:
        state = draft.state
        limits = ev.LimitsSet(
            max_loaded=state.max_loaded if message.max_loaded is None else message.max_loaded,
            memory_limit=state.memory_limit
            if message.memory_limit is ...
            else message.memory_limit,
            min_residency_s=(
                state.min_residency_s
                if message.min_residency_s is None
                else message.min_residency_s
            ),
        )
        now = (state.max_loaded, state.memory_limit, state.min_residency_s)
        if now != (limits.max_loaded, limits.memory_limit, limits.min_residency_s):
            draft.emit(limits)

    _decided(registry, message, fact)


# --- open and close ---


def _open(registry: Registry, message: msg.Open) -> None:
    def fact(draft: Draft, _usage: UsageMap) -> None:
        if draft.state.seq == 0:
            draft.emit(message.created)
        if draft.state.log_id != message.created.log_id:
            raise ConfigurationError("state", "the log's id is not the one its events say")
        registry.volatile.opened = draft.emit(message.opened)
        for run in _by_use(draft.state):
            same_boot = run.boot_id in ("", message.opened.boot_id)
            alive = same_boot and run.run in message.survivors
            decide.recover(draft, run.run, same_boot=same_boot, alive=alive)
        begin_again(registry, draft)

    registry.settle(fact, must=True)
    _restart_again(registry)
    for found in message.strays:
        registry.reap(found)
    message.ticket.grant(None)


def _restart_again(registry: Registry) -> None:
    """Set the times of restarts that an earlier owner had still before it."""
    now, at = registry.clock.monotonic(), registry.clock.now()
    for model in registry.state.models.values():
        if model.spec.restart == "always" and model.status == "backoff" and model.run is None:
            registry.volatile.restarts[model.name] = now + decide.wait_s(model, at)


def _by_use(state: State) -> list[Run]:
    """Return the open runs, ready ones least recently used first: so their gates are made."""
    place = {run: at for at, run in enumerate(state.lru)}
    return sorted(state.runs.values(), key=lambda run: (place.get(run.run, -1), run.run))


def close_step(registry: Registry) -> None:
    """Go on closing: cancel, stop or keep, and when nothing is left to wait for, say so."""
    closing = registry.volatile.closing
    if closing is None or registry.volatile.closed:
        return
    force = registry.clock.monotonic() >= closing.force_at

    def fact(draft: Draft, usage: UsageMap) -> None:
        note_usage(draft, registry.observed(draft.state, usage))
        for run in tuple(draft.state.runs.values()):
            seen = usage.get(run.run)
            _close_run(draft, run, seen.leases if seen else 0, keep=closing.keep, force=force)

    if force:
        registry.volatile.forced.update(registry.state.runs)
    registry.settle(fact, must=False)
    if not any(_unfinished(run, keep=closing.keep) for run in registry.state.runs.values()):
        _finish(registry, closing)


def _close_run(draft: Draft, run: Run, leases: int, *, keep: bool, force: bool) -> None:
    if run.stage in WAITING or run.stage is Stage.RESERVED:
        decide.cancel(draft, run.run, "close")
    elif not keep:
        decide.stop(draft, run.run, "close", force=force, leases=leases)
    elif run.stage is Stage.DRAINING and run.reason in FOR_ROOM:
        decide.reopen(draft, run.run, "kept at close")
    elif run.stage is Stage.DRAINING and (force or leases == 0):
        decide.drained(draft, run.run)


def _unfinished(run: Run, *, keep: bool) -> bool:
    if run.stage is Stage.STOP_FAILED:
        return False
    if keep:
        return run.stage not in (Stage.LOADING, Stage.READY)
    return True


def _finish(registry: Registry, closing: msg.Close) -> None:
    state = registry.state
    left_over = tuple(
        f"{run.model} run {run.run} (pids {', '.join(map(str, run.left_pids)) or 'unknown'})"
        for run in state.in_stage(Stage.STOP_FAILED)
    )
    kept = tuple(r.run for r in state.runs.values() if r.stage in LOADING | {Stage.READY})
    registry.settle(
        lambda draft, _: draft.emit(
            ev.ServiceClosed(reason="keep" if closing.keep else "stop", kept=kept)
        ),
        must=False,
    )
    problem = registry.ledger.unwritable
    if not registry.ledger.flush() and problem is not None:
        _log.warning(
            "closing with %d events that could not be written; the next owner finds out from the "
            "world: %s",
            registry.ledger.backlog,
            problem,
        )
    registry.volatile.closed = True
    registry.hall.end_all()
    closing.ticket.grant(left_over)
