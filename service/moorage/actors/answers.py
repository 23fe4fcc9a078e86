"""What callers are told of what was decided: grants, errors, and which run they wait for next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moorage.actors import messages as msg
from moorage.actors.desk import AnyTicket
from moorage.actors.gate import Gate, JointLease, Lease
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.lifecycle import LOADING, Stage
from moorage.core.room import NoRoom
from moorage.core.state import Run, State, describe_pool
from moorage.errors import (
    LoadCancelledError,
    LoadError,
    MoorageError,
    NoRoomError,
    PortPoolExhaustedError,
)

if TYPE_CHECKING:
    from moorage.actors.registry import Registry

ErrorFor = Callable[[], MoorageError]


def serve(registry: Registry, event: ev.RunReady) -> None:
    """Open the gate of a run that is ready, and lend it to those who wait for it."""
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


def fail(registry: Registry, tickets: Sequence[AnyTicket], error: ErrorFor) -> None:
    """Answer with an error, a new one for each."""
    for ticket in tickets:
        ticket.fail(error())
        if len(ticket.names) > 1:
            registry.later(msg.Left(ticket))  # other runs may have been begun for it alone
        else:
            registry.desk.leave(ticket)


def ended(
    registry: Registry,
    event: ev.RunAbandoned | ev.RunReleased,
    was: Run | None,
    no_room: NoRoom | None,
) -> bool:
    """Answer all who waited for a run that ended; tell whether somebody waited for its end."""
    tickets = registry.desk.take(event.run)
    if was is not None and was.ready_at:
        for ticket in tickets:  # they came after its last lease: theirs is the next run
            registry.later(msg.Want(ticket))
    elif not _moved(registry, event, tickets):
        fail(registry, tickets, _error_for(registry.state, event, no_room))
    stopped = registry.desk.take_ends(event.run)
    for ticket in stopped:
        ticket.grant(None)
    _ask_again(registry, event.model)
    return bool(stopped)


def pass_on(registry: Registry, entries: Sequence[ev.Entry]) -> None:
    """Let who waits for a run that another one is to follow hear how that one ends."""
    for entry in entries:
        event = entry.event
        if not isinstance(event, ev.RunFetching | ev.RunQueued):
            continue
        model = registry.state.models.get(event.model)
        former = registry.state.runs.get(model.run or 0) if model else None
        if former is None or model is None or model.next_run != event.run:
            continue
        if former.reason == "reload" or former.fail_stage == "port":
            for ticket in registry.desk.take(former.run):
                registry.desk.attach(ticket, event.run)


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
