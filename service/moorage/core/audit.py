"""The audit: what the log says against what the world shows. Changes neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moorage.core.invariants import over_limits, violations
from moorage.core.lifecycle import Stage
from moorage.core.state import Run, State
from moorage.core.story import Look

Kind = Literal[
    "stray-process",
    "dead-run",
    "dead-owner",
    "ownerless-run",
    "stranger-on-port",
    "over-limits",
    "broken-invariant",
    "broken-chain",
    "cut-log",
    "quarantine",
]
SPAWNED = frozenset({Stage.LOADING, Stage.READY, Stage.DRAINING})
"""Stages in which the leader is meant to live."""
_GO_ON = frozenset({Stage.LOADING, Stage.READY, Stage.STOP_FAILED})
"""Stages in which a run needs no owner, or is a finding of its own."""
_ENDED_BY_FIX = {
    Stage.FETCHING: "it is abandoned",
    Stage.QUEUED: "it is abandoned",
    Stage.RESERVED: "its port and room are released",
    Stage.DRAINING: "it is ready again, or its stop goes on where that was asked for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be.

    `since` is the UTC text of the entry it dates from, `events` the entries that say so, `fix`
    what a fix would do, empty when a person has to.
    """

    kind: Kind
    problem: str
    fix: str = ""
    model: str | None = None
    run: int | None = None
    port: int | None = None
    pid: int | None = None
    since: str = ""
    events: tuple[int, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that carries a token of the log."""

    pid: int
    run: int
    nonce: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldView:
    """What was seen of the world: live leaders by run, processes with a token, and strangers.

    `strangers` maps ports of the pool to (pid, command) of listeners that are not of the run
    that holds the port; `protected` are the pids that a fix never signals, as it runs in them;
    `owned` tells whether somebody owns the log just now.
    """

    living: frozenset[int]
    processes: tuple[Seen, ...]
    strangers: Mapping[int, tuple[int | None, str]]
    protected: frozenset[int] = frozenset()
    owned: bool = True


def audit(
    state: State,
    world: WorldView | None,
    *,
    chain: Sequence[tuple[int, str]] = (),
    cuts: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """Return all findings; () when log and world agree.

    Without a world only the log is held against itself. `chain` are (seq, problem) of rows that
    `verify` refuses, `cuts` the times at which the log was found cut.
    """
    of_the_log = (*_chain(chain), *_cuts(cuts), *_invariants(state))
    if world is None:
        return (*of_the_log, *_quarantine(state))
    return (
        *of_the_log,
        *_owner(state, world),
        *_quarantine(state),
        *(finding for run in state.runs.values() for finding in _run(run, world)),
        *_strays(state, world),
        *_strangers(state, world),
    )


def dated(findings: Sequence[Finding], look: Look) -> tuple[Finding, ...]:
    """Return findings about runs that have ended with when and by which entries they did."""
    return tuple(_dated(finding, look) for finding in findings)


def _dated(finding: Finding, look: Look) -> Finding:
    entries = look.run(finding.run) if finding.run is not None and not finding.events else ()
    if not entries:
        return finding
    first, last = entries[0], entries[-1]
    return dataclasses.replace(finding, since=last.at, events=(first.seq, last.seq))


def _chain(chain: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    for seq, problem in chain:
        yield Finding(kind="broken-chain", problem=f"row {seq} {problem}", events=(seq,))


def _cuts(cuts: Sequence[str]) -> Iterator[Finding]:
    for cut in cuts:
        at, _, rest = cut.partition(" ")
        yield Finding(
            kind="cut-log",
            problem=f"the log was found cut, or replaced by an older copy: {rest}",
            since=at,
        )


def _invariants(state: State) -> Iterator[Finding]:
    here: dict[str, Any] = {"since": state.at, "events": (state.seq,) if state.seq else ()}
    for problem in violations(state):
        yield Finding(kind="broken-invariant", problem=problem, **here)
    if over_limits(state):
        loaded = len(tuple(state.holding()))
        yield Finding(
            kind="over-limits",
            problem=f"{loaded} runs hold room, the limits allow less ({state.max_loaded} runs)",
            fix="the owner evicts the least recently used by itself once leases end",
            **here,
        )


def _owner(state: State, world: WorldView) -> Iterator[Finding]:
    if state.open and not world.owned:
        living = len(world.living)
        yield Finding(
            kind="dead-owner",
            problem=f"the owner, {state.owner}, is gone without having closed the log",
            fix=f"the log is closed; the {living} servers that live go on",
            since=state.at,
            events=(state.seq,),
        )


def _about(run: Run) -> dict[str, Any]:
    return {
        "model": run.model,
        "run": run.run,
        "port": run.port,
        "pid": run.pid,
        "since": run.ready_at or run.launched_at or run.reserved_at or run.began_at,
        "events": (run.first_seq, run.last_seq),
    }


def _quarantine(state: State) -> Iterator[Finding]:
    for run in state.in_stage(Stage.STOP_FAILED):
        pids = ", ".join(map(str, run.left_pids)) or "unknown"
        yield Finding(
            kind="quarantine",
            problem=f"run {run.run} of {run.model} could not be stopped: {run.error} (pids {pids})",
            fix="the stop is tried again; end its processes by hand to free the port",
            **_about(run),
        )


def _run(run: Run, world: WorldView) -> Iterator[Finding]:
    holds = f"; it holds port {', '.join(map(str, run.ports))}" if run.ports else ""
    if run.stage in SPAWNED and run.run not in world.living:
        yield Finding(
            kind="dead-run",
            problem=(
                f"run {run.run} of {run.model} is {run.stage} in the log but its process "
                f"{run.pid} is gone{holds}"
            ),
            fix="the rest of its tree is swept and its port and room are released",
            **_about(run),
        )
    elif not world.owned and run.stage not in _GO_ON:
        processes = [str(seen.pid) for seen in world.processes if seen.run == run.run]
        lives = (
            f"processes {', '.join(processes)} of it live" if processes else "nothing of it lives"
        )
        yield Finding(
            kind="ownerless-run",
            problem=(
                f"run {run.run} of {run.model} was {run.stage} when its owner ended, {lives}{holds}"
            ),
            fix=_ENDED_BY_FIX.get(run.stage, "it is swept, and its port and room are released"),
            **_about(run),
        )


def _strays(state: State, world: WorldView) -> Iterator[Finding]:
    for seen in world.processes:
        run = state.runs.get(seen.run)
        if run is not None and run.nonce == seen.nonce:
            continue
        which = "which is not open" if run is None else "but not to the attempt that the log knows"
        spared = seen.pid in world.protected
        yield Finding(
            kind="stray-process",
            problem=f"process {seen.pid} ({seen.command}) belongs to run {seen.run}, {which}",
            fix="it is left alone, as this very command runs in it" if spared else "it is killed",
            run=seen.run,
            pid=seen.pid,
        )


def _strangers(state: State, world: WorldView) -> Iterator[Finding]:
    for port, (pid, command) in sorted(world.strangers.items()):
        run = state.runs.get(state.held.get(port, 0))
        who = f"{command or 'a process'} (pid {pid})" if pid else "a process that cannot be seen"
        held = f", which run {run.run} of {run.model} holds" if run else ""
        yield Finding(
            kind="stranger-on-port",
            problem=f"{who} listens on port {port} of the pool{held}",
            model=run.model if run else None,
            run=run.run if run else None,
            port=port,
            pid=pid,
            since=run.reserved_at if run else "",
            events=(run.last_seq,) if run else (),
        )
