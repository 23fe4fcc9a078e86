"""The fold: what each event makes of the state. Live and replayed state both come from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from moorage.core import events as ev
from moorage.core.lifecycle import Stage, step
from moorage.core.snapshot import base_state
from moorage.core.state import Failure, Model, Run, State, changed, checked, expand
from moorage.spec import spec_from_data

FOLD_VERSION = 2
"""Raise it when the same events add up to another state: other snapshots are dropped."""


class FoldError(Exception):
    """An event contradicts the state: an invariant is broken."""


def apply(state: State, entry: ev.Entry) -> None:
    """Fold one entry into the state, in place. Raises FoldError or LifecycleError.

    An empty state takes a `log.continued` of any seq and begins with its base state; any state
    goes on from one that another FOLD_VERSION made.
    """
    seq, at, _, event = entry
    if seq != state.seq + 1 and (state.seq or not isinstance(event, ev.LogContinued)):
        raise FoldError(f"entry {seq} follows {state.seq}")
    _HANDLERS[event.__class__](state, entry, event)
    state.seq, state.at = seq, at


def replay(entries: Iterable[ev.Entry], state: State | None = None) -> State:
    """Fold entries onto a state (a new one when none is given) and return it."""
    state = State() if state is None else state
    for entry in entries:
        apply(state, entry)
    return state


# --- log, service, models ---


def _log_created(state: State, entry: ev.Entry, event: ev.LogCreated) -> None:
    state.log_id = event.log_id


def _opened(state: State, entry: ev.Entry, event: ev.ServiceOpened) -> None:
    state.open = True
    state.owner = f"pid {event.pid} on {event.host} since {entry.at}"
    state.pool = checked(event.ports)
    state.max_loaded = event.max_loaded
    state.memory_limit = event.memory_limit
    state.min_residency_s = event.min_residency_s
    pool = dict.fromkeys(expand(event.ports))
    kept = {port: None for port in state.free if port in pool}
    new = {port: None for port in pool if port not in kept and port not in state.held}
    state.free = kept | new


def _closed(state: State, entry: ev.Entry, event: ev.ServiceClosed) -> None:
    state.open = False


def _limits(state: State, entry: ev.Entry, event: ev.LimitsSet) -> None:
    state.max_loaded = event.max_loaded
    state.memory_limit = event.memory_limit
    state.min_residency_s = event.min_residency_s


def _defined(state: State, entry: ev.Entry, event: ev.ModelDefined) -> None:
    spec = spec_from_data(event.spec)
    old = state.models.get(event.model)
    if old is not None:
        for alias in old.spec.names:
            del state.names[alias]
    clash = [name for name in spec.names if name in state.names]
    if clash:
        raise FoldError(f"{clash[0]} names two models")
    for name in spec.names:
        state.names[name] = event.model
    base = old or Model(name=event.model, spec=spec, spec_hash=event.spec_hash)
    changes = {
        "spec": spec,
        "spec_hash": event.spec_hash,
        "secret_names": tuple(event.spec.get("secret_names", ())),
        "secrets_hash": event.secrets_hash,
    }
    state.models[event.model] = changed(base, changes)


def _removed(state: State, entry: ev.Entry, event: ev.ModelRemoved) -> None:
    model = state.models.pop(event.model)
    if model.run is not None or model.next_run is not None:
        raise FoldError(f"model {event.model} was removed while it had a run")
    for name in model.spec.names:
        del state.names[name]


def _model(state: State, name: str, **changes: Any) -> None:
    state.models[name] = changed(state.models[name], changes)


def _pinned(state: State, entry: ev.Entry, event: ev.ModelPinned) -> None:
    _model(state, event.model, pinned=True)


def _unpinned(state: State, entry: ev.Entry, event: ev.ModelUnpinned) -> None:
    _model(state, event.model, pinned=False)


def _held(state: State, entry: ev.Entry, event: ev.ModelHeld) -> None:
    _model(state, event.model, status="held", hold_reason=event.reason)


def _failure(event: ev.ModelBackoff | ev.ModelFailed) -> Failure:
    return Failure(
        run=event.run,
        stage=event.stage,
        error=event.error,
        code=event.code,
        signal=event.signal,
        log_tail=event.log_tail,
        reason=event.reason,
    )


def _backoff(state: State, entry: ev.Entry, event: ev.ModelBackoff) -> None:
    held = state.models[event.model].status == "held"
    _model(
        state,
        event.model,
        status="held" if held else "backoff",
        attempts=event.attempts,
        until=event.until,
        last=_failure(event),
    )


def _failed(state: State, entry: ev.Entry, event: ev.ModelFailed) -> None:
    held = state.models[event.model].status == "held"
    _model(
        state,
        event.model,
        status="held" if held else "failed",
        attempts=event.attempts,
        until="",
        last=_failure(event),
    )


def _reset(state: State, entry: ev.Entry, event: ev.ModelReset) -> None:
    _model(state, event.model, status="stopped", hold_reason="", attempts=0, until="", last=None)


# --- runs ---

_BLANK = Run(
    run=0,
    model="",
    stage=Stage.FETCHING,
    spec_hash="",
    requested_by="",
    first_seq=0,
    last_seq=0,
    began_at="",
)
"""What every run begins from."""


def _begin(state: State, entry: ev.Entry, event: ev.RunFetching | ev.RunQueued) -> None:
    model = state.models[event.model]
    if event.run < state.next_run:
        raise FoldError(f"run number {event.run} is used twice")
    if model.next_run is not None:
        raise FoldError(f"model {event.model} has two runs that wait")
    state.next_run = event.run + 1
    state.runs[event.run] = changed(
        _BLANK,
        {
            "run": event.run,
            "model": event.model,
            "stage": step(None, event.kind),
            "spec_hash": model.spec_hash,
            "requested_by": event.requested_by,
            "first_seq": entry.seq,
            "last_seq": entry.seq,
            "began_at": entry.at,
        },
    )
    if model.run is None:
        _model(state, event.model, run=event.run)
    else:
        _model(state, event.model, next_run=event.run)


def _move(state: State, entry: ev.Entry, event: Any, **changes: Any) -> Run:
    """Move a run by the lifecycle table and change its fields; return what it was before."""
    before = _own_run(state, event)
    changes["stage"] = step(before.stage, event.kind)
    changes["last_seq"] = entry.seq
    state.runs[event.run] = changed(before, changes)
    return before


def _own_run(state: State, event: Any) -> Run:
    run = state.runs.get(event.run)
    if run is None or run.model != event.model:
        raise FoldError(f"{event.kind} of run {event.run}, which {event.model} has not")
    return run


def _queued(state: State, entry: ev.Entry, event: ev.RunQueued) -> None:
    if event.run in state.runs:
        _move(state, entry, event)
    else:
        _begin(state, entry, event)
    state.queue = (*state.queue, event.run)


def _fetched(state: State, entry: ev.Entry, event: ev.RunFetched) -> None:
    _move(state, entry, event, path=event.path, commit=event.commit)


def _end(state: State, event: ev.RunAbandoned | ev.RunReleased, **changes: Any) -> Run:
    """End a run, with these changes of its model; return what it was before."""
    before = _own_run(state, event)
    step(before.stage, event.kind)
    del state.runs[event.run]
    model = state.models[event.model]
    if model.run == event.run:
        changes["run"] = model.next_run
    changes["next_run"] = None
    state.models[event.model] = changed(model, changes)
    return before


def _without(order: tuple[int, ...], run: int) -> tuple[int, ...]:
    if run not in order:
        return order
    return tuple([r for r in order if r != run])  # faster than a generator


def _abandoned(state: State, entry: ev.Entry, event: ev.RunAbandoned) -> None:
    _end(state, event)
    state.queue = _without(state.queue, event.run)


def _reserved(state: State, entry: ev.Entry, event: ev.RunReserved) -> None:
    ports = (event.port, *event.more_ports)
    for port in ports:
        if port not in state.free:
            raise FoldError(f"port {port} was reserved for run {event.run} but is not free")
        del state.free[port]
        state.held[port] = event.run
    if state.models[event.model].run != event.run:
        raise FoldError(f"run {event.run} was reserved beside another run of {event.model}")
    spec_hash = state.models[event.model].spec_hash
    _move(
        state,
        entry,
        event,
        ports=ports,
        room_bytes=event.room_bytes,
        reserved_at=entry.at,
        spec_hash=spec_hash,
    )
    state.queue = _without(state.queue, event.run)


def _launching(state: State, entry: ev.Entry, event: ev.RunLaunching) -> None:
    _move(state, entry, event, argv=event.argv, nonce=event.nonce, log_file=event.log_file)


def _launched(state: State, entry: ev.Entry, event: ev.RunLaunched) -> None:
    _move(
        state,
        entry,
        event,
        pid=event.pid,
        group=event.group,
        session=event.session,
        start_ticks=event.start_ticks,
        boot_id=event.boot_id,
        launched_at=entry.at,
    )


def _ready(state: State, entry: ev.Entry, event: ev.RunReady) -> None:
    _move(state, entry, event, ready_at=entry.at)
    state.lru = (*state.lru, event.run)
    if state.models[event.model].status in ("backoff", "failed"):
        _model(state, event.model, status="stopped", until="")


def _evicting(state: State, entry: ev.Entry, event: ev.RunEvicting) -> None:
    _move(state, entry, event, reason=event.reason, for_run=event.for_run)
    wanted_by = state.runs.get(event.for_run or 0)
    if wanted_by is not None:
        displaced = (*wanted_by.displaced, event.run)
        state.runs[wanted_by.run] = changed(wanted_by, {"displaced": displaced})


def _draining(state: State, entry: ev.Entry, event: ev.RunDraining) -> None:
    _not_displaced(
        state, _move(state, entry, event, reason=event.reason, for_run=None, error=event.error)
    )


def _reopened(state: State, entry: ev.Entry, event: ev.RunReopened) -> None:
    _not_displaced(state, _move(state, entry, event, reason="", for_run=None))


def _not_displaced(state: State, before: Run) -> None:
    """Say of a run that it gives way no more to the one that wanted its room, if any did."""
    wanted_by = state.runs.get(before.for_run or 0)
    if wanted_by is not None:
        displaced = _without(wanted_by.displaced, before.run)
        state.runs[wanted_by.run] = changed(wanted_by, {"displaced": displaced})


def _stopping(state: State, entry: ev.Entry, event: ev.RunStopping) -> None:
    _move(state, entry, event, reason=event.reason, fail_stage=event.stage, error=event.error)
    state.lru = _without(state.lru, event.run)


def _exited(state: State, entry: ev.Entry, event: ev.RunExited) -> None:
    changes: dict[str, Any] = {}
    if not event.wanted:
        changes = {"reason": "exited", "fail_stage": event.stage, "error": event.error}
    _move(
        state,
        entry,
        event,
        exited=True,
        code=event.code,
        signal=event.signal,
        log_tail=event.log_tail,
        **changes,
    )
    state.lru = _without(state.lru, event.run)


def _swept(state: State, entry: ev.Entry, event: ev.RunSwept) -> None:
    _move(state, entry, event, swept=True, left_pids=(), peak_bytes=event.peak_bytes)


def _stop_failed(state: State, entry: ev.Entry, event: ev.RunStopFailed) -> None:
    _move(state, entry, event, left_pids=event.pids, error=event.error)


def _released(state: State, entry: ev.Entry, event: ev.RunReleased) -> None:
    changes: dict[str, Any] = {}
    if event.outcome == "ok":
        changes["attempts"] = 0
    if event.peak_bytes is not None and _own_run(state, event).ready_at:
        known = state.models[event.model].peak_bytes
        changes["peak_bytes"] = max(event.peak_bytes, known or 0)
    before = _end(state, event, **changes)
    pool = state.pool
    for port in before.ports:
        del state.held[port]
        if any(first <= port <= last for first, last in pool):
            state.free[port] = None


def _adopted(state: State, entry: ev.Entry, event: ev.RunAdopted) -> None:
    _move(state, entry, event)


def _nothing(state: State, entry: ev.Entry, event: ev.ProcessReaped | ev.FetchNoted) -> None:
    pass


def _blocked(state: State, entry: ev.Entry, event: ev.PortBlocked) -> None:
    if event.port in state.free:
        del state.free[event.port]
        state.free[event.port] = None


def _usage(state: State, entry: ev.Entry, event: ev.UsageNoted) -> None:
    if set(event.order) != set(state.lru):
        raise FoldError(f"usage.noted orders {event.order}, ready are {state.lru}")
    state.lru = event.order
    for number, granted in event.leases:
        run = state.runs[number]
        state.runs[number] = changed(run, {"leases": run.leases + granted})


def _continued(state: State, entry: ev.Entry, event: ev.LogContinued) -> None:
    try:
        base = base_state(entry.seq, event)
    except (LookupError, TypeError, ValueError) as error:
        raise FoldError(f"log.continued has no base state to go on from: {error}") from error
    if not state.seq or event.fold_version != FOLD_VERSION:
        state.become(base)  # that of another fold, too: its owner went on from it
    elif base != state:
        raise FoldError("log.continued has another base state than the entries before it make")


_HANDLERS: dict[type[ev.Event], Callable[[State, ev.Entry, Any], None]] = {
    ev.LogCreated: _log_created,
    ev.LogContinued: _continued,
    ev.ServiceOpened: _opened,
    ev.ServiceClosed: _closed,
    ev.LimitsSet: _limits,
    ev.ModelDefined: _defined,
    ev.ModelRemoved: _removed,
    ev.ModelPinned: _pinned,
    ev.ModelUnpinned: _unpinned,
    ev.ModelHeld: _held,
    ev.ModelBackoff: _backoff,
    ev.ModelFailed: _failed,
    ev.ModelReset: _reset,
    ev.RunFetching: _begin,
    ev.FetchNoted: _nothing,
    ev.RunFetched: _fetched,
    ev.RunQueued: _queued,
    ev.RunAbandoned: _abandoned,
    ev.RunReserved: _reserved,
    ev.RunLaunching: _launching,
    ev.RunLaunched: _launched,
    ev.RunReady: _ready,
    ev.RunEvicting: _evicting,
    ev.RunDraining: _draining,
    ev.RunReopened: _reopened,
    ev.RunStopping: _stopping,
    ev.RunExited: _exited,
    ev.RunSwept: _swept,
    ev.RunStopFailed: _stop_failed,
    ev.RunReleased: _released,
    ev.RunAdopted: _adopted,
    ev.ProcessReaped: _nothing,
    ev.PortBlocked: _blocked,
    ev.UsageNoted: _usage,
}
