"""What must be true of every state, at every prefix of a log."""

from __future__ import annotations

from collections.abc import Iterator

from moorage.core.events import Entry
from moorage.core.fold import FoldError, apply
from moorage.core.lifecycle import HOLDING, LifecycleError, Stage
from moorage.core.shape import misfit
from moorage.core.space import room_left
from moorage.core.state import State, expand
from moorage.errors import CorruptLogError


class InvariantError(Exception):
    """A state contradicts itself. Never caught to go on: the registry stops."""


CONTRADICTIONS = (
    *(FoldError, LifecycleError, LookupError, TypeError, ValueError, AttributeError),
    *(OverflowError, RecursionError),
)
"""What folding raises for an entry that does not fit, be it for data of the wrong shape."""


def fold(state: State, entry: Entry, path: str) -> None:
    """Fold one entry of the log at `path`.

    Raises CorruptLogError when it contradicts what came before.
    """
    try:
        apply(state, entry)
    except CONTRADICTIONS as error:
        raise CorruptLogError(path, entry.seq, str(error) or type(error).__name__) from error


def check(state: State, path: str) -> None:
    """Raise CorruptLogError when the log at `path` adds up to values that no state has."""
    if name := misfit(state):
        raise CorruptLogError(path, state.seq, f"adds up to a state whose {name} cannot be")


def violations(state: State) -> tuple[str, ...]:
    """Return every broken invariant in words; () when the state is sound."""
    return tuple(problem for look in (_ports, _models, _orders, _names) for problem in look(state))


def over_limits(state: State) -> bool:
    """Tell whether more is loaded than the limits allow (lawful only after they were lowered)."""
    left = room_left(state)
    return left.slots < 0 or left.bytes < 0


def _ports(state: State) -> Iterator[str]:
    for port, holder in state.held.items():
        if port in state.free:
            yield f"port {port} is both held and free"
        if holder not in state.runs or port not in state.runs[holder].ports:
            yield f"port {port} is held by run {holder}, which does not have it"
    for run in state.runs.values():
        holds = run.stage in HOLDING
        if holds != bool(run.ports):
            yield f"run {run.run} in stage {run.stage} has ports {run.ports}"
        for port in run.ports:
            if state.held.get(port) != run.run:
                yield f"port {port} of run {run.run} is not held by it"
    yield from _pool(state)


def _pool(state: State) -> Iterator[str]:
    """Look at every port only when there are too many or too few: this is asked at each entry."""
    size = sum(last - first + 1 for first, last in state.pool)
    inside = sum(_in_pool(state, port) for port in state.held)
    if len(state.free) + inside == size:
        return
    for port in expand(state.pool):
        if port not in state.free and port not in state.held:
            yield f"port {port} of the pool is lost"
    for port in state.free:
        if not _in_pool(state, port):
            yield f"port {port} is free and not of the pool"


def _in_pool(state: State, port: int) -> bool:
    return any(first <= port <= last for first, last in state.pool)


def _models(state: State) -> Iterator[str]:
    for model in state.models.values():
        own = [run.run for run in state.runs.values() if run.model == model.name]
        said = [run for run in (model.run, model.next_run) if run is not None]
        if sorted(own) != sorted(said):
            yield f"model {model.name} says runs {said}, there are {own}"
        holding = [run for run in own if state.runs[run].stage in HOLDING]
        if len(holding) > 1:
            yield f"model {model.name} holds room twice: runs {holding}"
        if model.next_run is not None and model.next_run in holding:
            yield f"model {model.name} holds room for its next run"


def _orders(state: State) -> Iterator[str]:
    ready = {r.run for r in state.runs.values() if r.stage in (Stage.READY, Stage.DRAINING)}
    if ready != set(state.lru) or len(set(state.lru)) != len(state.lru):
        yield f"the LRU order is {state.lru}, ready are {sorted(ready)}"
    queued = {r.run for r in state.runs.values() if r.stage is Stage.QUEUED}
    if queued != set(state.queue) or len(set(state.queue)) != len(state.queue):
        yield f"the queue is {state.queue}, queued are {sorted(queued)}"


def _names(state: State) -> Iterator[str]:
    said = {name: m.name for m in state.models.values() for name in m.spec.names}
    if said != state.names:
        yield f"names are {state.names}, models say {said}"
