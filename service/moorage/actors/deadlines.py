"""Everything that happens because time passes. A lost message costs time, not truth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moorage.actors import callers, effects, reports
from moorage.actors import messages as msg
from moorage.actors.model import KILL_WAIT_S
from moorage.core import decide, room
from moorage.core.draft import Draft
from moorage.core.lifecycle import Stage
from moorage.core.space import FOR_ROOM
from moorage.core.state import Run
from moorage.errors import MoorageError, WaitTimeoutError
from moorage.protocols import ExitStatus

if TYPE_CHECKING:
    from moorage.actors.registry import Registry, UsageMap

LOOK_AGAIN_S = 0.005
"""A decision whose victims kept getting busy is made anew after this."""
FACTS_S = 0.1
"""The longest an observed fact waits for the next decision to be written with it."""
DISK_RETRY_S = 1.0
"""Between two attempts to write what waits for a disk."""
DRAIN_LOOK_S = 0.25
"""Between two looks at a draining run, should the hint that it is empty be lost, and at one whose
drain was undone while somebody waits: a lease that leaves by an open gate gives none."""
STEP_S = 60.0
"""For each of preparing and spawning."""
FETCH_S = 7 * 86_400.0
"""For a fetch as a whole."""
SLACK_S = 10.0
"""More than what the worker allows itself."""
EXIT_S = 2.0
"""For the exit of a leader to be told after its tree was found empty."""
NOTE_S = 60.0
"""Between two notes of usage, where it changed."""


def _stage_limit(registry: Registry, run: Run) -> float | None:
    spec = registry.state.models[run.model].spec
    match run.stage:
        case Stage.FETCHING:
            return FETCH_S
        case Stage.RESERVED | Stage.LAUNCHING:
            return STEP_S
        case Stage.LOADING:
            return spec.load_timeout_s + SLACK_S
        case Stage.READY if registry.hall.unproven(run.run):
            return effects.ADOPT_S + SLACK_S
        case Stage.STOPPING:
            return EXIT_S if run.swept else spec.stop_timeout_s + KILL_WAIT_S + SLACK_S
        case _:
            return None


def _stage_due(registry: Registry, run: Run) -> float | None:
    known = registry.volatile.stages.get(run.run)
    limit = _stage_limit(registry, run)
    return None if known is None or limit is None else known[1] + limit


def _retry_due(registry: Registry, run: Run) -> float | None:
    """Return when a stop is looked at again: only one that failed is, else it would be due on."""
    return registry.volatile.retries.get(run.run) if run.stage is Stage.STOP_FAILED else None


def _idle_due(registry: Registry, run: Run) -> float | None:
    gate = registry.hall.get(run.run)
    if gate is None or registry.hall.unproven(run.run):
        return None
    seen = room.Usage(len(gate.holders), gate.used_at, gate.ready_at)
    due = room.idle_at(registry.state, run, seen)
    return None if due is None or run.run in registry.awaited() else due


def _dues(registry: Registry) -> Iterator[float | None]:
    volatile = registry.volatile
    now = registry.clock.monotonic()
    yield registry.look_at
    yield registry.desk.next_deadline()
    yield from volatile.restarts.values()
    yield now + DRAIN_LOOK_S if volatile.spared else None
    for run in registry.state.runs.values():
        yield _stage_due(registry, run)
        yield _retry_due(registry, run)
        if run.stage is Stage.DRAINING:
            yield now + DRAIN_LOOK_S
        elif run.stage is Stage.READY:
            yield _ready_due(registry, run, now)
    if volatile.closing is not None:
        yield max(volatile.closing.force_at, now + DRAIN_LOOK_S)
    if registry.ledger.unwritable is not None:
        yield now + DISK_RETRY_S


def _ready_due(registry: Registry, run: Run, now: float) -> float | None:
    model = registry.state.models[run.model]
    ttl = model.spec.ttl_s
    due = _idle_due(registry, run)
    if due is not None or ttl is None or model.pinned:
        return due
    return now + max(ttl, DRAIN_LOOK_S)  # leased: it cannot be due before that


def next_due(registry: Registry) -> float | None:
    """Return the monotonic time of the next thing to do, None when nothing is due ever."""
    if registry.volatile.closed:
        return None
    dues = [due for due in _dues(registry) if due is not None]
    dues.append(registry.volatile.noted_at + NOTE_S)
    return min(dues)


def wake(registry: Registry) -> None:
    """Do all that is due."""
    now = registry.clock.monotonic()
    if registry.look_at is not None and registry.look_at <= now:
        registry.look_at = None
    registry.ledger.flush()
    for ticket in registry.desk.expired(now):
        ticket.fail(WaitTimeoutError(ticket.asked, ticket.timeout_s, _why(registry, ticket.names)))
        callers.left(registry, ticket)
    for run in tuple(registry.state.runs.values()):
        _wake_run(registry, run, now)
    for name, at in tuple(registry.volatile.restarts.items()):
        if at <= now:
            del registry.volatile.restarts[name]
            _restart(registry, name)
    if now >= registry.volatile.noted_at + NOTE_S:
        registry.volatile.noted_at = now
        registry.ledger.tidy()
        registry.settle(lambda draft, usage: _note(registry, draft, usage), must=False)
    else:
        registry.settle(lambda _draft, _usage: None, must=False)


def _why(registry: Registry, names: tuple[str, ...]) -> str:
    state = registry.state
    parts: list[str] = []
    for name in names:
        model = state.models.get(state.names.get(name, ""))
        run = state.runs.get(model.next_run or model.run or 0) if model else None
        place = (
            f", place {state.queue.index(run.run) + 1}" if run and run.run in state.queue else ""
        )
        parts.append(f"{name} is {run.stage if run else 'stopped'}{place}")
    return "; ".join(parts)


def _note(registry: Registry, draft: Draft, usage: UsageMap) -> None:
    if registry.ledger.unwritable is not None:
        return  # it is told once the disk is back: what waits for it must not grow with time
    room.note_usage(draft, registry.observed(draft.state, usage))


def _wake_run(registry: Registry, run: Run, now: float) -> None:
    due = _stage_due(registry, run)
    if due is not None and due <= now:
        _overdue(registry, run)
    idle = _idle_due(registry, run)
    if idle is not None and idle <= now:
        registry.settle(
            lambda draft, usage: room.expire(draft, run.run, registry.observed(draft.state, usage)),
            must=False,
        )
    if run.stage is Stage.DRAINING and run.reason not in FOR_ROOM:
        reports.emptied(registry, run.run)
    retry = _retry_due(registry, run)
    if retry is not None and retry <= now:
        effects.order_again(registry, run)


def _overdue(registry: Registry, run: Run) -> None:
    """Nothing was heard of a worker: go on as if it had told the worst."""
    silent = f"nothing was heard within the {run.stage} deadline"
    match run.stage:
        case Stage.FETCHING:
            reports.hear(registry, msg.FetchDone(run.run, None, silent))
        case Stage.RESERVED:
            reports.hear(registry, msg.PrepareDone(run.run, None, problem=silent))
        case Stage.LAUNCHING | Stage.LOADING:
            registry.settle(
                lambda draft, _: decide.not_ready(draft, run.run, "ready", silent), must=False
            )
        case Stage.READY:
            reports.adopted(registry, run.run, silent)
        case Stage.STOPPING if run.swept:
            reports.hear(registry, msg.ExitSeen(run.run, ExitStatus(), ()))
        case Stage.STOPPING:
            reports.hear(registry, msg.StopDone(run.run, None, silent))
        case _:
            pass


def _restart(registry: Registry, name: str) -> None:
    started: list[int] = []

    def fact(draft: Draft, _usage: UsageMap) -> None:
        started.clear()
        model = draft.state.models.get(name)
        if model is None or model.run is not None or model.spec.restart != "always":
            return
        if model.status in ("held", "failed"):
            return
        started.append(decide.begin(draft, name, effects.RESTART).run)
        registry.volatile.unasked.update(started)

    try:
        registry.settle(fact, must=True)
    except MoorageError:
        registry.volatile.unasked.difference_update(started)
        registry.volatile.restarts[name] = registry.clock.monotonic() + DISK_RETRY_S
