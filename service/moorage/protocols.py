"""The world as the actors see it: small protocols and the plain values that cross them.

The real parts live in `moorage.log`, `moorage.world`, `moorage.backends` and `moorage.hub`; the
fakes in `moorage.testing` pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from moorage.core.events import Entry
from moorage.spec import ModelSpec

LOOPBACK = "127.0.0.1"  # never "localhost": ::1 can be another server


# --- the event log ---


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cached state: `state` is JSON-ready, true at `seq`, folded by `fold_version`."""

    seq: int
    fold_version: int
    state: dict[str, Any]


class EventLog(Protocol):
    """Append-only and durable, a chain of segments. Used by the registry's thread alone."""

    @property
    def log_id(self) -> str:
        """A random id given when the log was created: 16 lower-case hex digits."""
        ...

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        ...

    @property
    def head(self) -> int:
        """The seq of the last durable entry, 0 when there is none."""
        ...

    @property
    def head_hash(self) -> str:
        """The hash of that entry, or what the first one chains to."""
        ...

    @property
    def segment(self) -> int:
        """The number of the live segment, from 1."""
        ...

    def append(self, entries: Sequence[Entry], *, snapshot: Snapshot | None = None) -> None:
        """Write all entries in one durable transaction, or none.

        The first one's seq must be `head + 1` (else RuntimeError: two writers, an invariant
        violation). Raises LogUnavailableError when the disk is full, read-only or locked;
        then nothing was written and the same entries may be appended again.
        """
        ...

    def archive(self, entry: Entry) -> str:
        """Begin a new segment with `entry`, a `log.continued`; return where the one before is.

        Raises StateError, such as while others have the log open, or LogUnavailableError; then
        nothing has changed.
        """
        ...

    def read(self, after: int = 0, *, limit: int | None = None) -> Iterator[Entry]:
        """Yield durable entries with `seq > after` in order; never holds a read open for long.

        Those of older segments may be left out: the live one's first says what they add up to.

        Raises CorruptLogError for a row that cannot be decoded.
        """
        ...

    def tidy(self) -> str:
        """Keep its files short, without waiting for anybody; return what hinders it, else ""."""
        ...

    def snapshot(self, fold_version: int) -> Snapshot | None:
        """Return the newest snapshot that this fold version wrote, None when there is none."""
        ...

    def close(self) -> None:
        """Checkpoint and release the lock. Idempotent."""
        ...


# --- processes ---


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a leader ended; both None when the kernel did not tell."""

    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A leader, told apart from any later process with the same pid."""

    pid: int
    group: int
    session: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What to spawn. `token` is `<log id>:<run>:<nonce>`; `env` is added to what is inherited."""

    model: str
    run: int
    token: str
    argv: tuple[str, ...]
    log_file: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    inherit_env: bool = True
    cwd: str | None = None


class LaunchFailedError(Exception):
    """Nothing was spawned. `problem` says why and what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcess:
    """A run in the world. `identity` is None when only the token is known (crash in the spawn)."""

    run: int
    token: str
    identity: Identity | None
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopSignal:
    """One step of a graceful stop: send `number`, wait up to `wait_s` for the leader to exit."""

    number: int
    target: Literal["leader", "group"]
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What a stop left. Clean when `remaining` is empty and `ports_open` is empty.

    `swept` are the pids beyond the leader that had to be killed; `unproven` those that may be
    ours but cannot be proved so, and were not signalled.
    """

    swept: tuple[int, ...]
    remaining: tuple[int, ...]
    unproven: tuple[int, ...]
    ports_open: tuple[int, ...]
    seconds: float
    peak_bytes: int | None

    @property
    def clean(self) -> bool:
        """True when the tree is empty and the ports are closed."""
        return not (self.remaining or self.unproven or self.ports_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProcess:
    """A live process that carries a token of the log asked for."""

    pid: int
    start_ticks: int
    token: str
    run: int
    nonce: str
    command: str


class Flag(Protocol):
    """What `threading.Event` offers of itself."""

    def is_set(self) -> bool:
        """Tell whether it was set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or the seconds have passed; tell whether it was set."""
        ...


class Processes(Protocol):
    """Every system call about processes is behind this. Methods may block: workers call them."""

    def launch(self, order: LaunchOrder) -> Identity:
        """Make the log folder and file, spawn in a session of its own; return without waiting.

        Raises LaunchFailedError; then nothing was spawned and nothing is left open.
        """
        ...

    def watch(
        self,
        process: RunProcess,
        on_exit: Callable[[ExitStatus], None],
        *,
        log_file: Path | None = None,
    ) -> None:
        """Call `on_exit` once, from the watcher's thread, when the leader has ended.

        For an already ended leader at once. Our own child is reaped. Needs an identity.
        `log_file` is where a server that was not launched here was told to write: it is kept
        bounded from now on.
        """
        ...

    def stop(
        self, process: RunProcess, signals: Sequence[StopSignal], *, kill_wait_s: float, hurry: Flag
    ) -> StopReport:
        """Stop the whole tree and wait until it is empty and its ports are closed.

        Sends the signals one after another while the leader lives, then SIGKILL, then sweeps
        until two scans find nothing, for at most `kill_wait_s` after the SIGKILL. `hurry` set at
        any time skips to SIGKILL. Signals nothing that is not provably ours.
        """
        ...

    def lives(self, process: RunProcess) -> bool:
        """Tell whether the leader lives: same pid, start ticks and boot, and no zombie."""
        ...

    def memory(self, process: RunProcess) -> int | None:
        """Return the peak resident bytes of the tree as far as it can be seen, else None."""
        ...

    def log_tail(self, log_file: Path, *, lines: int = 20) -> tuple[str, ...]:
        """Return the last lines of a run's log file, () when there is none."""
        ...

    def find(self, log_id: str) -> Sequence[FoundProcess]:
        """Return every live process that carries a token of this log."""
        ...

    def boot_id(self) -> str:
        """Return what tells this boot of the machine from others."""
        ...

    def close(self) -> None:
        """End the watcher and the housekeeping of log files. Processes are left alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessOrder:
    """When a run is ready: alive, `health_path` answers 2xx, the listener is of its own tree."""

    process: RunProcess
    port: int
    health_path: str
    timeout_s: float
    owner_check: bool


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ready`; `lost` (a stranger has the port: `detail`); `timeout`; `cancelled`."""

    outcome: Literal["ready", "lost", "timeout", "cancelled"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens on a port, as far as it can be seen."""

    port: int
    pid: int | None
    command: str


class Ports(Protocol):
    """Looks at ports."""

    def stranger(self, port: int) -> Listener | None:
        """Return who keeps us from binding 127.0.0.1:port now, None when it is free. Quick."""
        ...

    def lost(self, process: RunProcess) -> Listener | None:
        """Return who beyond the run's own tree listens on its first port, None for nobody."""
        ...

    def wait_ready(self, order: ReadinessOrder, cancelled: Flag) -> Readiness:
        """Poll from 1 ms on, backing off, until ready, lost, timed out or cancelled.

        Blocks; workers call it. `cancelled` set ends it at once.
        """
        ...


# --- backends and files ---


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a backend makes a launch from. `path` is the local model file or folder."""

    spec: ModelSpec
    path: str | None
    host: str
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How a backend wants its server started, judged and stopped."""

    argv: tuple[str, ...]
    health_path: str
    stop_signals: tuple[StopSignal, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])


class Backend(Protocol):
    """One kind of server. Found by name in the entry-point group `moorage.backends`."""

    name: str

    def check(self, spec: ModelSpec) -> None:
        """Refuse a spec this backend cannot start; looks at files but changes nothing.

        Raises ConfigurationError. Called when a model is defined.
        """
        ...

    def plan(self, request: PlanRequest) -> LaunchPlan:
        """Find the executable and build the command line.

        Raises LaunchFailedError when the executable or the file is missing now.
        """
        ...


class Backends(Protocol):
    """All known backends."""

    def get(self, name: str) -> Backend:
        """Raise ConfigurationError naming the known ones when there is none of that name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A model's files are complete and local. `files` are (name, bytes, hash)."""

    path: str
    commit: str
    files: tuple[tuple[str, int, str], ...]
    fetched_bytes: int


FetchReason = Literal[
    "unknown-repo",
    "private",
    "gated",
    "denied",
    "disabled",
    "unknown-revision",
    "unknown-file",
    "unsafe-name",
    "offline",
    "no-network",
    "untrusted",
    "hub-down",
    "rate-limited",
    "broken-off",
    "too-slow",
    "refused",
    "not-a-hub",
    "wrong-size",
    "wrong-hash",
    "disk-full",
    "not-writable",
    "not-stored",
    "no-thread",
    "",
]


class FetchFailedError(Exception):
    """The files could not be had; `problem` says why and what to do, `reason` is for programs."""

    def __init__(self, problem: str, reason: FetchReason = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.reason: FetchReason = reason


class FetchCancelledError(Exception):
    """`cancelled` was set; part files may stay for the next attempt."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes had and wanted (None: not known yet); `waiting` says for what nothing comes now."""

    done_bytes: int
    total_bytes: int | None
    waiting: str = ""


class Fetcher(Protocol):
    """Brings a spec's repo files to this machine."""

    def fetch(
        self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Flag
    ) -> Fetched:
        """Block until the files are local. Raises FetchFailedError or FetchCancelledError."""
        ...


# --- time ---


class Clock(Protocol):
    """Wall time for the log, monotonic time for everything else."""

    def now(self) -> str:
        """Return UTC as `2026-01-31T23:59:59.123456Z`; never earlier than the last answer."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        ...


class Alarm(Protocol):
    """Wakes the registry once, at or after a monotonic time."""

    def set(self, at: float | None) -> None:
        """Replace the time to wake at; None for never. Called by the registry's thread."""
        ...

    def close(self) -> None:
        """Wake nobody any more."""
        ...
