"""What is so now, in words and numbers: a view of a state, live or replayed. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.core.lifecycle import HOLDING, Stage
from moorage.core.pace import Fetching
from moorage.core.room import Usage, lru_order
from moorage.core.state import Model, Run, State


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model. `state` is its run's stage, else `stopped`, `held`, `backoff` or `failed`.

    `leases` is None in a replayed state; `place` counts from 1 while it is queued; `since` is
    UTC text. While it fetches, `fetched_bytes` of `fetch_bytes` are here, and the rest comes at
    `fetch_bytes_per_s` in `fetch_eta_s`, where these are known. `error_reason` says for programs
    why a fetch failed.
    """

    name: str
    aliases: tuple[str, ...]
    backend: str
    state: str
    run: int | None = None
    ports: tuple[int, ...] = ()
    pid: int | None = None
    url: str | None = None
    leases: int | None = None
    pinned: bool = False
    place: int | None = None
    reason: str = ""
    since: str = ""
    attempts: int = 0
    retry_at: str = ""
    error: str = ""
    error_reason: str = ""
    log_tail: tuple[str, ...] = ()
    log_file: str = ""
    peak_bytes: int | None = None
    fetched_bytes: int | None = None
    fetch_bytes: int | None = None
    fetch_bytes_per_s: float | None = None
    fetch_eta_s: float | None = None

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The whole service.

    `lru` is least recently used first: as used until now, or, in a replayed state, as last noted.
    `ports_held` is port to model.
    """

    models: tuple[ModelStatus, ...]
    open: bool
    owner: str
    seq: int
    at: str
    loaded: int
    max_loaded: int
    memory_bytes: int
    memory_limit: int | None
    ports_held: Mapping[int, str]
    ports_free: int
    lru: tuple[str, ...]
    queue: tuple[str, ...]
    waiting: int = 0
    log_problem: str = ""
    unwritten: int = 0
    stale_messages: int = 0
    warnings: tuple[str, ...] = ()

    def model(self, name: str) -> ModelStatus | None:
        """Return a model by its name or an alias."""
        return next((m for m in self.models if name == m.name or name in m.aliases), None)

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dataclasses.asdict(self)


def service_status(
    state: State,
    usage: Mapping[int, Usage] | None = None,
    fetching: Mapping[int, Fetching] | None = None,
    **more: Any,
) -> ServiceStatus:
    """Return the status of a state; `usage` and `fetching` are what a live service adds."""
    holding = tuple(state.holding())
    return ServiceStatus(
        models=tuple(
            model_status(state, state.models[name], usage, fetching or {})
            for name in sorted(state.models)
        ),
        open=state.open,
        owner=state.owner,
        seq=state.seq,
        at=state.at,
        loaded=len(holding),
        max_loaded=state.max_loaded,
        memory_bytes=sum(run.room_bytes or 0 for run in holding),
        memory_limit=state.memory_limit,
        ports_held={port: state.runs[run].model for port, run in sorted(state.held.items())},
        ports_free=len(state.free),
        lru=tuple(state.runs[run].model for run in lru_order(state, usage or {})),
        queue=tuple(state.runs[run].model for run in state.queue),
        **more,
    )


def model_status(
    state: State,
    model: Model,
    usage: Mapping[int, Usage] | None,
    fetching: Mapping[int, Fetching],
) -> ModelStatus:
    """Return the status of one model."""
    run = state.runs.get(model.run or 0)
    last = model.last
    ready = run is not None and run.stage in (Stage.READY, Stage.DRAINING)
    fetched = fetching.get(run.run) if run and run.stage is Stage.FETCHING else None
    return ModelStatus(
        name=model.name,
        aliases=tuple(model.spec.aliases),
        backend=model.spec.backend,
        state=run.stage.value if run else model.status,
        run=run.run if run else None,
        ports=run.ports if run else (),
        pid=run.pid if run else None,
        url=f"http://127.0.0.1:{run.ports[0]}" if run and ready else None,
        leases=_leases(run, usage),
        pinned=model.pinned,
        place=state.queue.index(run.run) + 1 if run and run.run in state.queue else None,
        reason=(run.reason if run else "") or _waiting(fetched) or model.hold_reason,
        since=_since(run),
        attempts=model.attempts,
        retry_at=model.until if model.status == "backoff" and run is None else "",
        error=last.error if last else "",
        error_reason=last.reason if last else "",
        log_tail=last.log_tail if last else (),
        log_file=run.log_file if run else "",
        peak_bytes=model.peak_bytes,
        fetched_bytes=fetched.done_bytes if fetched else None,
        fetch_bytes=fetched.total_bytes if fetched else None,
        fetch_bytes_per_s=fetched.bytes_per_s if fetched else None,
        fetch_eta_s=fetched.eta_s if fetched else None,
    )


def _waiting(fetched: Fetching | None) -> str:
    return f"waits for {fetched.waiting}" if fetched is not None and fetched.waiting else ""


def _leases(run: Run | None, usage: Mapping[int, Usage] | None) -> int | None:
    if usage is None:
        return None
    seen = usage.get(run.run) if run else None
    return seen.leases if seen else 0


def _since(run: Run | None) -> str:
    if run is None:
        return ""
    if run.stage in HOLDING:
        return run.ready_at or run.launched_at or run.reserved_at
    return run.began_at
