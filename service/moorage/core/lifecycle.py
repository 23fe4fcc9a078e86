"""The lifecycle of a run as data: the only thing that moves one."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """Where a run is. `ENDED` is the end of both `run.released` and `run.abandoned`."""

    FETCHING = "fetching"
    QUEUED = "queued"
    RESERVED = "reserved"
    LAUNCHING = "launching"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOP_FAILED = "stop_failed"
    ENDED = "ended"

    # Enum's own is a Python function, and every event of a replay asks for it more than once.
    __hash__ = str.__hash__


_S = Stage

TABLE: dict[tuple[Stage | None, str], Stage] = {
    (None, "run.fetching"): _S.FETCHING,
    (None, "run.queued"): _S.QUEUED,
    (_S.FETCHING, "run.fetched"): _S.FETCHING,
    (_S.FETCHING, "run.queued"): _S.QUEUED,
    (_S.FETCHING, "run.abandoned"): _S.ENDED,
    (_S.QUEUED, "run.reserved"): _S.RESERVED,
    (_S.QUEUED, "run.abandoned"): _S.ENDED,
    (_S.RESERVED, "run.launching"): _S.LAUNCHING,
    (_S.RESERVED, "run.released"): _S.ENDED,
    (_S.LAUNCHING, "run.launched"): _S.LOADING,
    (_S.LAUNCHING, "run.stopping"): _S.STOPPING,
    (_S.LAUNCHING, "run.released"): _S.ENDED,
    (_S.LOADING, "run.ready"): _S.READY,
    (_S.LOADING, "run.stopping"): _S.STOPPING,
    (_S.LOADING, "run.exited"): _S.STOPPING,
    (_S.READY, "run.evicting"): _S.DRAINING,
    (_S.READY, "run.draining"): _S.DRAINING,
    (_S.READY, "run.stopping"): _S.STOPPING,
    (_S.READY, "run.exited"): _S.STOPPING,
    (_S.DRAINING, "run.reopened"): _S.READY,
    (_S.DRAINING, "run.draining"): _S.DRAINING,
    (_S.DRAINING, "run.stopping"): _S.STOPPING,
    (_S.DRAINING, "run.exited"): _S.STOPPING,
    (_S.STOPPING, "run.launched"): _S.STOPPING,
    (_S.STOPPING, "run.stopping"): _S.STOPPING,
    (_S.STOPPING, "run.exited"): _S.STOPPING,
    (_S.STOPPING, "run.swept"): _S.STOPPING,
    (_S.STOPPING, "run.stop_failed"): _S.STOP_FAILED,
    (_S.STOPPING, "run.released"): _S.ENDED,
    (_S.STOP_FAILED, "run.exited"): _S.STOPPING,
    (_S.STOP_FAILED, "run.stopping"): _S.STOPPING,
    (_S.STOP_FAILED, "run.swept"): _S.STOPPING,
    (_S.LOADING, "run.adopted"): _S.LOADING,
    (_S.READY, "run.adopted"): _S.READY,
}

HOLDING = frozenset(
    {
        _S.RESERVED,
        _S.LAUNCHING,
        _S.LOADING,
        _S.READY,
        _S.DRAINING,
        _S.STOPPING,
        _S.STOP_FAILED,
    }
)
"""Stages in which a run holds its ports and its room."""

WAITING = frozenset({_S.FETCHING, _S.QUEUED})
"""Stages in which it holds nothing scarce."""

LOADING = frozenset({*WAITING, _S.RESERVED, _S.LAUNCHING, _S.LOADING})
"""Stages before the first lease."""


class LifecycleError(Exception):
    """An event does not fit the stage its run is in: an invariant is broken."""


def step(stage: Stage | None, kind: str) -> Stage:
    """Return the stage after an event of this kind; raise LifecycleError when it cannot follow."""
    try:
        return TABLE[stage, kind]
    except KeyError:
        raise LifecycleError(f"{kind} cannot follow stage {stage}") from None
