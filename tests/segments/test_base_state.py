"""A base state is kept for ever: what this program once wrote, every later one has to read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from moorage.core import codec
from moorage.core.continuing import continued
from moorage.core.events import Entry, LogContinued
from moorage.core.fold import FOLD_VERSION, FoldError, apply, replay
from moorage.core.lifecycle import Stage
from moorage.core.snapshot import state_to_data
from moorage.core.state import Model, Run, State
from support.history import History

GOLDEN = Path(__file__).with_name("base_state_1.json")
"""The data of a `log.continued` of version 1, as the first release wrote it."""


def written() -> State:
    """A state with something in every field that the golden file has to show."""
    state = replay(History(seed=12, crashes=0.3).entries(12, close=None))
    name, model = next((n, m) for n, m in state.models.items() if m.last is None)
    state.models[name] = dataclasses.replace(model, pinned=True)
    return state


def golden() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return data


def entry_of(data: dict[str, Any], version: int = 1) -> Entry:
    columns = dict.fromkeys(codec.COLUMNS)
    event = codec.decode("log.continued", version, columns, data)
    return Entry(data["base"]["seq"] + 1, "2026-12-01T00:00:00.000000Z", None, event)


def test_a_base_state_of_the_first_release_is_read_as_it_was_meant() -> None:
    state = State()
    apply(state, entry_of(golden()))

    expected = written()
    expected.seq += 1
    expected.at = state.at
    assert state == expected
    assert any(model.last for model in state.models.values())
    assert any(run.stage is Stage.READY for run in state.runs.values())
    assert state.lru
    assert state.held


def test_what_is_written_now_has_the_shape_that_is_known_to_be_read_for_ever() -> None:
    """When this fails: raise LogContinued.version, upcast the old shape, keep one more file."""
    event = continued(written(), program="0.1.0", segment=2, base_hash="0" * 64)
    _, data = codec.encode(event)

    # Which fold made it is a fact about this program, not of the shape.
    assert json.loads(json.dumps(data)) == golden() | {"fold_version": FOLD_VERSION}
    base = event.base
    assert set(base) == {field.name for field in dataclasses.fields(State)}
    assert set(base["models"][0]) == {field.name for field in dataclasses.fields(Model)}
    assert set(base["runs"][0]) == {field.name for field in dataclasses.fields(Run)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"next_run": 3}, "is that of entry"),
        ({"log_id": "0" * 16}, "is that of entry"),
        ({"base": {}}, "'models'"),
        ({"base": {"models": 3}}, "not iterable"),
        ({"base": golden()["base"] | {"lru": ["heron"]}}, "a lru that no state has"),
    ],
)
def test_a_base_state_that_does_not_fit_is_refused(change: dict[str, Any], why: str) -> None:
    entry = entry_of(golden())
    assert isinstance(entry.event, LogContinued)
    entry = entry._replace(event=dataclasses.replace(entry.event, **change))

    with pytest.raises(FoldError, match=f"no base state to go on from: .*{why}"):
        apply(State(), entry)


def test_a_segment_never_begins_in_the_middle() -> None:
    entry = entry_of(golden())
    state = replay(History(seed=11).entries(1, close=None))

    with pytest.raises(FoldError, match="follows"):
        apply(state, entry)
    assert state_to_data(state)["seq"] == state.seq
