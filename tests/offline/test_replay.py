"""`moorage replay`: any point of a log's past."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from moorage.cli.source import state_at
from moorage.core.fold import FOLD_VERSION, replay
from moorage.core.snapshot import state_to_data
from moorage.core.state import State
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from moorage.protocols import Snapshot
from offline.acting import Acting
from offline.conftest import Ask, written
from support.history import History


def test_every_prefix_is_shown_as_it_was(state: Path) -> None:
    entries = list(History(seed=3).entries(12))
    written(state, entries)

    live = State()
    with LogReader(state) as reader:
        for entry in entries:
            replay([entry], live)

            assert state_at(reader, entry.seq) == live


def test_a_snapshot_shortens_the_way_and_changes_nothing(state: Path) -> None:
    entries = list(History(seed=4).entries(12))
    written(state, entries)
    middle = replay(entries[:60])
    log = SqliteLog.open(state)
    log.append((), snapshot=Snapshot(60, FOLD_VERSION, state_to_data(middle)))
    log.close()

    with LogReader(state) as reader:
        for seq in (59, 60, 61, len(entries)):
            assert state_at(reader, seq) == replay(entries[:seq])


def test_models_order_queue_and_pins_are_those_of_the_moment(
    state: Path, acting: Acting, ask: Ask
) -> None:
    acting.leased = {acting.load("a"): 1, acting.load("b"): 1}
    acting.ask("c")
    written(state, acting.entries)
    at = acting.last("run.queued").seq

    answer = ask("replay", "--state", state, "--at", at, "--json")

    (service,) = answer.of("service")
    models = {model["name"]: model for model in answer.of("model")}
    assert answer.status == 0
    assert (service["seq"], service["head"]) == (at, len(acting.entries))
    assert service["lru"] == ["a", "b"]
    assert service["queue"] == ["c"]
    assert [models[name]["state"] for name in "abc"] == ["ready", "ready", "queued"]


def test_a_time_means_the_last_event_before_the_first_later_one(
    state: Path, acting: Acting, ask: Ask
) -> None:
    written(state, acting.entries)
    second = acting.entries[2].at

    def at(text: str) -> int:
        answer = ask("replay", "--state", state, "--json", "--at", text)
        return answer.of("service")[0]["seq"]

    assert at(second) == len(acting.entries)
    assert at("2026-03-02T08:00:01Z") == 2
    assert at("2026-03-02 08:00:01") == 2
    assert at("2026-03-02T09:00:01+01:00") == 2
    assert at("2026-03-01") == 0
    assert at("2027-01-01") == len(acting.entries)


@pytest.mark.parametrize("point", ["yesterday", "-1", "1e3", "", "99", "9" * 30])
def test_a_point_that_is_none_is_refused_in_one_line(
    state: Path, acting: Acting, ask: Ask, point: str
) -> None:
    written(state, acting.entries)

    answer = ask("replay", "--state", state, f"--at={point}")

    assert answer.status == 2
    assert answer.err.count("\n") == 1


def test_what_is_shown_says_how_old_it_is(state: Path, acting: Acting, ask: Ask) -> None:
    written(state, acting.entries)

    answer = ask("replay", "--state", state, "--at", 2)

    assert f"event 2 of {len(acting.entries)}" in answer.out
    assert "ago" in answer.out
    assert "event 3 (model.defined)" in answer.out


def test_a_copy_in_a_folder_that_cannot_be_written_is_enough(
    tmp_path: Path, state: Path, acting: Acting, ask: Ask
) -> None:
    acting.load("a")
    written(state, acting.entries)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = Path(shutil.copy(state / "moorage.db", elsewhere / "incident.db"))
    copy.chmod(0o400)
    elsewhere.chmod(0o500)

    answers = [
        ask(*command, "--state", copy)
        for command in (["replay"], ["why", "a"], ["verify"], ["export"], ["ps"], ["audit"])
    ]

    elsewhere.chmod(0o700)
    assert [answer.status for answer in answers] == [0, 0, 0, 0, 0, 0]
    assert [path.name for path in elsewhere.iterdir()] == ["incident.db"]
