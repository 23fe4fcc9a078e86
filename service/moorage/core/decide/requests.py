"""Names, and the run that serves a request for one."""

from __future__ import annotations

from moorage.core import events as ev
from moorage.core.decide.ends import BACKOFF_S
from moorage.core.draft import Cause, Draft, seconds_between
from moorage.core.lifecycle import LOADING, Stage
from moorage.core.state import Model, Run
from moorage.errors import (
    ModelHeldError,
    ModelUnavailableError,
    StopFailedError,
    UnknownModelError,
)


def resolve(draft: Draft, name: str) -> Model:
    """Return the model of a name or alias; one that is being removed is gone already."""
    state = draft.state
    model = state.models.get(state.names.get(name, ""))
    if model is None or leaving(draft, model.name):
        near = tuple(n for n in sorted(state.names) if n.lower().startswith(name[:3].lower()))[:3]
        raise UnknownModelError(name, near)
    return model


def leaving(draft: Draft, name: str) -> bool:
    """Tell whether a model is being removed."""
    run = draft.state.runs.get(draft.state.models[name].run or 0)
    return run is not None and run.reason == "remove"


def request(draft: Draft, name: str, by: str, *, start: bool) -> Run:
    """Return the run that will serve this request, a new one when none will.

    A `start` always makes an attempt; a lease is refused while the model is held, in backoff or
    failed.
    """
    model = resolve(draft, name)
    run = draft.state.runs.get(model.run or 0)
    if run is not None and run.stage is Stage.STOP_FAILED:
        raise StopFailedError(model.name, run.run, run.left_pids, run.error)
    if model.next_run is not None:
        return draft.state.runs[model.next_run]
    if run is not None and run.stage in LOADING | {Stage.READY}:
        return run
    _admit(draft, model, start=start)
    return begin(draft, model.name, by)


def _admit(draft: Draft, model: Model, *, start: bool) -> None:
    if start:
        if model.status == "held":
            draft.emit(ev.ModelReset(model=model.name, reason="start"))
        return
    if model.status == "held":
        raise ModelHeldError(model.name, model.hold_reason)
    refuse_unavailable(model, draft.at)


def refuse_unavailable(model: Model, at: str) -> None:
    """Raise ModelUnavailableError while a model is in backoff or failed."""
    retry_after_s = wait_s(model, at) if model.status == "backoff" else None
    if model.status == "failed" or retry_after_s:
        last = model.last
        raise ModelUnavailableError(
            model.name,
            model.status,
            last.error if last else "",
            retry_after_s,
            stage=last.stage if last else "",
            reason=last.reason if last else "",
        )


def wait_s(model: Model, at: str) -> float:
    """Return the seconds until a model may be tried again.

    None where that is more than the longest backoff: the clock was set back since.
    """
    left = seconds_between(at, model.until) if at < model.until else 0.0
    return left if left <= BACKOFF_S[-1] else 0.0


def begin(draft: Draft, name: str, by: str, cause: Cause = "unset") -> Run:
    """Begin a run of a model: fetching when its files come from a hub, else queued."""
    model = draft.state.models[name]
    number = draft.state.next_run
    spec = model.spec
    if spec.repo is not None:
        draft.emit(
            ev.RunFetching(
                model=name,
                run=number,
                requested_by=by,
                repo=spec.repo,
                file=spec.file,
                revision=spec.revision,
            ),
            cause,
        )
    else:
        enqueue(draft, name, number, by, cause)
    return draft.state.runs[number]


def enqueue(draft: Draft, name: str, number: int, by: str, cause: Cause = "unset") -> None:
    """Put a run at the end of the queue."""
    place = len(draft.state.queue) + 1
    draft.emit(ev.RunQueued(model=name, run=number, requested_by=by, place=place), cause)
