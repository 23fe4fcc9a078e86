"""The audit: what the log says against what the world shows. Changes neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moorage.core.invariants import over_limits, violations
from moorage.core.lifecycle import Stage
from moorage.core.state import Run, State

Kind = Literal[
    "stray-process",
    "dead-run",
    "stranger-on-port",
    "over-limits",
    "broken-invariant",
    "broken-chain",
    "quarantine",
]
SPAWNED = frozenset({Stage.LOADING, Stage.READY, Stage.DRAINING})
"""Stages in which the leader is meant to live."""


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
    that holds the port; `chain` are (seq, problem) of rows that `verify` refuses.
    """

    living: frozenset[int]
    processes: tuple[Seen, ...]
    strangers: Mapping[int, tuple[int | None, str]]
    chain: tuple[tuple[int, str], ...] = ()


def audit(state: State, world: WorldView) -> tuple[Finding, ...]:
    """Return all findings; () when log and world agree."""
    return (
        *_chain(world),
        *_invariants(state),
        *(finding for run in state.runs.values() for finding in _run(run, world)),
        *_strays(state, world),
        *_strangers(state, world),
    )


def _chain(world: WorldView) -> Iterator[Finding]:
    for seq, problem in world.chain:
        yield Finding(kind="broken-chain", problem=f"row {seq}: {problem}", events=(seq,))


def _invariants(state: State) -> Iterator[Finding]:
    for problem in violations(state):
        yield Finding(kind="broken-invariant", problem=problem, events=(state.seq,))
    if over_limits(state):
        loaded = len(tuple(state.holding()))
        yield Finding(
            kind="over-limits",
            problem=f"{loaded} runs hold room, the limits allow less ({state.max_loaded} runs)",
            fix="the owner evicts the least recently used by itself once leases end",
        )


def _run(run: Run, world: WorldView) -> Iterator[Finding]:
    about: dict[str, Any] = {
        "model": run.model,
        "run": run.run,
        "port": run.port,
        "pid": run.pid,
        "since": run.ready_at or run.launched_at or run.reserved_at,
        "events": (run.first_seq, run.last_seq),
    }
    if run.stage is Stage.STOP_FAILED:
        yield Finding(
            kind="quarantine",
            problem=f"run {run.run} of {run.model} could not be stopped: {run.error}",
            fix="the stop is tried again by itself; end its processes by hand to free the port",
            **about,
        )
    elif run.stage in SPAWNED and run.run not in world.living:
        ports = ", ".join(map(str, run.ports))
        yield Finding(
            kind="dead-run",
            problem=(
                f"run {run.run} of {run.model} is {run.stage} in the log but its process "
                f"{run.pid} is gone; it holds port {ports}"
            ),
            fix="the rest of its tree is swept and its port and room are released",
            **about,
        )


def _strays(state: State, world: WorldView) -> Iterator[Finding]:
    for seen in world.processes:
        run = state.runs.get(seen.run)
        if run is not None and run.nonce == seen.nonce:
            continue
        yield Finding(
            kind="stray-process",
            problem=f"process {seen.pid} ({seen.command}) belongs to run {seen.run}, "
            "which is not open",
            fix="it is killed",
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
