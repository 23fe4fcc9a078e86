"""Acting on what was decided: orders to model actors; `answers` has what callers are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moorage.actors import answers
from moorage.actors import messages as msg
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.lifecycle import Stage
from moorage.core.room import NoRoom, Outcome
from moorage.core.state import Model, Run, State
from moorage.errors import MoorageError, StopFailedError
from moorage.spec import ModelSpec
from moorage.world.view import process_of

if TYPE_CHECKING:
    from moorage.actors.registry import Registry

NEEDS_SECRETS = "its secrets are not in the log; define it again before it can be launched"
RETRY_STOP_S = 5.0
"""Seconds until a stop that failed is tried again; doubles up to a minute."""
RETRY_MAX_S = 60.0
RESTART = "restart"
"""Who asked for a run that nobody asked for."""
UNCOUNTED_RESTART_S = 1.0
"""Until such a run is begun again that failed through no fault of its own."""
UNTIL_DEFINED = math.inf
"""The time of a restart that wants the secrets again."""
ADOPT_S = 30.0
"""A run that was ready when its owner ended has to answer again within this."""
_NARROWS = (ev.LimitsSet, ev.ModelPinned, ev.ModelDefined, ev.RunStopFailed)
"""What may leave too little room for a joint request that waits: it keeps what it has."""


def act(registry: Registry, before: State, entries: Sequence[ev.Entry], outcome: Outcome) -> None:
    """Act on committed entries, in order; `before` is the state they were decided on."""
    _time_stages(registry, entries)
    answers.pass_on(registry, entries)
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
                answers.serve(registry, event)
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
        answers.grant_joint(registry)
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
            swept = isinstance(entry.event, ev.RunSwept)  # from now on its exit is waited for
            if known is None or known[0] is not run.stage or swept:
                registry.volatile.stages[run.run] = (run.stage, now)


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
    run = registry.state.runs.get(event.run)
    was = before.runs.get(event.run)
    if run is None or run.swept or run.stage is not Stage.STOPPING:
        return
    if isinstance(event, ev.RunExited) and was is not None and was.stage is Stage.STOPPING:
        return  # its stop is under way
    if isinstance(event, ev.RunStopping) and run.exited and was is not None and not was.exited:
        return  # it was ordered for the exit
    order_stop(registry, run, hurry=run.run in registry.volatile.forced)


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
    answers.fail(registry, registry.desk.take(event.run), error)
    successor = registry.state.models[event.model].next_run
    if successor is not None:
        answers.fail(registry, registry.desk.take(successor), error)
        registry.settle(
            lambda draft, _: decide.cancel(draft, successor, "the run before could not be stopped"),
            must=False,
        )


def _spare(registry: Registry, before: State, event: ev.RunReopened) -> None:
    was = before.runs.get(event.run)
    gate = registry.hall.get(event.run)
    if was is not None and was.for_run in registry.state.queue and gate is not None:
        registry.volatile.spared[event.run, was.for_run or 0] = frozenset(gate.holders)


def _ended(
    registry: Registry,
    event: ev.RunAbandoned | ev.RunReleased,
    was: Run | None,
    no_room: NoRoom | None,
) -> None:
    volatile = registry.volatile
    for known in (volatile.stages, volatile.retries, volatile.going, volatile.removers):
        known.pop(event.run, None)
    for fetch in (volatile.fetching, volatile.fetch_steps):
        fetch.pop(event.run, None)
    volatile.unasked.discard(event.run)
    volatile.forced.discard(event.run)
    if event.outcome != "failed: port":  # else the request may go on with another run
        volatile.port_tries.pop(event.model, None)
    stopped = answers.ended(registry, event, was, no_room)
    registry.tell_model(event.model, msg.Forget(event.run))
    model = registry.state.models.get(event.model)
    if model is None or model.run is None:
        registry.end_model(event.model)
    if model is not None and not stopped and (was is None or was.reason not in decide.LASTING):
        _restart_later(registry, event, model.name, was)


def _restart_later(
    registry: Registry, event: ev.RunAbandoned | ev.RunReleased, name: str, was: Run | None
) -> None:
    model = registry.state.models[name]
    crashed = event.outcome.startswith("failed: ") or event.outcome == "lost"
    joined = event.outcome == "refused" and was is not None and was.requested_by == RESTART
    wanted = model.spec.restart == "always" and model.status not in ("held", "failed")
    if wanted and (crashed or joined) and model.run is None:
        registry.volatile.restarts[name] = _restart_at(registry, event.outcome, model)


def _restart_at(registry: Registry, outcome: str, model: Model) -> float:
    stage = outcome.removeprefix("failed: ")
    if stage == "secrets":
        return UNTIL_DEFINED
    pause_s = UNCOUNTED_RESTART_S if stage in decide.UNCOUNTED else 0.0
    return registry.clock.monotonic() + max(pause_s, decide.wait_s(model, registry.clock.now()))
