"""The log's entries as sentences: who asked, what a decision saw, what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moorage.core import events as ev
from moorage.core.lifecycle import Stage
from moorage.core.space import who_holds
from moorage.core.state import Model, Run, State, describe_pool
from moorage.core.story import Look
from moorage.core.words import seconds, size

_WHY_IT_GOES = {
    "room": "to make room",
    "memory": "to free memory",
    "idle": "as nobody had used it for its ttl_s",
    "limits": "as more was loaded than the limits allow",
    "operator": "as somebody stopped it",
    "reload": "as its model was defined anew",
    "remove": "as its model is to be removed",
    "close": "as the service closed",
    "unhealthy": "as it did not answer",
    "cancelled": "as it was cancelled",
    "failed": "as its load failed",
    "exited": "as its leader had ended",
    "forced": "at once, as it was told to",
    "recovery": "as its owner had ended",
}
_OUTCOMES = {
    "ok": "it had served and was wanted no more",
    "cancelled": "it was cancelled",
    "lost": "it was lost with its owner",
    "refused": "it could never get what it needed",
}


@dataclass(frozen=True, slots=True)
class Said:
    """An entry in words: one sentence, and lines that back it."""

    text: str
    details: tuple[str, ...] = ()


class Teller:
    """Tells entries of one log; `look` finds the names of the runs they mention."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def say(self, entry: ev.Entry) -> Said:
        """Return an entry in words."""
        return _SAY[type(entry.event)](self, entry.event)

    def named(self, number: int) -> str:
        """Return a run with its model's name."""
        entries = self._look.run(number)
        model: str = getattr(entries[0].event, "model", "") if entries else ""
        return f"run {number} of {model}" if model else f"run {number}"

    def names(self, numbers: Sequence[int]) -> str:
        """Return several runs with their models' names."""
        return ", ".join(self.named(number) for number in numbers)


def present(state: State, model: Model) -> tuple[str, ...]:
    """Return what a model is now, in sentences."""
    run = state.runs.get(model.run or 0)
    said = [_stopped(model) if run is None else _running(state, run)]
    following = state.runs.get(model.next_run or 0)
    if following is not None:
        said.append(f"run {following.run} waits for that to end ({following.requested_by}).")
    if model.pinned:
        said.append(f"{model.name} is pinned: never evicted.")
    return tuple(said)


def _stopped(model: Model) -> str:
    last = model.last
    because = f": {last.error} (stage {last.stage}, run {last.run})" if last is not None else ""
    match model.status:
        case "held":
            return f"{model.name} is held: {model.hold_reason}; leases are refused until a start."
        case "backoff":
            return (
                f"{model.name} is in backoff until {model.until}, after failure "
                f"{model.attempts} of {model.spec.crash_budget}{because}."
            )
        case "failed":
            return (
                f"{model.name} has failed {model.attempts} times, its crash budget{because}; "
                "reset or start it to try again."
            )
        case _:
            return f"{model.name} is stopped; the next lease starts it."


def _running(state: State, run: Run) -> str:
    where = f"port {run.port}, pid {run.pid}" if run.pid is not None else f"port {run.port}"
    head = f"{run.model} has run {run.run}, which "
    why = _WHY_IT_GOES.get(run.reason, run.reason)
    match run.stage:
        case Stage.FETCHING:
            return f"{head}fetches its files."
        case Stage.QUEUED:
            return head + _waiting(state, run)
        case Stage.RESERVED | Stage.LAUNCHING | Stage.LOADING:
            return f"{head}is {run.stage} ({where})."
        case Stage.READY:
            place = state.lru.index(run.run) + 1
            return f"{head}is ready ({where}), {place} of {len(state.lru)} to be evicted."
        case Stage.STOP_FAILED:
            return f"{head}could not be stopped ({where}): {run.error}."
        case _:
            return f"{head}is {run.stage} {why} ({where})."


def _waiting(state: State, run: Run) -> str:
    place = state.queue.index(run.run) + 1
    loaded = sum(1 for _ in state.holding())
    never = ", ".join(who_holds(state))
    stuck = f"; never given up: {never}" if never else ""
    return (
        f"waits at place {place} of {len(state.queue)}, "
        f"with {loaded} of {state.max_loaded} loaded{stuck}."
    )


# --- sentences, one a kind ---


def _limits(event: ev.ServiceOpened | ev.LimitsSet) -> str:
    memory = f" and {size(event.memory_limit)}" if event.memory_limit is not None else ""
    return f"room for {event.max_loaded} runs{memory}"


def _asked(event: ev.RunQueued | ev.RunFetching) -> str:
    if event.requested_by == "restart":
        return f"{event.model} is to be running always"
    return event.requested_by or f"somebody asked for {event.model}"


def _created(teller: Teller, event: ev.LogCreated) -> Said:
    return Said(f"log {event.log_id} was begun by moorage {event.program}")


def _continued(teller: Teller, event: ev.LogContinued) -> Said:
    return Said(f"segment {event.segment} of log {event.log_id} was begun")


def _opened(teller: Teller, event: ev.ServiceOpened) -> Said:
    return Said(
        f"process {event.pid} on {event.host} opened the service, with {_limits(event)} and "
        f"ports {describe_pool(event.ports)}"
    )


def _closed(teller: Teller, event: ev.ServiceClosed) -> Said:
    kept = f"; it left {teller.names(event.kept)} running" if event.kept else ""
    return Said(f"the service was closed{kept}")


def _limits_set(teller: Teller, event: ev.LimitsSet) -> Said:
    return Said(f"the limits were set to {_limits(event)}")


def _defined(teller: Teller, event: ev.ModelDefined) -> Said:
    spec = event.spec
    of = spec.get("path") or spec.get("repo") or spec.get("executable") or ""
    return Said(f"{event.model} was defined ({' '.join(filter(None, (spec.get('backend'), of)))})")


def _plain(text: str) -> Callable[[Teller, Any], Said]:
    return lambda _teller, event: Said(f"{event.model} {text}")


def _held(teller: Teller, event: ev.ModelHeld) -> Said:
    return Said(f"{event.model} was put on hold: {event.reason}")


def _reset(teller: Teller, event: ev.ModelReset) -> Said:
    return Said(f"hold and failures of {event.model} were forgotten ({event.reason})")


def _backoff(teller: Teller, event: ev.ModelBackoff) -> Said:
    return Said(
        f"failure {event.attempts} in a row of {event.model}, at {event.stage}: leases are "
        f"refused until {event.until}",
        (event.error, *_tail(event.log_tail)),
    )


def _failed(teller: Teller, event: ev.ModelFailed) -> Said:
    return Said(
        f"failure {event.attempts} in a row of {event.model}, at {event.stage}, spent its crash "
        "budget: leases are refused until it is reset or started",
        (event.error, *_tail(event.log_tail)),
    )


def _tail(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"| {line}" for line in lines)


def _fetching(teller: Teller, event: ev.RunFetching) -> Said:
    file = f" {event.file}" if event.file else ""
    return Said(f"{_asked(event)}: {teller.named(event.run)} began, fetching {event.repo}{file}")


def _fetch_noted(teller: Teller, event: ev.FetchNoted) -> Said:
    pace = f", at {size(event.bytes_per_s)} a second" if event.bytes_per_s is not None else ""
    had = f"{size(event.done_bytes)} of {size(event.total_bytes)}"
    return Said(f"{teller.named(event.run)} had fetched {had}{pace}")


def _fetched(teller: Teller, event: ev.RunFetched) -> Said:
    return Said(
        f"its files were here after {seconds(event.seconds)} ({size(event.fetched_bytes)} "
        f"fetched, commit {event.commit[:12]})",
        tuple(f"{name}, {size(bytes_)}" for name, bytes_, _ in event.files),
    )


def _queued(teller: Teller, event: ev.RunQueued) -> Said:
    return Said(f"{_asked(event)}: {teller.named(event.run)} queued at place {event.place}")


def _abandoned(teller: Teller, event: ev.RunAbandoned) -> Said:
    details = (event.error,) if event.error else ()
    return Said(
        f"{teller.named(event.run)} ended without having held anything: {_outcome(event.outcome)}",
        details,
    )


def _outcome(outcome: str) -> str:
    stage = outcome.removeprefix("failed: ")
    return _OUTCOMES.get(outcome, f"it failed at {stage}" if stage != outcome else outcome)


def _reserved(teller: Teller, event: ev.RunReserved) -> Said:
    ports = ", ".join(map(str, (event.port, *event.more_ports)))
    room = f" and {size(event.room_bytes)}" if event.room_bytes is not None else ""
    where = f", where {teller.names(event.displaced)} had been" if event.displaced else ""
    return Said(f"{teller.named(event.run)} got port {ports}{room}{where}")


def _launching(teller: Teller, event: ev.RunLaunching) -> Said:
    return Said("its command line was ready", (" ".join(event.argv), f"output: {event.log_file}"))


def _launched(teller: Teller, event: ev.RunLaunched) -> Said:
    return Said(f"its server was started as pid {event.pid}")


def _ready(teller: Teller, event: ev.RunReady) -> Said:
    granted = "1 lease was" if event.leases == 1 else f"{event.leases} leases were"
    return Said(
        f"{teller.named(event.run)} was ready {seconds(event.seconds)} after it got its port, "
        f"{seconds(event.load_s)} after its start; {granted} granted in the same step"
    )


def _evicting(teller: Teller, event: ev.RunEvicting) -> Said:
    for_whom = f" for {teller.named(event.for_run)}" if event.for_run else ""
    idle = "nobody used it" if not event.leases else f"{event.leases} leases had to end first"
    why = _WHY_IT_GOES.get(event.reason, event.reason)
    passed = [f"{teller.named(run)} was passed over: {reason}" for run, reason in event.skipped]
    order = f"order, least recently used first: {teller.names(event.order)}"
    return Said(
        f"{teller.named(event.run)} was chosen to go, {why}{for_whom}; {idle}", (order, *passed)
    )


def _draining(teller: Teller, event: ev.RunDraining) -> Said:
    why = _WHY_IT_GOES.get(event.reason, event.reason)
    rest = f"; {event.leases} leases had to end first" if event.leases else ""
    details = (event.error,) if event.error else ()
    return Said(f"{teller.named(event.run)} was to go, {why}{rest}", details)


def _reopened(teller: Teller, event: ev.RunReopened) -> Said:
    return Said(f"{teller.named(event.run)} was to stay after all: {event.reason}")


def _stopping(teller: Teller, event: ev.RunStopping) -> Said:
    why = _WHY_IT_GOES.get(event.reason, event.reason)
    at = f" at {event.stage}" if event.stage else ""
    details = (event.error,) if event.error else ()
    return Said(f"{teller.named(event.run)} was told to stop{at}, {why}", details)


def _exited(teller: Teller, event: ev.RunExited) -> Said:
    how = "how is not known"
    if event.signal is not None:
        how = f"killed by signal {event.signal}"
    elif event.code is not None:
        how = f"with status {event.code}"
    if event.wanted:
        return Said(f"its leader {event.pid} ended, {how}")
    return Said(
        f"its leader {event.pid} ended, {how}, and nobody had asked it to",
        (*((event.error,) if event.error else ()), *_tail(event.log_tail)),
    )


def _swept(teller: Teller, event: ev.RunSwept) -> Said:
    rest = f"; {len(event.pids)} more processes had to be killed" if event.pids else ""
    peak = f", peak memory {size(event.peak_bytes)}" if event.peak_bytes is not None else ""
    return Said(
        f"nothing of it was left after {seconds(event.seconds)}{rest}{peak}",
        (f"killed: {', '.join(map(str, event.pids))}",) if event.pids else (),
    )


def _stop_failed(teller: Teller, event: ev.RunStopFailed) -> Said:
    pids = ", ".join(map(str, event.pids)) or "unknown"
    return Said(
        f"{teller.named(event.run)} could not be stopped (pids {pids}): its port and room stay "
        "taken until it ends",
        (event.error,),
    )


def _released(teller: Teller, event: ev.RunReleased) -> Said:
    ready = f", of which {seconds(event.ready_s)} ready" if event.ready_s else ""
    details = (event.error,) if event.error else ()
    return Said(
        f"{teller.named(event.run)} gave port {event.port} back after {seconds(event.seconds)}"
        f"{ready}: {_outcome(event.outcome)}",
        details,
    )


def _adopted(teller: Teller, event: ev.RunAdopted) -> Said:
    return Said(
        f"{teller.named(event.run)} had survived its owner and was taken over as {event.state}, "
        f"pid {event.pid}"
    )


def _reaped(teller: Teller, event: ev.ProcessReaped) -> Said:
    return Said(
        f"process {event.pid}, left over from {teller.named(event.run)}, was killed: "
        f"{event.reason}",
        (event.command,),
    )


def _blocked(teller: Teller, event: ev.PortBlocked) -> Said:
    who = f"process {event.pid}" if event.pid else "a process that cannot be seen"
    details = (event.command,) if event.command else ()
    return Said(f"{who}, a stranger, listened on port {event.port}: another was tried", details)


def _usage(teller: Teller, event: ev.UsageNoted) -> Said:
    leases = tuple(f"{teller.named(run)}: {granted} leases" for run, granted in event.leases)
    return Said(f"order of use, oldest first: {teller.names(event.order) or 'nobody'}", leases)


_SAY: dict[type[ev.Event], Callable[[Teller, Any], Said]] = {
    ev.LogCreated: _created,
    ev.LogContinued: _continued,
    ev.ServiceOpened: _opened,
    ev.ServiceClosed: _closed,
    ev.LimitsSet: _limits_set,
    ev.ModelDefined: _defined,
    ev.ModelRemoved: _plain("was removed"),
    ev.ModelPinned: _plain("was pinned"),
    ev.ModelUnpinned: _plain("was unpinned"),
    ev.ModelHeld: _held,
    ev.ModelBackoff: _backoff,
    ev.ModelFailed: _failed,
    ev.ModelReset: _reset,
    ev.RunFetching: _fetching,
    ev.FetchNoted: _fetch_noted,
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
    ev.ProcessReaped: _reaped,
    ev.PortBlocked: _blocked,
    ev.UsageNoted: _usage,
}
