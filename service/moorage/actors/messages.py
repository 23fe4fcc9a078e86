"""What registry and model actors tell one another. Keyed by run, never by name alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moorage.actors.tickets import Ticket
from moorage.core.events import LogCreated, ServiceOpened
from moorage.core.pace import Fetching
from moorage.protocols import (
    ExitStatus,
    Fetched,
    FoundProcess,
    Identity,
    LaunchPlan,
    Readiness,
    RunProcess,
    StopReport,
    StopSignal,
)
from moorage.spec import ModelSpec

# --- callers to the registry ---


@dataclass(frozen=True, slots=True)
class Open:
    """Open the service on a replayed state: limits, models, then what earlier runs left."""

    ticket: Ticket[None]
    opened: ServiceOpened
    created: LogCreated
    strays: tuple[FoundProcess, ...]
    survivors: frozenset[int]
    """Open runs whose leader lives."""


@dataclass(frozen=True, slots=True)
class Want:
    """Lease or start the models the ticket names."""

    ticket: Ticket[Any]


@dataclass(frozen=True, slots=True)
class Left:
    """The caller of this ticket waits no more."""

    ticket: Ticket[Any]


@dataclass(frozen=True, slots=True)
class Define:
    """Define models; with `whole` every other model is removed."""

    ticket: Ticket[None]
    specs: tuple[tuple[ModelSpec, str], ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a model once its leases have ended."""

    ticket: Ticket[None]
    name: str
    force: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a model's run."""

    ticket: Ticket[None]
    name: str
    force: bool
    hold: bool


@dataclass(frozen=True, slots=True)
class Pin:
    """Pin or unpin."""

    ticket: Ticket[None]
    name: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget hold, backoff and failure."""

    ticket: Ticket[None]
    name: str


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Change the limits; None leaves one as it is, `memory_limit` uses `...` for that."""

    ticket: Ticket[None]
    max_loaded: int | None
    memory_limit: Any
    min_residency_s: float | None


@dataclass(frozen=True, slots=True)
class Archive:
    """Begin a new segment of the log; granted the path of the one before."""

    ticket: Ticket[str]
    program: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the service."""

    ticket: Ticket[tuple[str, ...]]
    keep: bool
    force_at: float
    """Monotonic time at which leases are waited for no more."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """The last lease of a closed gate left. A hint: the registry looks again."""

    run: int


@dataclass(frozen=True, slots=True)
class Wake:
    """The alarm rang."""


@dataclass(frozen=True, slots=True)
class ActorDied:
    """A model actor ended on an exception."""

    model: str
    reason: str


# --- the registry to a model actor ---


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring the files."""

    run: int
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build the command line."""

    run: int
    spec: ModelSpec
    path: str | None
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Spawn: the intent is durable."""

    run: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Watch a survivor and wait until it answers, for at most `timeout_s`.

    `unknown_secrets`: it was launched with some, and `spec` has none of their values.
    """

    run: int
    spec: ModelSpec
    path: str | None
    process: RunProcess
    log_file: str
    timeout_s: float
    unknown_secrets: bool = False


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop what there is of a run. `signals` None: as its plan says."""

    run: int
    spec: ModelSpec
    process: RunProcess
    signals: tuple[StopSignal, ...] | None
    hurry: bool


@dataclass(frozen=True, slots=True)
class Forget:
    """The run has ended."""

    run: int


# --- a model actor, from its workers, to the registry ---


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """Bytes are coming."""

    run: int
    fetching: Fetching


@dataclass(frozen=True, slots=True)
class FetchDone:
    """Files are here, or the problem."""

    run: int
    fetched: Fetched | None
    problem: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PrepareDone:
    """The plan, or the problem. `argv` is masked, as the log shows it."""

    run: int
    plan: LaunchPlan | None
    argv: tuple[str, ...] = ()
    log_file: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LaunchDone:
    """The leader, or the problem."""

    run: int
    identity: Identity | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReadyDone:
    """How waiting for readiness ended."""

    run: int
    readiness: Readiness


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """A ready run did not answer, several times in a row."""

    run: int
    problem: str


@dataclass(frozen=True, slots=True)
class ExitSeen:
    """The leader ended."""

    run: int
    status: ExitStatus
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopDone:
    """What a stop left, or the problem."""

    run: int
    report: StopReport | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reaped:
    """A stray process of this log was killed, or outlived it."""

    found: FoundProcess
    gone: bool

    @property
    def run(self) -> int:
        """The run its token names."""
        return self.found.run


FromModel = (
    FetchProgress
    | FetchDone
    | PrepareDone
    | LaunchDone
    | ReadyDone
    | Unhealthy
    | ExitSeen
    | StopDone
    | Reaped
)
Order = Fetch | Prepare | Launch | Adopt | StopRun
ToModel = Order | Forget
FromCaller = Open | Want | Left | Define | Remove | Stop | Pin | Reset | SetLimits | Archive | Close
ToRegistry = FromCaller | FromModel | Emptied | Wake | ActorDied
