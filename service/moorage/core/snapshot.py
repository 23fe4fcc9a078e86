"""A state as JSON-ready data and back: a cache in a segment, the beginning of a later one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from moorage.core.codec import frozen
from moorage.core.events import LogContinued
from moorage.core.lifecycle import Stage
from moorage.core.shape import misfit
from moorage.core.state import Failure, Model, Run, State, checked
from moorage.spec import spec_from_data

_PLAIN = ("log_id", "seq", "at", "next_run", "open", "owner", "max_loaded", "memory_limit")


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _last(failure: Failure) -> dict[str, Any]:
    # A reason only a failed fetch has; earlier programs wrote none.
    return {name: value for name, value in _fields(failure).items() if value or name != "reason"}


def state_to_data(state: State) -> dict[str, Any]:
    """Return a state as JSON-ready data; `state_from_data` gives an equal one back."""
    data = {name: getattr(state, name) for name in (*_PLAIN, "min_residency_s", "pool")}
    return data | {
        "models": [
            _fields(model)
            | {"spec": model.spec.to_data(), "last": _last(model.last) if model.last else None}
            for model in state.models.values()
        ],
        "names": state.names,
        "runs": [_fields(run) for run in state.runs.values()],
        "lru": state.lru,
        "queue": state.queue,
        "free": list(state.free),
        "held": list(state.held.items()),
    }


def _model(data: Mapping[str, Any]) -> Model:
    values = {name: frozen(value) for name, value in data.items() if name not in ("spec", "last")}
    last = data["last"]
    failure = Failure(**{k: frozen(v) for k, v in last.items()}) if last else None
    return Model(**values, spec=spec_from_data(data["spec"]), last=failure)


def _run(data: Mapping[str, Any]) -> Run:
    values: dict[str, Any] = {name: frozen(value) for name, value in data.items()}
    values["stage"] = Stage(values["stage"])
    return Run(**values)


def state_from_data(data: Mapping[str, Any]) -> State:
    """Rebuild a state; raises KeyError, TypeError or ValueError for data that does not fit."""
    models = [_model(item) for item in data["models"]]
    runs = [_run(item) for item in data["runs"]]
    return State(
        **{name: data[name] for name in _PLAIN},
        min_residency_s=data["min_residency_s"],
        pool=checked(frozen(data["pool"])),
        models={model.name: model for model in models},
        names=dict(data["names"]),
        runs={run.run: run for run in runs},
        lru=tuple(data["lru"]),
        queue=tuple(data["queue"]),
        free=dict.fromkeys(data["free"]),
        held=dict(data["held"]),
    )


def cached_state(seq: int, data: Mapping[str, Any]) -> State | None:
    """Return the state of a snapshot at this seq; a cache that does not fit is none."""
    try:
        state = state_from_data(data)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return state if state.seq == seq and not misfit(state) else None


def base_state(seq: int, event: LogContinued) -> State:
    """Return the state that a segment goes on from, whose first entry has this seq.

    Raises KeyError, TypeError or ValueError when it does not fit.
    """
    base = state_from_data(event.base)
    if name := misfit(base):
        raise ValueError(f"it has a {name} that no state has")
    if (base.seq, base.next_run, base.log_id) != (seq - 1, event.next_run, event.log_id):
        raise ValueError(f"it is that of entry {base.seq} of log {base.log_id}")
    return base
