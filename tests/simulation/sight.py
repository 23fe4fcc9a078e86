"""What the simulation shows its judge after every step: plain data, nothing of the core's.

The engine fills it from the outside: the rows that are durable, the world that it plays itself,
and what its callers were told. Times are the simulation's monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ORIGIN = "2026-01-01T00:00:00.000000Z"
"""The time of a row at which `now` is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow:
    """A durable row of the log, `data` decoded from its JSON."""

    seq: int
    at: str
    kind: str
    model: str | None
    run: int | None
    port: int | None
    pid: int | None
    cause: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenServer:
    """A process tree of the world, ours when `token` is one of this log; true, logged or not."""

    model: str
    run: int
    token: str
    leader: int
    leader_alive: bool
    others: tuple[int, ...]
    """Pids of its tree that live, without the leader."""
    ports: tuple[int, ...]
    """Ports it was given; it keeps them as long as anything of its tree lives."""
    memory_bytes: int
    answers: bool = True
    """False while it would not answer a question for its health."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLease:
    """A lease that a caller holds and did not release."""

    caller: int
    model: str
    run: int
    port: int
    lost: bool
    owner: int = 0
    """The opening that granted it; a later one knows nothing of it. 0: the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call that was not answered yet. `deadline` is when its caller gives up at the latest."""

    caller: int
    verb: str
    """lease, lease_all, start, stop, remove, define, pin, unpin, reset, set_limits, archive,
    close, open."""
    names: tuple[str, ...]
    asked_at: float
    deadline: float
    heard: bool = False
    """True once the registry has handled the message of this call."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else was asked: hold, force, keep, limits, and for define the spec's data by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAnswer:
    """What one call came to in this step. `error` is the class name of what it raised, or ""."""

    caller: int
    verb: str
    names: tuple[str, ...]
    asked_at: float
    answered_at: float
    error: str
    leases: tuple[SeenLease, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As in its call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything after one step. Sequences of rows and answers hold what is new since the last."""

    step: int
    what: str
    """What the scheduler did, for messages."""
    now: float
    owner: int
    """Counts openings: it changes when a crashed or closed service was opened again."""
    open: bool
    """False between a crash or close and the answer of the next open."""
    rows: Sequence[SeenRow] = ()
    answers: Sequence[SeenAnswer] = ()
    servers: Sequence[SeenServer] = ()
    strangers: Mapping[int, int] = field(default_factory=dict[int, int])
    """Ports that somebody else listens on, with his pid."""
    signalled: Sequence[int] = ()
    """Pids that the service signalled in this step."""
    leases: Sequence[SeenLease] = ()
    calls: Sequence[SeenCall] = ()
    published: Mapping[str, Any] | None = None
    """The live state as `snapshot.state_to_data` gives it; None while nobody has the log open."""
    unwritten: int = 0
    """Entries folded but not durable yet: `published` is ahead of the rows by so many."""
    log_works: bool = True
    """False while appends fail (full, locked)."""
    calm: bool = False
    """No fault is pending and none will come: liveness must hold from here on."""
    dead: bool = False
    """True from when the registry stopped on an error until the next open: it grants no more."""
    lingering: Sequence[int] = ()
    """Runs with leases that a caller has lost and the collector has not found yet."""
    max_waiting: int = 1000
    """How many may wait at once."""
    end: bool = False
    """The last sight of a history: calm, closed, no lease held, nothing asked."""
