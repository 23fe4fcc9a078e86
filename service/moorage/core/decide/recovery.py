"""What becomes of the open runs of an earlier owner."""

from __future__ import annotations

from moorage.core import events as ev
from moorage.core.decide.ends import abandon, is_over, release, release_when_over, reopen, stopping
from moorage.core.decide.reports import exited, swept
from moorage.core.draft import Draft
from moorage.core.fold import FoldError
from moorage.core.lifecycle import WAITING, Stage
from moorage.core.state import Run

WANTED_ENDS = frozenset({"operator", "reload", "remove", "close", "unhealthy"})
"""Reasons to stop a run that outlive its owner."""


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
    elif is_over(run):  # one append has both, but a log may have been cut between them
        release_when_over(draft, number)
    else:
        going = run.stage in (Stage.STOPPING, Stage.STOP_FAILED) or (
            run.stage is Stage.DRAINING and run.reason in WANTED_ENDS
        )
        reason = run.reason if going else "recovery"
        stopping(draft, run, reason, stage=run.fail_stage, error=run.error)
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
