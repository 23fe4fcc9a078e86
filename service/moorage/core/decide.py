"""Decisions about models and the runs they have: from a state and what was asked or told to events.

Every function takes a draft and emits to it. What is asked and cannot be is an error of the tree,
raised before anything is emitted. What is told of a run that has moved on changes nothing: the
functions return False then.
"""

from __future__ import annotations

from collections.abc import Mapping

from moorage.core import events as ev
from moorage.core.draft import Cause, Draft, later, seconds_between
from moorage.core.fold import FoldError
from moorage.core.lifecycle import LOADING, WAITING, Stage
from moorage.core.state import Model, Run
from moorage.errors import (
    ModelHeldError,
    ModelUnavailableError,
    NameClashError,
    StopFailedError,
    UnknownModelError,
)
from moorage.spec import ModelSpec

BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds leases are refused after the first, second, ... failure in a row; the last repeats."""
STEADY_S = 60.0
"""A run that was ready this long starts the count of failures anew."""
REOPENED = "the run before it is ready again"
WANTED_ENDS = frozenset({"operator", "reload", "remove", "close", "unhealthy"})
"""Reasons to stop a run that outlive its owner."""
UNCOUNTED = frozenset({"port", "log", "secrets"})
"""Failure stages that are nobody's fault and spend no crash budget."""


def resolve(draft: Draft, name: str) -> Model:
    """Return the model of a name or alias; one that is being removed is gone already."""
    state = draft.state
    model = state.models.get(state.names.get(name, ""))
    if model is None or _leaving(draft, model):
        near = tuple(n for n in sorted(state.names) if n.lower().startswith(name[:3].lower()))[:3]
        raise UnknownModelError(name, near)
    return model


def leaving(draft: Draft, name: str) -> bool:
    """Tell whether a model is being removed."""
    return _leaving(draft, draft.state.models[name])


def _leaving(draft: Draft, model: Model) -> bool:
    run = draft.state.runs.get(model.run or 0)
    return run is not None and run.reason == "remove"


# --- models ---


def define(draft: Draft, spec: ModelSpec, secrets_hash: str) -> bool:
    """Define or redefine a model; the same spec again changes nothing (returns False)."""
    state = draft.state
    old = state.models.get(spec.name)
    for name in spec.names:
        owner = state.names.get(name, spec.name)
        if owner != spec.name:
            raise NameClashError(name, owner)
    if old is not None and _leaving(draft, old):
        raise NameClashError(spec.name, f"{spec.name} (being removed)")
    data = spec.to_data()
    if old is not None and old.secrets_hash == secrets_hash:
        known = old.spec.to_data() | {"secret_names": list(old.secret_names)}
        if known == data:
            return False
    defined = draft.emit(
        ev.ModelDefined(
            model=spec.name,
            spec=data,
            spec_hash=spec.launch_hash(),
            secrets_hash=secrets_hash,
        )
    )
    _pin_as_told(draft, spec, old, defined)
    return True


def _pin_as_told(draft: Draft, spec: ModelSpec, old: Model | None, cause: int) -> None:
    was = old.spec.pinned if old is not None else False
    if spec.pinned != was:
        event = ev.ModelPinned if spec.pinned else ev.ModelUnpinned
        draft.emit(event(model=spec.name), cause)


def outdated(draft: Draft, model: Model, old: Model | None) -> list[Run]:
    """Return the runs that were made from a spec the model no longer has."""
    if old is None:
        return []
    runs = [draft.state.runs[run] for run in (model.run, model.next_run) if run is not None]
    secrets = old.secrets_hash != model.secrets_hash
    return [
        run
        for run in runs
        # What queues without fetched files takes the spec it finds when it reserves.
        if not (run.stage is Stage.QUEUED and run.path is None)
        and (secrets or run.spec_hash != model.spec_hash)
    ]


def pin(draft: Draft, name: str, *, pinned: bool) -> bool:
    """Pin or unpin; a pin loads nothing."""
    model = resolve(draft, name)
    if model.pinned == pinned:
        return False
    event = ev.ModelPinned if pinned else ev.ModelUnpinned
    draft.emit(event(model=model.name))
    return True


def reset(draft: Draft, name: str, reason: str) -> bool:
    """Forget hold, backoff, failure and the count of attempts."""
    model = resolve(draft, name)
    if model.status == "stopped" and not model.attempts and model.last is None:
        return False
    draft.emit(ev.ModelReset(model=model.name, reason=reason))
    return True


def hold(draft: Draft, name: str, reason: str) -> bool:
    """Refuse leases of a model from now on."""
    model = resolve(draft, name)
    if model.status == "held":
        return False
    draft.emit(ev.ModelHeld(model=model.name, reason=reason))
    return True


def remove(draft: Draft, name: str, *, force: bool, leases: int) -> int | None:
    """Take a model away; return the run that has to end first, None when it is gone at once."""
    model = resolve(draft, name)
    if model.next_run is not None:
        cancel(draft, model.next_run, "remove")
    if model.run is not None and not stop(draft, model.run, "remove", force=force, leases=leases):
        run = draft.state.runs[model.run]  # it is being stopped already, for another reason
        _stopping(draft, run, "remove", stage=run.fail_stage, error=run.error)
    if model.name in draft.state.models and draft.state.models[model.name].run is None:
        draft.emit(ev.ModelRemoved(model=model.name, reason="operator"))
    return model.run if model.name in draft.state.models else None


# --- requests ---


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
    last = model.last.error if model.last else ""
    if model.status == "failed":
        raise ModelUnavailableError(model.name, "failed", last, None)
    if model.status == "backoff" and at < model.until:
        raise ModelUnavailableError(model.name, "backoff", last, wait_s(model, at))


def wait_s(model: Model, at: str) -> float:
    """Return the seconds until a model may be tried again."""
    return seconds_between(at, model.until) if at < model.until else 0.0


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


# --- what workers tell ---


def fetched(
    draft: Draft,
    number: int,
    *,
    path: str,
    commit: str,
    files: tuple[tuple[str, int, str], ...],
    fetched_bytes: int,
) -> bool:
    """A run's files are here: it queues."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.FETCHING:
        return False
    draft.emit(
        ev.RunFetched(
            model=run.model,
            run=number,
            path=path,
            commit=commit,
            files=files,
            fetched_bytes=fetched_bytes,
            seconds=seconds_between(run.began_at, draft.at),
        )
    )
    enqueue(draft, run.model, number, run.requested_by)
    return True


def fetch_failed(draft: Draft, number: int, problem: str) -> bool:
    """A run's files could not be had."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.FETCHING:
        return False
    abandon(draft, run, "failed: fetch", problem)
    return True


def prepared(
    draft: Draft, number: int, *, argv: tuple[str, ...], nonce: str, log_file: str
) -> bool:
    """The command line is made: record the intent to spawn."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.RESERVED:
        return False
    draft.emit(
        ev.RunLaunching(
            model=run.model,
            run=number,
            port=run.ports[0],
            argv=argv,
            nonce=nonce,
            log_file=log_file,
        )
    )
    return True


def not_spawned(draft: Draft, number: int, stage: str, problem: str) -> bool:
    """Preparing or spawning failed: nothing was started, port and room are free at once."""
    run = draft.run(number)
    if run is None or run.pid is not None:
        return False
    if run.stage in (Stage.RESERVED, Stage.LAUNCHING):
        release(draft, run, outcome=f"failed: {stage}", error=problem)
    elif run.stage is Stage.STOPPING:
        release(draft, run, outcome=_outcome(run), error=run.error)
    else:
        return False
    return True


def launched(
    draft: Draft,
    number: int,
    *,
    pid: int,
    group: int,
    session: int,
    start_ticks: int,
    boot_id: str,
) -> bool:
    """The leader was spawned, also when the run is being stopped meanwhile."""
    run = draft.run(number)
    if run is None or run.pid is not None or run.stage not in (Stage.LAUNCHING, Stage.STOPPING):
        return False
    draft.emit(
        ev.RunLaunched(
            model=run.model,
            run=number,
            port=run.ports[0],
            pid=pid,
            group=group,
            session=session,
            start_ticks=start_ticks,
            boot_id=boot_id,
        )
    )
    return True


def ready(draft: Draft, number: int, leases: int) -> bool:
    """A run answers: `leases` of its waiters are granted in this very step."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.LOADING:
        return False
    draft.emit(
        ev.RunReady(
            model=run.model,
            run=number,
            port=run.ports[0],
            pid=run.pid,
            seconds=seconds_between(run.reserved_at, draft.at),
            load_s=seconds_between(run.launched_at, draft.at),
            leases=leases,
            owner_check=draft.model_of(run).spec.owner_check,
        )
    )
    return True


def not_ready(draft: Draft, number: int, stage: str, problem: str) -> bool:
    """A load failed with its leader alive: stop it."""
    run = draft.run(number)
    if run is None or run.stage not in (Stage.LAUNCHING, Stage.LOADING):
        return False
    _stopping(draft, run, "failed", stage=stage, error=problem)
    return True


def exited(
    draft: Draft,
    number: int,
    *,
    code: int | None,
    signal: int | None,
    log_tail: tuple[str, ...],
    port_lost: str = "",
) -> bool:
    """The leader is gone, wanted or not; what is left of its tree is swept next.

    `port_lost` says who listens on the port of a run that exited while it was loading.
    """
    run = draft.run(number)
    if run is None or run.exited or run.stage in LOADING - {Stage.LOADING}:
        return False  # of one that was not launched yet, as far as was told, nothing can exit
    wanted = run.stage in (Stage.STOPPING, Stage.STOP_FAILED)
    stage, error = "", ""
    if not wanted:
        loading = run.stage is Stage.LOADING
        stage = ("port" if port_lost else "load") if loading else "exit"
        error = port_lost if stage == "port" else describe_exit(code, signal)
    draft.emit(
        ev.RunExited(
            model=run.model,
            run=number,
            pid=run.pid,
            code=code,
            signal=signal,
            wanted=wanted,
            stage=stage,
            error=error,
            log_tail=log_tail,
        )
    )
    _release_when_over(draft, number)
    return True


def swept(
    draft: Draft, number: int, *, pids: tuple[int, ...], seconds: float, peak_bytes: int | None
) -> bool:
    """The tree is empty and the ports are closed: release, once the leader's exit is known."""
    run = draft.run(number)
    if run is None or run.swept or run.stage not in (Stage.STOPPING, Stage.STOP_FAILED):
        return False
    draft.emit(
        ev.RunSwept(model=run.model, run=number, pids=pids, seconds=seconds, peak_bytes=peak_bytes)
    )
    _release_when_over(draft, number)
    return True


def stop_failed(draft: Draft, number: int, pids: tuple[int, ...], problem: str) -> bool:
    """Something outlived SIGKILL. Told again while it lasts, it adds nothing to the log."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.STOPPING:
        return False
    draft.emit(ev.RunStopFailed(model=run.model, run=number, pids=pids, error=problem))
    return True


def describe_exit(code: int | None, signal: int | None) -> str:
    """Return how a process ended, in words."""
    if signal is not None:
        return f"killed by signal {signal}"
    if code is not None:
        return f"exited with status {code}"
    return "exited, the status is unknown"


# --- ends ---


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
        _stopping(draft, run, why, error=reason)
    return True


def drained(draft: Draft, number: int) -> bool:
    """The last lease of a draining run is gone: stop it."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.DRAINING:
        return False
    stage = "health" if run.reason == "unhealthy" else ""
    _stopping(draft, run, run.reason, stage=stage, error=run.error)
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


def recover(draft: Draft, number: int, *, same_boot: bool, alive: bool) -> bool:
    """Bring an open run of an earlier owner under this one.

    A leader that lives is adopted, unless its end was wanted already; whatever else lives of a
    run is swept and the run released as lost.
    """
    run = draft.run(number)
    if run is None:
        return False
    if alive and run.stage in (Stage.LOADING, Stage.READY):
        _adopt(draft, run)
        return True
    if alive and run.stage is Stage.DRAINING and run.reason not in WANTED_ENDS:
        reopen(draft, number, "its owner ended")
        _adopt(draft, draft.state.runs[number])
        return True
    if run.stage in WAITING:
        abandon(draft, run, "lost", "its owner ended")
    elif run.stage is Stage.RESERVED:
        release(draft, run, outcome="lost", error="its owner ended")
    else:
        going = run.stage in (Stage.STOPPING, Stage.STOP_FAILED) or (
            run.stage is Stage.DRAINING and run.reason in WANTED_ENDS
        )
        reason = run.reason if going else "recovery"
        _stopping(draft, run, reason, stage=run.fail_stage, error=run.error)
        if not same_boot:
            _gone_with_the_boot(draft, number)
    return True


def _adopt(draft: Draft, run: Run) -> None:
    if run.pid is None:
        raise FoldError(f"run {run.run} is {run.stage} without a leader")
    draft.emit(
        ev.RunAdopted(
            model=run.model,
            run=run.run,
            port=run.ports[0],
            pid=run.pid,
            state=run.stage.value,
        )
    )


def _gone_with_the_boot(draft: Draft, number: int) -> None:
    if draft.state.runs[number].pid is not None:
        exited(draft, number, code=None, signal=None, log_tail=())
    if number in draft.state.runs:
        swept(draft, number, pids=(), seconds=0.0, peak_bytes=None)


def stop_again(draft: Draft, number: int, reason: str) -> bool:
    """Begin the stop of a stuck run anew, with new deadlines."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.STOP_FAILED:
        return False
    _stopping(draft, run, reason, stage=run.fail_stage, error=run.error)
    return True


def _stopping(draft: Draft, run: Run, reason: str, *, stage: str = "", error: str = "") -> None:
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


def abandon(draft: Draft, run: Run, outcome: str, error: str) -> None:
    """End a run that never reserved."""
    cause = draft.emit(ev.RunAbandoned(model=run.model, run=run.run, outcome=outcome, error=error))
    _account(draft, run, outcome, error, cause)


def _release_when_over(draft: Draft, number: int) -> None:
    run = draft.state.runs[number]
    if run.swept and (run.exited or run.pid is None):
        release(draft, run, outcome=_outcome(run), error=run.error)


def _outcome(run: Run) -> str:
    if run.reason == "recovery":
        return "lost"
    if run.fail_stage:
        return f"failed: {run.fail_stage}"
    return "ok" if run.ready_at else "cancelled"


def release(draft: Draft, run: Run, *, outcome: str, error: str = "") -> None:
    """End a run that had reserved: its ports and its room are free."""
    cause = draft.emit(
        ev.RunReleased(
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
    )
    _account(draft, run, outcome, error, cause)
    model = draft.state.models[run.model]
    if run.reason == "remove" and model.run is None:
        draft.emit(ev.ModelRemoved(model=run.model, reason="operator"), cause)


def _account(draft: Draft, run: Run, outcome: str, error: str, cause: int) -> None:
    if not outcome.startswith("failed: "):
        return
    stage = outcome.removeprefix("failed: ")
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
        "error": error,
        "code": run.code,
        "signal": run.signal,
        "log_tail": run.log_tail,
    }
    if attempts >= model.spec.crash_budget:
        draft.emit(_as_event(ev.ModelFailed, facts), cause)
        return
    wait_s = BACKOFF_S[min(attempts, len(BACKOFF_S)) - 1]
    draft.emit(_as_event(ev.ModelBackoff, facts | {"until": later(draft.at, wait_s)}), cause)


def _as_event(cls: type[ev.Event], facts: Mapping[str, object]) -> ev.Event:
    return cls(**facts)
