"""How runs end: stopped, drained, cancelled, abandoned, released, and counted when they failed."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.core import events as ev
from moorage.core.draft import Cause, Draft, later, seconds_between
from moorage.core.lifecycle import LOADING, WAITING, Stage
from moorage.core.state import Run

BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds leases are refused after the first, second, ... failure in a row; the last repeats."""
STEADY_S = 60.0
"""A run that was ready this long starts the count of failures anew."""
REOPENED = "the run before it is ready again"
LASTING = frozenset({"operator", "remove"})
"""Reasons to end a run that outlast it, should it end by itself meanwhile."""
UNCOUNTED = frozenset({"port", "log", "secrets"})
"""Failure stages that are nobody's fault and spend no crash budget."""


def stop(
    draft: Draft, number: int, reason: str, *, force: bool, leases: int, error: str = ""
) -> bool:
    """Bring a run towards its end: at once when it is forced, idle or not ready, else drain it."""
    run = draft.run(number)
    if run is None:
        return False
    if run.stage in LOADING:
        return cancel(draft, number, reason)
    if run.stage not in (Stage.READY, Stage.DRAINING):
        return False
    if run.stage is Stage.READY or run.reason != reason:
        draft.emit(
            ev.RunDraining(model=run.model, run=number, reason=reason, leases=leases, error=error)
        )
    if force or leases == 0:
        drained(draft, number)
    return True


def cancel(draft: Draft, number: int, reason: str) -> bool:
    """End a run that is not ready yet."""
    run = draft.run(number)
    if run is None or run.stage not in LOADING:
        return False
    if run.stage in WAITING:
        abandon(draft, run, "cancelled", reason)
    elif run.stage is Stage.RESERVED:
        release(draft, run, outcome="cancelled", error=reason)
    else:
        why = reason if reason in ("remove", "reload", "close") else "cancelled"
        stopping(draft, run, why, error=reason)
    return True


def drained(draft: Draft, number: int) -> bool:
    """The last lease of a draining run is gone: stop it."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.DRAINING:
        return False
    stage = "health" if run.reason == "unhealthy" else ""
    stopping(draft, run, run.reason, stage=stage, error=run.error)
    return True


def reopen(draft: Draft, number: int, reason: str, cause: Cause = "unset") -> bool:
    """The reason of a drain is gone: ready again, at its old place in the LRU order."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.DRAINING:
        return False
    draft.emit(ev.RunReopened(model=run.model, run=number, reason=reason), cause)
    successor = draft.state.runs.get(draft.model_of(run).next_run or 0)
    if successor is not None:
        abandon(draft, successor, "cancelled", REOPENED)
    return True


def unhealthy(draft: Draft, number: int, problem: str, *, leases: int) -> bool:
    """A ready run does not answer: it drains, and its end counts as a failure."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.READY:
        return False
    return stop(draft, number, "unhealthy", force=False, leases=leases, error=problem)


def stop_again(draft: Draft, number: int, reason: str) -> bool:
    """Begin the stop of a stuck run anew, with new deadlines."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.STOP_FAILED:
        return False
    stopping(draft, run, reason, stage=run.fail_stage, error=run.error)
    return True


def stay_down(draft: Draft, name: str) -> None:
    """What was stopped on purpose is not started again by itself, now or by a later owner."""
    model = draft.state.models[name]
    if model.spec.restart != "always":
        return
    run = draft.state.runs.get(model.run or 0)
    if run is not None and run.stage is Stage.STOPPING and run.fail_stage:
        if run.reason not in LASTING:
            stopping(draft, run, "operator", stage=run.fail_stage, error=run.error)
    elif model.status == "backoff":
        draft.emit(ev.ModelReset(model=name, reason="operator"))


def stopping(draft: Draft, run: Run, reason: str, *, stage: str = "", error: str = "") -> None:
    """Begin to stop what there is of a run; `stage` and `error` say what broke it."""
    draft.emit(
        ev.RunStopping(
            model=run.model,
            run=run.run,
            reason=reason,
            stop_timeout_s=draft.model_of(run).spec.stop_timeout_s,
            stage=stage,
            error=error,
        )
    )


def abandon(draft: Draft, run: Run, outcome: str, error: str, reason: str = "") -> None:
    """End a run that never reserved."""
    event = ev.RunAbandoned(
        model=run.model, run=run.run, outcome=outcome, error=error, reason=reason
    )
    _account(draft, run, event, draft.emit(event))


def release_when_over(draft: Draft, number: int) -> None:
    """Release a run whose tree is empty and whose leader's exit is known."""
    run = draft.state.runs[number]
    if is_over(run):
        release(draft, run, outcome=outcome_of(run), error=run.error)


def is_over(run: Run) -> bool:
    """Tell whether all of a run has ended; only its release is missing."""
    return run.swept and (run.exited or run.pid is None)


def outcome_of(run: Run) -> str:
    """Return how a run that is over ended."""
    if run.reason == "recovery":
        return "lost"
    if run.fail_stage:
        return f"failed: {run.fail_stage}"
    return "ok" if run.ready_at else "cancelled"


def release(draft: Draft, run: Run, *, outcome: str, error: str = "") -> None:
    """End a run that had reserved: its ports and its room are free."""
    event = ev.RunReleased(
        model=run.model,
        run=run.run,
        port=run.ports[0],
        outcome=outcome,
        error=error,
        code=run.code,
        signal=run.signal,
        seconds=seconds_between(run.reserved_at, draft.at),
        ready_s=seconds_between(run.ready_at, draft.at),
        peak_bytes=run.peak_bytes,
    )
    cause = draft.emit(event)
    _account(draft, run, event, cause)
    if run.reason == "operator":
        stay_down(draft, run.model)
    model = draft.state.models[run.model]
    if run.reason == "remove" and model.run is None:
        draft.emit(ev.ModelRemoved(model=run.model, reason="operator"), cause)


def _account(draft: Draft, run: Run, end: ev.RunAbandoned | ev.RunReleased, cause: int) -> None:
    if not end.outcome.startswith("failed: "):
        return
    stage = end.outcome.removeprefix("failed: ")
    if stage in UNCOUNTED:
        return
    model = draft.state.models[run.model]
    steady = run.ready_at and seconds_between(run.ready_at, draft.at) >= STEADY_S
    attempts = 1 if steady else model.attempts + 1
    facts = {
        "model": run.model,
        "run": run.run,
        "attempts": attempts,
        "stage": stage,
        "error": end.error,
        "code": run.code,
        "signal": run.signal,
        "log_tail": run.log_tail,
        "reason": end.reason if isinstance(end, ev.RunAbandoned) else "",
    }
    if attempts >= model.spec.crash_budget:
        draft.emit(_as_event(ev.ModelFailed, facts), cause)
        return
    wait_s = BACKOFF_S[min(attempts, len(BACKOFF_S)) - 1]
    draft.emit(_as_event(ev.ModelBackoff, facts | {"until": later(draft.at, wait_s)}), cause)


def _as_event(cls: type[ev.Event], facts: Mapping[str, object]) -> ev.Event:
    return cls(**facts)
