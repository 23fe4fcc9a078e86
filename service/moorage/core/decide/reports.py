"""What workers tell of a run. Told of one that has moved on, it changes nothing."""

from __future__ import annotations

from moorage.core import events as ev
from moorage.core.decide.ends import (
    LASTING,
    abandon,
    outcome_of,
    release,
    release_when_over,
    stopping,
)
from moorage.core.decide.requests import enqueue
from moorage.core.draft import Draft, seconds_between
from moorage.core.lifecycle import LOADING, Stage
from moorage.core.pace import Fetching


def fetch_noted(draft: Draft, number: int, seen: Fetching) -> bool:
    """A long fetch has come so far."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.FETCHING or seen.total_bytes is None:
        return False
    draft.emit(
        ev.FetchNoted(
            model=run.model,
            run=number,
            done_bytes=seen.done_bytes,
            total_bytes=seen.total_bytes,
            bytes_per_s=None if seen.bytes_per_s is None else round(seen.bytes_per_s),
        )
    )
    return True


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


def fetch_failed(draft: Draft, number: int, problem: str, reason: str = "") -> bool:
    """A run's files could not be had."""
    run = draft.run(number)
    if run is None or run.stage is not Stage.FETCHING:
        return False
    abandon(draft, run, "failed: fetch", problem, reason)
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
        release(draft, run, outcome=outcome_of(run), error=run.error)
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
    stopping(draft, run, "failed", stage=stage, error=problem)
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
    if run.stage is Stage.DRAINING and run.reason in LASTING:
        stopping(draft, draft.state.runs[number], run.reason, stage=stage, error=error)
    release_when_over(draft, number)
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
    release_when_over(draft, number)
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
