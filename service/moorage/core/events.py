"""What can happen, in the past tense. One frozen dataclass a kind; `kind` is what the log says.

Fields called `model`, `run`, `port` and `pid` have columns of their own in the log; all others
are its JSON `data`. Sequences are tuples, mappings are plain dicts of JSON values. `*_s` are
seconds, `*_bytes` bytes, `until` is UTC text like an entry's `at`. Without slots, for
`codec.decode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1


class Entry(NamedTuple):
    """An event with its place: `seq` counts from 1, `at` is UTC text to the microsecond.

    `cause` is the seq of the entry that led to this one.
    """

    seq: int
    at: str
    cause: int | None
    event: Event


# --- log and service ---


@dataclass(frozen=True, kw_only=True)
class LogCreated(Event):
    """The first entry of a log."""

    kind: ClassVar[str] = "log.created"
    log_id: str
    program: str


@dataclass(frozen=True, kw_only=True)
class LogContinued(Event):
    """First entry of a later segment: all that the earlier ones add up to.

    `base` is the state by `snapshot.state_to_data`, as `fold_version` folded it; `base_hash` is
    the hash of the row before this one. Unlike a snapshot, `base` is all that is known when the
    earlier segments are not at hand: another shape needs a new version of this event.
    """

    kind: ClassVar[str] = "log.continued"
    log_id: str
    program: str
    segment: int
    base: dict[str, Any]
    base_hash: str
    next_run: int
    fold_version: int = 1


@dataclass(frozen=True, kw_only=True)
class ServiceOpened(Event):
    """`ports` are inclusive ranges."""

    kind: ClassVar[str] = "service.opened"
    program: str
    host: str
    boot_id: str
    pid: int
    ports: tuple[tuple[int, int], ...]
    max_loaded: int
    memory_limit: int | None
    min_residency_s: float


@dataclass(frozen=True, kw_only=True)
class ServiceClosed(Event):
    """The owner closed; `kept` runs go on without it."""

    kind: ClassVar[str] = "service.closed"
    reason: str
    kept: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LimitsSet(Event):
    """The limits from here on."""

    kind: ClassVar[str] = "limits.set"
    max_loaded: int
    memory_limit: int | None
    min_residency_s: float


# --- models ---


@dataclass(frozen=True, kw_only=True)
class ModelDefined(Event):
    """`spec` is `ModelSpec.to_data()`; `secrets_hash` is keyed, empty without secrets."""

    kind: ClassVar[str] = "model.defined"
    model: str
    spec: dict[str, Any]
    spec_hash: str
    secrets_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelRemoved(Event):
    """A model and its names are gone."""

    kind: ClassVar[str] = "model.removed"
    model: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ModelPinned(Event):
    """Never a victim of eviction from here on."""

    kind: ClassVar[str] = "model.pinned"
    model: str


@dataclass(frozen=True, kw_only=True)
class ModelUnpinned(Event):
    """May be evicted again."""

    kind: ClassVar[str] = "model.unpinned"
    model: str


@dataclass(frozen=True, kw_only=True)
class ModelHeld(Event):
    """Stopped on purpose; leases are refused until it is started or reset."""

    kind: ClassVar[str] = "model.held"
    model: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ModelBackoff(Event):
    """Attempt number `attempts` failed; leases get `error` until `until`.

    `reason` is a fetch's, as in RunAbandoned.
    """

    kind: ClassVar[str] = "model.backoff"
    model: str
    run: int
    attempts: int
    until: str
    stage: str
    error: str
    code: int | None = None
    signal: int | None = None
    log_tail: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelFailed(Event):
    """The crash budget is spent. `reason` as in ModelBackoff."""

    kind: ClassVar[str] = "model.failed"
    model: str
    run: int
    attempts: int
    stage: str
    error: str
    code: int | None = None
    signal: int | None = None
    log_tail: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelReset(Event):
    """Hold, backoff, failure and the count of attempts are forgotten."""

    kind: ClassVar[str] = "model.reset"
    model: str
    reason: str


# --- runs: before anything scarce is held ---


@dataclass(frozen=True, kw_only=True)
class RunFetching(Event):
    """A run began; its files come first."""

    kind: ClassVar[str] = "run.fetching"
    model: str
    run: int
    requested_by: str
    repo: str
    file: str | None = None
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class FetchNoted(Event):
    """A long fetch has come so far; noted at most ten times a run. It moves no run."""

    kind: ClassVar[str] = "fetch.noted"
    model: str
    run: int
    done_bytes: int
    total_bytes: int
    bytes_per_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunFetched(Event):
    """`files` are (name, bytes, hash) of what was fetched or found in the cache."""

    kind: ClassVar[str] = "run.fetched"
    model: str
    run: int
    path: str
    commit: str
    files: tuple[tuple[str, int, str], ...]
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunQueued(Event):
    """`place` counts from 1."""

    kind: ClassVar[str] = "run.queued"
    model: str
    run: int
    requested_by: str
    place: int


@dataclass(frozen=True, kw_only=True)
class RunAbandoned(Event):
    """Ended without ever having reserved. `outcome` as in RunReleased, or `refused`.

    `reason` says for programs why a fetch failed, see `protocols.FetchReason`.
    """

    kind: ClassVar[str] = "run.abandoned"
    model: str
    run: int
    outcome: str
    error: str = ""
    reason: str = ""


# --- runs: holding port and room ---


@dataclass(frozen=True, kw_only=True)
class RunReserved(Event):
    """`displaced` are the runs that were evicted for this one."""

    kind: ClassVar[str] = "run.reserved"
    model: str
    run: int
    port: int
    more_ports: tuple[int, ...] = ()
    room_bytes: int | None = None
    displaced: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunLaunching(Event):
    """Durable before the spawn: with the nonce, what it leaves behind can be found."""

    kind: ClassVar[str] = "run.launching"
    model: str
    run: int
    port: int
    argv: tuple[str, ...]
    nonce: str
    log_file: str


@dataclass(frozen=True, kw_only=True)
class RunLaunched(Event):
    """The leader was spawned; pid, start ticks and boot id tell it from any other."""

    kind: ClassVar[str] = "run.launched"
    model: str
    run: int
    port: int
    pid: int
    group: int
    session: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, kw_only=True)
class RunReady(Event):
    """`seconds` since the reservation, `load_s` since the spawn; `leases` granted in this step."""

    kind: ClassVar[str] = "run.ready"
    model: str
    run: int
    port: int
    pid: int | None
    seconds: float
    load_s: float
    leases: int
    owner_check: bool


@dataclass(frozen=True, kw_only=True)
class RunEvicting(Event):
    """Chosen as victim. `reason` is `room`, `memory`, `idle` or `limits`.

    `leases` held when its gate closed (0: it stops in this same decision), `order` the LRU order
    the decision saw, oldest first, `skipped` the runs passed over with the reason.
    """

    kind: ClassVar[str] = "run.evicting"
    model: str
    run: int
    reason: str
    for_run: int | None
    for_model: str | None
    leases: int
    order: tuple[int, ...]
    skipped: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class RunDraining(Event):
    """`reason` is `operator`, `reload`, `remove`, `close` or `unhealthy` (`error` says how)."""

    kind: ClassVar[str] = "run.draining"
    model: str
    run: int
    reason: str
    leases: int
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReopened(Event):
    """The reason of a drain is gone: ready again, at its old place in the LRU order."""

    kind: ClassVar[str] = "run.reopened"
    model: str
    run: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunStopping(Event):
    """`reason` as in the drain, or `cancelled`, `failed`, `exited`, `forced`, `recovery`."""

    kind: ClassVar[str] = "run.stopping"
    model: str
    run: int
    reason: str
    stop_timeout_s: float
    stage: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunExited(Event):
    """The leader is gone; `code` and `signal` are both None when the kernel did not tell.

    `stage` is where an exit nobody wanted broke the run (`load`, `port`, `exit`), else empty.
    """

    kind: ClassVar[str] = "run.exited"
    model: str
    run: int
    pid: int | None
    code: int | None
    signal: int | None
    wanted: bool
    stage: str = ""
    error: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunSwept(Event):
    """The tree is empty and the ports are closed; `pids` had to be killed beyond the leader."""

    kind: ClassVar[str] = "run.swept"
    model: str
    run: int
    pids: tuple[int, ...]
    seconds: float
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunStopFailed(Event):
    """Something outlived SIGKILL: port and room stay taken until it exits."""

    kind: ClassVar[str] = "run.stop_failed"
    model: str
    run: int
    pids: tuple[int, ...]
    error: str


@dataclass(frozen=True, kw_only=True)
class RunReleased(Event):
    """Port and room are free again. `outcome` is `ok`, `failed: STAGE`, `cancelled` or `lost`."""

    kind: ClassVar[str] = "run.released"
    model: str
    run: int
    port: int
    outcome: str
    error: str = ""
    code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    ready_s: float = 0.0
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunAdopted(Event):
    """A survivor of an earlier owner; `state` is what it is adopted as, until it answers."""

    kind: ClassVar[str] = "run.adopted"
    model: str
    run: int
    port: int
    pid: int
    state: str


@dataclass(frozen=True, kw_only=True)
class ProcessReaped(Event):
    """A process with our log's token that belongs to no open run was killed."""

    kind: ClassVar[str] = "process.reaped"
    run: int
    pid: int
    command: str
    reason: str


# --- the world and the callers ---


@dataclass(frozen=True, kw_only=True)
class PortBlocked(Event):
    """A stranger listens on a port of the pool; `pid` and `command` where they can be seen."""

    kind: ClassVar[str] = "port.blocked"
    port: int
    pid: int | None
    command: str
    run: int | None = None


@dataclass(frozen=True, kw_only=True)
class UsageNoted(Event):
    """`order` of ready runs, least recently used first; `leases` granted since the last note."""

    kind: ClassVar[str] = "usage.noted"
    order: tuple[int, ...]
    leases: tuple[tuple[int, int], ...]


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        LogCreated,
        LogContinued,
        ServiceOpened,
        ServiceClosed,
        LimitsSet,
        ModelDefined,
        ModelRemoved,
        ModelPinned,
        ModelUnpinned,
        ModelHeld,
        ModelBackoff,
        ModelFailed,
        ModelReset,
        RunFetching,
        FetchNoted,
        RunFetched,
        RunQueued,
        RunAbandoned,
        RunReserved,
        RunLaunching,
        RunLaunched,
        RunReady,
        RunEvicting,
        RunDraining,
        RunReopened,
        RunStopping,
        RunExited,
        RunSwept,
        RunStopFailed,
        RunReleased,
        RunAdopted,
        ProcessReaped,
        PortBlocked,
        UsageNoted,
    )
}
