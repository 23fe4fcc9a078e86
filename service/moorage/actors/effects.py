"""Acting on what was decided: orders to model actors, grants and errors to callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moorage.actors import messages as msg
from moorage.actors.desk import AnyTicket
from moorage.actors.gate import Gate, JointLease, Lease
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.lifecycle import LOADING, Stage
from moorage.core.room import NoRoom, Outcome
from moorage.core.state import Run, State, describe_pool
from moorage.errors import (
    LoadCancelledError,
    LoadError,
    MoorageError,
    NoRoomError,
    PortPoolExhaustedError,
    StopFailedError,
)
from moorage.spec import ModelSpec
from moorage.world.view import process_of

if TYPE_CHECKING:
    from moorage.actors.registry import Registry

ErrorFor = Callable[[], MoorageError]

NEEDS_SECRETS = "its secrets are not in the log; define it again before it can be launched"
RETRY_STOP_S = 5.0
"""Seconds until a stop that failed is tried again; doubles up to a minute."""
RETRY_MAX_S = 60.0
RESTART = "restart"
"""Who asked for a run that nobody asked for."""
UNCOUNTED_RESTART_S = 1.0
"""Until such a run is begun again that failed through no fault of its own."""
ADOPT_S = 30.0
"""A run that was ready when its owner ended has to answer again within this."""
_NARROWS = (ev.LimitsSet, ev.ModelPinned, ev.ModelDefined, ev.RunStopFailed)
"""What may leave too little room for a joint request that waits: it keeps what it has."""


def act(registry: Registry, before: State, entries: Sequence[ev.Entry], outcome: Outcome) -> None:
    """Act on committed entries, in order; `before` is the state they were decided on."""
    _time_stages(registry, entries)
    refused = {no_room.run: no_room for no_room in outcome.refused}
    for entry in entries:
        match entry.event:
            case ev.RunFetching() as event:
                _fetch(registry, event)
            case ev.RunReserved() as event:
                _prepare(registry, event)
            case ev.RunLaunching() as event:
                registry.tell_model(event.model, msg.Launch(event.run, event.nonce))
            case ev.RunReady() as event:
                _serve(registry, event)
            case ev.RunAdopted() as event:
                _adopt(registry, event)
            case ev.RunReopened() as event:
                _spare(registry, before, event)
            case ev.RunStopping() | ev.RunExited() as event:
                _stop(registry, before, event)
            case ev.RunStopFailed() as event:
                _stop_failed(registry, event)
            case ev.RunAbandoned() | ev.RunReleased() as event:
                _ended(registry, event, before.runs.get(event.run), refused.get(event.run))
            case ev.ModelRemoved() as event:
                registry.volatile.specs.pop(event.model, None)
                registry.volatile.restarts.pop(event.model, None)
            case _:
                pass
    _look_at_joint(registry, entries)


def _look_at_joint(registry: Registry, entries: Sequence[ev.Entry]) -> None:
    if any(isinstance(e.event, ev.RunReady | ev.RunReopened) for e in entries):
        registry.hall.settle(registry.state)
        grant_joint(registry)
    if any(isinstance(e.event, _NARROWS) for e in entries):
        for ticket in registry.desk.joint():
            registry.later(msg.Want(ticket))  # refused if it can never be met any more


def _time_stages(registry: Registry, entries: Sequence[ev.Entry]) -> None:
    now = registry.clock.monotonic()
    for entry in entries:
        number = getattr(entry.event, "run", None)
        run = registry.state.runs.get(number or 0)
        if run is not None:
            known = registry.volatile.stages.get(run.run)
            if known is None or known[0] is not run.stage:
                registry.volatile.stages[run.run] = (run.stage, now)
                registry.volatile.retries.pop(run.run, None)  # it was of the stage before


# --- orders to model actors ---


def spec_of(registry: Registry, model: str) -> ModelSpec | None:
    """Return a model's spec with its secrets, None when the log alone cannot give them."""
    known = registry.state.models[model]
    full = registry.volatile.specs.get(model)
    if full is not None and full.launch_hash() == known.spec_hash:
        return full
    return None if known.secret_names else known.spec


def _fetch(registry: Registry, event: ev.RunFetching) -> None:
    spec = spec_of(registry, event.model) or registry.state.models[event.model].spec
    registry.tell_model(event.model, msg.Fetch(event.run, spec))


def _prepare(registry: Registry, event: ev.RunReserved) -> None:
    spec = spec_of(registry, event.model)
    run = registry.state.runs.get(event.run)
    if run is None:
        return
    if spec is None:
        registry.later(msg.PrepareDone(event.run, None, problem=NEEDS_SECRETS))
        return
    path = run.path or spec.path
    registry.tell_model(event.model, msg.Prepare(event.run, spec, path, run.ports))


def _adopt(registry: Registry, event: ev.RunAdopted) -> None:
    run = registry.state.runs.get(event.run)
    if run is None:
        return
    if run.stage is Stage.READY:
        registry.hall.build(event.model, event.run, run.ports, granted=run.leases, shut=True)
    order_adoption(registry, run)


def order_adoption(registry: Registry, run: Run) -> None:
    """Tell the model's actor to watch a server that it did not launch itself."""
    known = registry.state.models[run.model].spec
    spec = spec_of(registry, run.model)
    timeout_s = known.load_timeout_s
    if run.stage is not Stage.LOADING:
        timeout_s = min(timeout_s, ADOPT_S)
    order = msg.Adopt(
        run.run,
        spec or known,
        run.path or known.path,
        process_of(registry.state, run),
        run.log_file,
        timeout_s,
        spec is None,
    )
    registry.tell_model(run.model, order)


def _stop(registry: Registry, before: State, event: ev.RunStopping | ev.RunExited) -> None:
    if isinstance(event, ev.RunStopping) and event.reason == "reload":
        _pass_on(registry, event)
    run = registry.state.runs.get(event.run)
    was = before.runs.get(event.run)
    if run is None or run.swept or run.stage is not Stage.STOPPING:
        return
    if isinstance(event, ev.RunExited) and was is not None and was.stage is Stage.STOPPING:
        return  # its stop is under way
    if isinstance(event, ev.RunStopping) and run.exited and was is not None and not was.exited:
        return  # it was ordered for the exit
    order_stop(registry, run, hurry=run.run in registry.volatile.forced)


def _pass_on(registry: Registry, event: ev.RunStopping) -> None:
    """Let who waits for a run that stops for another definition hear how the next one ends."""
    model = registry.state.models.get(event.model)
    if model is not None and model.next_run is not None:
        for ticket in registry.desk.take(event.run):
            registry.desk.attach(ticket, model.next_run)


def order_stop(registry: Registry, run: Run, *, hurry: bool) -> None:
    """Tell the model's actor to stop what there is of a run."""
    spec = registry.state.models[run.model].spec
    signals = () if run.exited else None
    process = process_of(registry.state, run)
    registry.tell_model(run.model, msg.StopRun(run.run, spec, process, signals, hurry))


def order_again(registry: Registry, run: Run) -> None:
    """Look again whether what could not be stopped has ended; adds nothing to the log."""
    retry_later(registry, run.run)
    order_stop(registry, run, hurry=True)


def retry_later(registry: Registry, number: int) -> None:
    """Set the time of the next look at a stop that failed."""
    since = registry.volatile.stages.get(number)
    now = registry.clock.monotonic()
    waited = now - since[1] if since else 0.0
    wait_s = min(RETRY_MAX_S, max(RETRY_STOP_S, waited))
    registry.volatile.retries[number] = now + wait_s


def _stop_failed(registry: Registry, event: ev.RunStopFailed) -> None:
    registry.volatile.retries[event.run] = registry.clock.monotonic() + RETRY_STOP_S

    def error() -> MoorageError:
        return StopFailedError(event.model, event.run, event.pids, event.error)

    for ticket in registry.desk.take_ends(event.run):
        ticket.fail(error())
    _fail(registry, registry.desk.take(event.run), error)
    successor = registry.state.models[event.model].next_run
    if successor is not None:
        _fail(registry, registry.desk.take(successor), error)
        registry.settle(
            lambda draft, _: decide.cancel(draft, successor, "the run before could not be stopped"),
            must=False,
        )


def _spare(registry: Registry, before: State, event: ev.RunReopened) -> None:
    was = before.runs.get(event.run)
    gate = registry.hall.get(event.run)
    if was is not None and was.for_run in registry.state.runs and gate is not None:
        registry.volatile.spared[event.run, was.for_run or 0] = frozenset(gate.holders)


# --- answers to callers ---


def _serve(registry: Registry, event: ev.RunReady) -> None:
    run = registry.state.runs.get(event.run)
    if run is None:
        return
    gate = registry.hall.build(event.model, event.run, run.ports)
    registry.volatile.port_tries.pop(event.model, None)
    registry.volatile.unasked.discard(event.run)
    grant(registry, gate, registry.desk.take(event.run))


def grant(registry: Registry, gate: Gate, tickets: Sequence[AnyTicket]) -> None:
    """Answer those who wait for one model; joint requests are looked at by `grant_joint`."""
    for ticket in tickets:
        if len(ticket.names) > 1:
            continue
        if not ticket.leases:
            ticket.grant(gate.run)
        else:
            lease = Lease(gate, ticket.owner)
            if not ticket.grant(lease):
                lease.release()
        registry.desk.leave(ticket)


def held_gate(registry: Registry, ticket: AnyTicket, name: str) -> Gate | None:
    """Return the gate of a run whose owner asks for it again: open to it also while it drains."""
    model = registry.state.models.get(registry.state.names.get(name, ""))
    gate = registry.hall.get(model.run) if model is not None and ticket.leases else None
    return gate if gate is not None and not gate.dead and gate.held_by(ticket.owner) else None


def to_be_granted(registry: Registry, number: int) -> int:
    """Return how many leases of a run are granted in the step in which it becomes ready.

    A joint request waits for its other models, too.
    """
    model = registry.state.runs[number].model
    leases = 0
    for ticket in registry.desk.waiting(number):
        others = {
            name: gate
            for name, gate in _gates(registry, ticket).items()
            if registry.state.names.get(name) != model
        }
        if ticket.leases and all(others.values()):
            leases += len(ticket.names) - len(others)
    return leases


def _gates(registry: Registry, ticket: AnyTicket) -> dict[str, Gate | None]:
    table = registry.hall.table
    return {name: held_gate(registry, ticket, name) or table.get(name) for name in ticket.names}


def grant_joint(registry: Registry) -> None:
    """Answer every joint request all of whose models are ready, each in one step."""
    for ticket in registry.desk.joint():
        gates = _gates(registry, ticket)
        if not all(gates.values()):
            continue
        joint = JointLease(
            {n: Lease(gate, ticket.owner) for n, gate in gates.items() if gate is not None}
        )
        if not ticket.grant(joint):
            joint.release()
        registry.desk.leave(ticket)


def _ask_again(registry: Registry, model: str) -> None:
    """Let joint requests that had this model, and wait for others, have it loaded again."""
    for ticket in registry.desk.joint():
        if any(registry.state.names.get(name, model) == model for name in ticket.names):
            registry.later(msg.Want(ticket))


def _fail(registry: Registry, tickets: Sequence[AnyTicket], error: ErrorFor) -> None:
    for ticket in tickets:
        ticket.fail(error())
        if len(ticket.names) > 1:
            registry.later(msg.Left(ticket))  # other runs may have been begun for it alone
        else:
            registry.desk.leave(ticket)


def _ended(
    registry: Registry,
    event: ev.RunAbandoned | ev.RunReleased,
    was: Run | None,
    no_room: NoRoom | None,
) -> None:
    volatile = registry.volatile
    for known in (volatile.stages, volatile.retries, volatile.going):
        known.pop(event.run, None)
    for fetch in (volatile.fetching, volatile.fetch_steps):
        fetch.pop(event.run, None)
    volatile.unasked.discard(event.run)
    volatile.forced.discard(event.run)
    tickets = registry.desk.take(event.run)
    if was is not None and was.ready_at:
        for ticket in tickets:  # they came after its last lease: theirs is the next run
            registry.later(msg.Want(ticket))
    elif not _moved(registry, event, tickets):
        _fail(registry, tickets, _error_for(registry.state, event, no_room))
    stopped = registry.desk.take_ends(event.run)
    for ticket in stopped:
        ticket.grant(None)
    _ask_again(registry, event.model)
    registry.tell_model(event.model, msg.Forget(event.run))
    model = registry.state.models.get(event.model)
    if model is None or model.run is None:
        registry.end_model(event.model)
    if model is not None and not stopped and (was is None or was.reason not in decide.LASTING):
        _restart_later(registry, event, model.name)


def _moved(
    registry: Registry, event: ev.RunAbandoned | ev.RunReleased, tickets: Sequence[AnyTicket]
) -> bool:
    """Let the waiters of a run that ended through no fault of its own wait for the next one."""
    moved_on = event.outcome == "cancelled" and event.error in ("reload", decide.REOPENED)
    if not moved_on and event.outcome != "failed: port":
        return False
    model = registry.state.models.get(event.model)
    run = registry.state.runs.get(model.next_run or model.run or 0) if model else None
    if run is None:
        return False
    gate = registry.hall.get(run.run)
    if run.stage is Stage.READY and gate is not None:
        grant(registry, gate, tickets)
        return True
    if run.stage not in LOADING:
        return False
    for ticket in tickets:
        registry.desk.attach(ticket, run.run)
    return True


def _error_for(
    state: State, event: ev.RunAbandoned | ev.RunReleased, no_room: NoRoom | None
) -> ErrorFor:
    if no_room is not None:
        return lambda: _no_room(state, no_room)
    if not event.outcome.startswith("failed: "):
        return lambda: LoadCancelledError(event.model, event.error or event.outcome)
    stage = event.outcome.removeprefix("failed: ")
    model = state.models.get(event.model)
    last = model.last if model and model.last and model.last.run == event.run else None
    return lambda: LoadError(
        event.model,
        event.run,
        stage,
        event.error,
        code=last.code if last else None,
        signal=last.signal if last else None,
        log_tail=last.log_tail if last else (),
        reason=event.reason if isinstance(event, ev.RunAbandoned) else "",
    )


def _no_room(state: State, no_room: NoRoom) -> MoorageError:
    if no_room.why == "ports":
        return PortPoolExhaustedError(describe_pool(state.pool), no_room.holders)
    limit = f"{state.max_loaded} loaded"
    if state.memory_limit is not None:
        limit += f" or {state.memory_limit} bytes"
    return NoRoomError(no_room.model, f"limit {limit}", no_room.holders)


def _restart_later(registry: Registry, event: ev.RunAbandoned | ev.RunReleased, name: str) -> None:
    model = registry.state.models[name]
    crashed = event.outcome.startswith("failed: ") or event.outcome == "lost"
    if model.spec.restart != "always" or not crashed or model.status in ("held", "failed"):
        return
    if model.run is None:
        uncounted = event.outcome.removeprefix("failed: ") in decide.UNCOUNTED
        pause_s = UNCOUNTED_RESTART_S if uncounted else 0.0
        wait_s = max(pause_s, decide.wait_s(model, registry.clock.now()))
        registry.volatile.restarts[name] = registry.clock.monotonic() + wait_s
