"""`moorage ps`: the models, ports and room that a log adds up to."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moorage.cli import source, values
from moorage.cli.console import Console, harmless
from moorage.core.events import FetchNoted
from moorage.core.lifecycle import Stage
from moorage.core.pace import Fetching
from moorage.core.state import State, describe_pool
from moorage.log import segments
from moorage.log.owner import Owner, look_for_owner
from moorage.log.reader import Filter, LogReader
from moorage.status import ModelStatus, ServiceStatus, service_status
from moorage.world.procfs import System, local_system

_HEAD = ("MODEL", "STATE", "RUN", "PORT", "PID", "PINNED", "SINCE", "LAST ERROR")
_ERROR_CHARS = 100
_PORTS_LISTED = 12


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the state of every model, then ports, room, order and queue."""
    with source.reading(options.state) as reader:
        state = source.state_at(reader)
        database = Path(reader.path)
        owner, large = look_for_owner(database), segments.grown(database)
        status = service_status(state, fetching=fetches(reader, state))
    gone = frozenset(_gone(state, local_system()))
    if console.as_json:
        seen: dict[str, Any] = {"owner_alive": owner.alive, "note": large}
        _print_objects(console, state, status, gone, seen)
    else:
        print_status(console, state, status, gone)
        for title, text in _freshness(status, owner, gone):
            console.line(f"{title:<8}{text}")
        if large:
            console.line(f"{'note':<8}{harmless(large)}")
    return 0


def fetches(reader: LogReader, state: State) -> dict[int, Fetching]:
    """Return how far each fetch was when the log was last told; short ones are not told of."""
    found: dict[int, Fetching] = {}
    for run in state.in_stage(Stage.FETCHING):
        only = Filter(kind=FetchNoted.kind, run=run.run)
        for entry in reader.read(run.first_seq, until=state.seq, only=only):
            if isinstance(entry.event, FetchNoted):
                found[run.run] = _noted(entry.event)
    return found


def _noted(event: FetchNoted) -> Fetching:
    return Fetching(
        at=0.0,  # an entry's time is another clock's
        done_bytes=event.done_bytes,
        total_bytes=event.total_bytes,
        bytes_per_s=event.bytes_per_s,
    )


def print_status(
    console: Console, state: State, status: ServiceStatus, gone: frozenset[int] = frozenset()
) -> None:
    """Print the models, then ports, room, order and queue; `gone` are runs without a process."""
    if status.models:
        console.table(_HEAD, [_row(model, model.run in gone) for model in status.models])
    else:
        console.line("no model is defined")
    console.line()
    for title, text in _facts(state, status):
        console.line(f"{title:<8}{text}")


def _gone(state: State, system: System) -> Iterator[int]:
    """Yield the runs whose process has ended, whatever the log says of them."""
    boot = system.boot_id()
    for run in state.runs.values():
        if run.pid is None:
            continue
        stat = system.stat(run.pid) if run.boot_id == boot else None
        if stat is None or not stat.alive or stat.start_ticks != run.start_ticks:
            yield run.run


def _row(model: ModelStatus, gone: bool) -> tuple[str, ...]:
    return (
        model.name,
        _state(model),
        "-" if model.run is None else str(model.run),
        ",".join(map(str, model.ports)) or "-",
        "-" if model.pid is None else f"{model.pid} gone" if gone else str(model.pid),
        "yes" if model.pinned else "-",
        values.moment(model.since, digits=0) if model.since else "-",
        _short(model.error) or "-",
    )


def _state(model: ModelStatus) -> str:
    if model.fetch_bytes and model.fetched_bytes is not None:
        percent = model.fetched_bytes * 100 // model.fetch_bytes
        rate = model.fetch_bytes_per_s
        pace = "" if rate is None else f" at {values.size(round(rate))}/s"
        return f"{model.state} {percent} % of {values.size(model.fetch_bytes)}{pace}"
    return f"{model.state} ({model.reason})" if model.reason else model.state


def _short(error: str) -> str:
    text = harmless(error)
    return text if len(text) <= _ERROR_CHARS else f"{text[: _ERROR_CHARS - 1]}…"


def _facts(state: State, status: ServiceStatus) -> Iterator[tuple[str, str]]:
    held = [f"{port} {model}" for port, model in status.ports_held.items()]
    more = f" and {len(held) - _PORTS_LISTED} more" if len(held) > _PORTS_LISTED else ""
    listed = f" ({', '.join(held[:_PORTS_LISTED])}{more})" if held else ""
    pool = describe_pool(state.pool)
    yield "ports", f"{len(held)} held{listed}, {status.ports_free} free of {pool}"
    memory = ""
    if status.memory_limit is not None:
        memory = f", {values.size(status.memory_bytes)} of {values.size(status.memory_limit)}"
    yield "room", f"{status.loaded} of {status.max_loaded} loaded{memory}"
    yield "lru", ", ".join(status.lru) or "no model is ready"
    yield "queue", ", ".join(status.queue) or "nobody waits"


def _freshness(
    status: ServiceStatus, owner: Owner, gone: frozenset[int]
) -> Iterator[tuple[str, str]]:
    yield "owner", _owner(status, owner)
    yield "log", f"{status.seq} events, the last at {values.moment(status.at)}{ago(status.at)}"
    if gone:
        yield "note", f"{len(gone)} of the processes above have ended without the log's knowing"


def ago(at: str) -> str:
    """Return how long ago a log's time was, '' for what is no time."""
    passed = values.since(at)
    return "" if passed is None else f", {values.age(passed)} ago"


def _owner(status: ServiceStatus, owner: Owner) -> str:
    if owner.alive:
        who = harmless(owner.who) or "a process that has not given its name"
        return f"{who}, alive"
    if not status.open:
        return "none: the service was closed"
    if owner.alive is None:
        return f"{harmless(status.owner)}; whether it lives cannot be seen from here"
    return (
        f"{harmless(status.owner)}, gone without closing: this is what its log said last; "
        "the next service that opens the state takes over or stops what still lives"
    )


def _print_objects(
    console: Console,
    state: State,
    status: ServiceStatus,
    gone: frozenset[int],
    seen: dict[str, Any],
) -> None:
    service, *models = objects(state, status)
    console.object(service | seen)
    for model in models:
        alive = None if model["pid"] is None else model["run"] not in gone
        console.object(model | {"pid_alive": alive})


def objects(state: State, status: ServiceStatus) -> Iterator[dict[str, Any]]:
    """Yield what a log says of the service and then of each model, as JSON-ready data."""
    data: dict[str, Any] = status.to_data()
    models: tuple[dict[str, Any], ...] = data.pop("models")
    for key in ("waiting", "log_problem", "unwritten", "stale_messages"):
        del data[key]  # only a live service knows these
    yield {"object": "service"} | data | {"pool": state.pool, "log_id": state.log_id}
    for model in models:
        del model["leases"], model["fetch_eta_s"]
        yield {"object": "model"} | model
