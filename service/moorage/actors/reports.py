"""What model actors and gates tell the registry."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from moorage.actors import answers, effects
from moorage.actors import messages as msg
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.draft import Draft
from moorage.core.lifecycle import Stage
from moorage.core.space import FOR_ROOM
from moorage.errors import LogUnavailableError
from moorage.protocols import StopReport
from moorage.world.view import process_of

if TYPE_CHECKING:
    from moorage.actors.registry import Fact, Registry, UsageMap

_log = logging.getLogger(__name__)

LONG_FETCH_S = 10.0
"""The log is told how far a fetch is when it takes longer than this."""
PORT_TRIES = 3
"""Runs a request may lose to strangers on their ports."""

SERVING = (Stage.READY, Stage.DRAINING)

Report = msg.FromModel | msg.Emptied | msg.ActorDied


def hear(registry: Registry, message: Report) -> None:
    """Take in a report. About a run that has moved on it changes nothing."""
    if isinstance(message, msg.ActorDied):
        _actor_died(registry, message)
        return
    if isinstance(message, msg.Reaped):
        _reaped(registry, message)
        return
    if message.run not in registry.state.runs:
        registry.volatile.stale += 1
        return
    match message:
        case msg.FetchProgress():
            _fetching(registry, message)
        case msg.FetchDone():
            _fetched(registry, message)
        case msg.PrepareDone():
            _prepared(registry, message)
        case msg.LaunchDone():
            _launched(registry, message)
        case msg.ReadyDone():
            _readiness(registry, message)
        case msg.Unhealthy():
            _unhealthy(registry, message.run, message.problem)
        case msg.ExitSeen():
            _exited(registry, message)
        case msg.StopDone():
            _stopped(registry, message)
        case msg.Emptied():
            emptied(registry, message.run)


def _fetching(registry: Registry, message: msg.FetchProgress) -> None:
    """Keep how far a fetch is; of a long one the log is told now and then."""
    volatile, seen, run = registry.volatile, message.fetching, message.run
    volatile.fetching[run] = seen
    known = volatile.fetch_steps.setdefault(run, seen.step)
    began = volatile.stages[run][1]
    if seen.step <= known or registry.clock.monotonic() - began < LONG_FETCH_S:
        return
    if registry.ledger.unwritable is None:  # what waits for a disk must not grow with time
        volatile.fetch_steps[run] = seen.step
        registry.settle(lambda draft, _: decide.fetch_noted(draft, run, seen), must=False)


def _fetched(registry: Registry, message: msg.FetchDone) -> None:
    got = message.fetched
    if got is None:
        registry.settle(
            lambda draft, _: decide.fetch_failed(
                draft, message.run, message.problem, message.reason
            ),
            must=False,
        )
        return
    registry.settle(
        lambda draft, _: decide.fetched(
            draft,
            message.run,
            path=got.path,
            commit=got.commit,
            files=got.files,
            fetched_bytes=got.fetched_bytes,
        ),
        must=False,
    )


def _prepared(registry: Registry, message: msg.PrepareDone) -> None:
    stage, problem = "prepare", message.problem
    if problem == effects.NEEDS_SECRETS:
        stage = "secrets"
    if message.plan is not None:
        nonce = registry.new_nonce()
        try:
            registry.settle(
                lambda draft, _: decide.prepared(
                    draft, message.run, argv=message.argv, nonce=nonce, log_file=message.log_file
                ),
                must=True,
            )
        except LogUnavailableError as error:
            stage, problem = "log", str(error)
        else:
            return
    registry.settle(
        lambda draft, _: decide.not_spawned(draft, message.run, stage, problem), must=False
    )


def _launched(registry: Registry, message: msg.LaunchDone) -> None:
    found = message.identity
    if found is None:
        registry.settle(
            lambda draft, _: decide.not_spawned(draft, message.run, "launch", message.problem),
            must=False,
        )
        return
    registry.settle(
        lambda draft, _: decide.launched(
            draft,
            message.run,
            pid=found.pid,
            group=found.group,
            session=found.session,
            start_ticks=found.start_ticks,
            boot_id=found.boot_id,
        ),
        must=False,
    )


def _readiness(registry: Registry, message: msg.ReadyDone) -> None:
    readiness = message.readiness
    if readiness.outcome == "cancelled":
        return
    if readiness.outcome == "ready" and registry.hall.has_died(message.run):
        return  # it was: its exit is being told
    if registry.state.runs[message.run].stage in SERVING:
        adopted(registry, message.run, "" if readiness.outcome == "ready" else readiness.detail)
        return
    if readiness.outcome == "ready":
        leases = answers.to_be_granted(registry, message.run)
        registry.settle(lambda draft, _: decide.ready(draft, message.run, leases), must=False)
        return
    stage = "port" if readiness.outcome == "lost" else "ready"
    registry.settle(
        lambda draft, _: decide.not_ready(draft, message.run, stage, readiness.detail), must=False
    )


def adopted(registry: Registry, number: int, problem: str) -> None:
    """A run that serves, but was not launched by its model's actor, answers or does not."""
    registry.hall.prove(number)
    if problem:
        _unhealthy(registry, number, problem)
        return
    registry.hall.settle(registry.state)  # its gate opens
    gate = registry.hall.get(number)
    if gate is not None and not gate.closed:
        answers.grant(registry, gate, registry.desk.take(number))
        answers.grant_joint(registry)
    registry.settle(lambda _draft, _usage: None, must=False)  # after them, else it may be evicted


def _unhealthy(registry: Registry, number: int, problem: str) -> None:
    registry.settle(
        lambda draft, usage: decide.unhealthy(draft, number, problem, leases=_held(usage, number)),
        must=False,
    )


def _held(usage: UsageMap, number: int) -> int:
    seen = usage.get(number)
    return seen.leases if seen else 0


def _exited(registry: Registry, message: msg.ExitSeen) -> None:
    run = registry.state.runs[message.run]
    stranger = ""
    ours = registry.state.models[run.model].spec.owner_check  # else the tree is not what listens
    if ours and run.stage is Stage.LOADING:
        found = registry.ports.lost(process_of(registry.state, run))
        if found is not None:
            who = f"{found.command} (pid {found.pid})" if found.pid else "a stranger"
            stranger = f"{who} listens on port {found.port}"
    _ending(
        registry,
        message.run,
        lambda draft, _: decide.exited(
            draft,
            message.run,
            code=message.status.code,
            signal=message.status.signal,
            log_tail=message.log_tail,
            port_lost=stranger,
        ),
    )


def _stopped(registry: Registry, message: msg.StopDone) -> None:
    report = message.report
    if report is not None and report.clean:
        _ending(
            registry,
            message.run,
            lambda draft, _: decide.swept(
                draft,
                message.run,
                pids=report.swept,
                seconds=report.seconds,
                peak_bytes=report.peak_bytes,
            ),
        )
        return
    pids = () if report is None else (*report.remaining, *report.unproven)
    problem = message.problem if report is None else _what_remains(report)
    if registry.state.runs[message.run].stage is Stage.STOP_FAILED:
        effects.retry_later(registry, message.run)
        return
    registry.settle(
        lambda draft, _: decide.stop_failed(draft, message.run, pids, problem), must=False
    )


def _what_remains(report: StopReport) -> str:
    parts: list[str] = []
    if report.remaining:
        parts.append("processes outlived SIGKILL")
    if report.unproven:
        parts.append("processes may be ours but cannot be proved so")
    if report.ports_open:
        parts.append(f"ports {', '.join(map(str, report.ports_open))} are still open")
    return "; ".join(parts)


def _ending(registry: Registry, number: int, fact: Fact) -> None:
    """Settle a fact that may release a run; one that lost its port gets its waiters a new run."""
    run = registry.state.runs[number]
    tries = registry.volatile.port_tries
    retried: list[int] = []

    def with_retry(draft: Draft, usage: UsageMap) -> None:
        retried.clear()
        fact(draft, usage)
        for entry in tuple(draft.entries):
            event = entry.event
            if not isinstance(event, ev.RunReleased) or event.outcome != "failed: port":
                continue
            wanted = registry.desk.waiting(number) and registry.volatile.closing is None
            model = draft.state.models.get(event.model)  # None: it was removed meanwhile
            free = model is not None and model.run is None
            if wanted and free and tries.get(event.model, 0) < PORT_TRIES - 1:
                again = decide.begin(draft, event.model, run.requested_by, entry.seq)
                retried.append(again.run)
        begin_again(registry, draft)

    def then() -> None:
        if retried:
            tries[run.model] = tries.get(run.model, 0) + 1
        elif number not in registry.state.runs:
            tries.pop(run.model, None)

    registry.settle(with_retry, must=False, then=then)


def begin_again(registry: Registry, draft: Draft) -> None:
    """Begin the next run of what always runs in the decision that ends one as lost.

    Nothing else in the log would say that one is still to come.
    """
    for entry in tuple(draft.entries):
        event = entry.event
        if not isinstance(event, ev.RunReleased | ev.RunAbandoned) or event.outcome != "lost":
            continue
        model = draft.state.models.get(event.model)  # None: it was removed meanwhile
        if model is None or model.run is not None or model.spec.restart != "always":
            continue
        was = registry.state.runs.get(event.run)
        stopped = registry.desk.awaits_end(event.run) or (was and was.reason in decide.LASTING)
        wanted = not stopped and model.status not in ("held", "failed")
        if wanted and registry.volatile.closing is None:
            again = decide.begin(draft, event.model, effects.RESTART, entry.seq)
            registry.volatile.unasked.add(again.run)


def emptied(registry: Registry, number: int) -> None:
    """Look at a draining run again: its last lease may have left."""

    def fact(draft: Draft, usage: UsageMap) -> None:
        run = draft.run(number)
        seen = usage.get(number)
        if run is None or run.stage is not Stage.DRAINING or seen is None or seen.leases:
            return
        if run.reason not in FOR_ROOM:  # those end as a whole, by the pass over the queue
            decide.drained(draft, number)

    registry.settle(fact, must=False)


def _actor_died(registry: Registry, message: msg.ActorDied) -> None:
    """Runs it was driving to readiness have failed; its successor watches those that serve.

    Stops begin again.
    """
    _log.error("the actor of model %s ended: %s", message.model, message.reason)
    for run in tuple(registry.state.runs.values()):
        if run.model != message.model:
            continue
        problem = f"the model's actor ended: {message.reason}"
        if run.stage is Stage.FETCHING:
            hear(registry, msg.FetchDone(run.run, None, problem))
        elif run.stage is Stage.RESERVED:
            hear(registry, msg.PrepareDone(run.run, None, problem=problem))
        elif run.stage in (Stage.LAUNCHING, Stage.LOADING):
            _not_ready(registry, run.run, problem)
        elif run.stage in SERVING:
            effects.order_adoption(registry, run)
        elif run.stage in (Stage.STOPPING, Stage.STOP_FAILED):
            effects.order_again(registry, run)


def _not_ready(registry: Registry, number: int, problem: str) -> None:
    registry.settle(lambda draft, _: decide.not_ready(draft, number, "launch", problem), must=False)


def _reaped(registry: Registry, message: msg.Reaped) -> None:
    found = message.found
    if not message.gone:
        _log.error("stray process %d (%s) could not be killed", found.pid, found.command)
        return
    event = ev.ProcessReaped(
        run=found.run, pid=found.pid, command=found.command, reason="belongs to no open run"
    )
    registry.settle(lambda draft, _: draft.emit(event, registry.volatile.opened), must=False)
