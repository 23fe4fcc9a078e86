"""The state that the log adds up to. Values are frozen; only `State` itself is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from moorage.core.lifecycle import HOLDING, Stage
from moorage.spec import ModelSpec

Ranges = tuple[tuple[int, int], ...]
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a model."""

    run: int
    stage: str
    error: str
    code: int | None
    signal: int | None
    log_tail: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)  # without slots, for `changed`
class Model:
    """A defined model. `spec` carries no secrets, `secret_names` says which it wants.

    `status` is what it is when it has no run: `stopped`, `held`, `backoff` or `failed`.
    `run` is its run, `next_run` the one that waits for that to end.
    """

    name: str
    spec: ModelSpec
    spec_hash: str
    secret_names: tuple[str, ...] = ()
    secrets_hash: str = ""
    pinned: bool = False
    status: str = "stopped"
    hold_reason: str = ""
    attempts: int = 0
    until: str = ""
    last: Failure | None = None
    peak_bytes: int | None = None
    run: int | None = None
    next_run: int | None = None


@dataclass(frozen=True, kw_only=True)  # without slots, for `changed`
class Run:
    """One attempt to have a model loaded. Times are the `at` of the entries."""

    run: int
    model: str
    stage: Stage
    spec_hash: str
    requested_by: str
    first_seq: int
    last_seq: int
    began_at: str
    path: str | None = None
    commit: str = ""
    ports: tuple[int, ...] = ()
    room_bytes: int | None = None
    reserved_at: str = ""
    nonce: str = ""
    argv: tuple[str, ...] = ()
    log_file: str = ""
    pid: int | None = None
    group: int = 0
    session: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    launched_at: str = ""
    ready_at: str = ""
    reason: str = ""
    """Why it drains or stops."""
    for_run: int | None = None
    displaced: tuple[int, ...] = ()
    """Runs evicted for this one."""
    leases: int = 0
    """Granted so far, as last noted."""
    fail_stage: str = ""
    error: str = ""
    exited: bool = False
    swept: bool = False
    code: int | None = None
    signal: int | None = None
    log_tail: tuple[str, ...] = ()
    left_pids: tuple[int, ...] = ()
    peak_bytes: int | None = None

    @property
    def port(self) -> int | None:
        """The port that serves."""
        return self.ports[0] if self.ports else None


_Value = TypeVar("_Value", Model, Run)


def changed(value: _Value, changes: dict[str, Any]) -> _Value:
    """Return a copy with other values: `dataclasses.replace` at a tenth of its cost.

    Half of a replay was spent there.
    """
    before = value.__dict__
    fields = before | changes
    if len(fields) != len(before):
        raise TypeError(f"a {type(value).__name__} has not all of {', '.join(changes)}")
    copy: _Value = object.__new__(value.__class__)
    object.__setattr__(copy, "__dict__", fields)
    return copy


@dataclass(slots=True, kw_only=True)
class State:
    """Everything the log says is so, at `seq`."""

    log_id: str = ""
    seq: int = 0
    at: str = ""
    next_run: int = 1
    open: bool = False
    owner: str = ""
    pool: Ranges = ()
    max_loaded: int = 1
    memory_limit: int | None = None
    min_residency_s: float = 0.0
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    names: dict[str, str] = field(default_factory=dict[str, str])
    """Names and aliases to model names."""
    runs: dict[int, Run] = field(default_factory=dict[int, Run])
    """Open runs, oldest first."""
    lru: tuple[int, ...] = ()
    """Ready and draining runs, least recently used first."""
    queue: tuple[int, ...] = ()
    free: dict[int, None] = field(default_factory=dict[int, None])
    """Free ports of the pool, least recently released first."""
    held: dict[int, int] = field(default_factory=dict[int, int])
    """Held ports to their runs."""

    def fork(self) -> State:
        """Return a copy that can be folded further without changing this one."""
        return replace(
            self,
            models=dict(self.models),
            names=dict(self.names),
            runs=dict(self.runs),
            free=dict(self.free),
            held=dict(self.held),
        )

    def become(self, other: State) -> None:
        """Take over all that another state says; that one must not be used any more."""
        for name in (each.name for each in fields(self)):
            setattr(self, name, getattr(other, name))

    def holding(self) -> Iterator[Run]:
        """Yield the runs that hold ports and room."""
        return (run for run in self.runs.values() if run.stage in HOLDING)

    def in_stage(self, *stages: Stage) -> Iterator[Run]:
        """Yield the open runs in one of these stages."""
        return (run for run in self.runs.values() if run.stage in stages)


def expand(ranges: Ranges) -> Iterator[int]:
    """Yield every port of inclusive ranges."""
    for first, last in ranges:
        yield from range(first, last + 1)


def checked(ranges: Ranges) -> Ranges:
    """Return ranges that are a pool. Raises ValueError: others may be without end."""
    size = 0
    for first, last in ranges:
        if not 1 <= first <= last <= MAX_PORT:
            raise ValueError(f"{first}-{last} are no ports")
        size += last - first + 1
    if size > MAX_PORT:
        raise ValueError("a port is in the pool twice")
    return ranges


def compress(ports: Iterable[int]) -> Ranges:
    """Return ports as inclusive ranges, ascending."""
    ranges: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if ranges and ranges[-1][1] == port - 1:
            ranges[-1] = (ranges[-1][0], port)
        else:
            ranges.append((port, port))
    return tuple(ranges)


def describe_pool(ranges: Ranges) -> str:
    """Return ranges as people write them."""
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in ranges) or "an empty pool"
