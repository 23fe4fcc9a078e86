"""The judge's rules of liveness, of what is left at the end, and of the published state."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.judging.liveness import PASSING_S, ROWS_A_RUN
from simulation.telling import Tale


def calm(tale: Tale) -> Tale:
    tale.calm = True
    return tale.look()


@pytest.mark.parametrize(
    ("stage", "seconds"),
    [
        ("queued", PASSING_S["queued"]),
        ("reserved", PASSING_S["reserved"]),
        ("launching", PASSING_S["launching"]),
        ("loading", PASSING_S["loading"] + 600.0),
        ("draining", PASSING_S["draining"]),
        ("stopping", PASSING_S["stopping"] + 10.0),
    ],
)
def test_no_stage_lasts_for_ever_once_faults_have_stopped(stage: str, seconds: float) -> None:
    tale = Tale("a").queue("a", 1)
    stages = ("queued", "reserved", "launching", "loading", "draining", "stopping")
    rows: list[tuple[str, dict[str, Any]]] = [
        ("run.reserved", {"port": 18000}),
        ("run.launching", {"nonce": "n1"}),
        ("run.launched", {"pid": 1001}),
        ("run.ready", {}),
        ("run.draining", {}),
        ("run.stopping", {}),
    ]
    count = stages.index(stage)
    for kind, data in rows[: count + 1 if stage in ("draining", "stopping") else count]:
        tale.row(kind, run=1, **data)
    calm(tale.look()).look(seconds)

    assert f"run 1 of 'a' is {stage} since {seconds + 1} s" in tale.wrong(1)


def test_a_stage_lasts_while_something_keeps_it() -> None:
    waits = Tale("a").queue("a", 1)
    waits.call("lease", "a", deadline=1e9)
    drains = Tale("a").load("a", 1).lease("a", 1).row("run.draining", run=1, leases=1)
    stuck = Tale("a").load("a", 1).row("run.stopping", run=1).row("run.stop_failed", run=1)
    for tale in (waits, drains, stuck):
        calm(tale).look(3600)
    stuck.servers.clear()

    assert "run 1 of 'a' is stop_failed since 3600.0 s" in stuck.wrong()


def test_only_calm_is_measured() -> None:
    tale = Tale("a").queue("a", 1).look().look(3600)
    calm(tale)
    tale.calm = False
    calm(tale.look(3600))


def closed(tale: Tale, **more: Any) -> Tale:
    tale.row("service.closed", **more).open = False
    return calm(tale)


def test_nothing_is_left_at_the_end_of_a_history() -> None:
    closed(Tale("a").load("a", 1).stop(1)).look(end=True)
    open_ = calm(Tale("a")).wrong(end=True)
    run = closed(Tale("a").load("a", 1)).wrong(end=True)
    call = closed(Tale("a"))
    call.call("pin", "a")
    tree = Tale("a").load("a", 1)
    left = tree.servers[1]
    closed(tree.stop(1)).servers[1] = left

    assert open_ == "the log does not end with service.closed"
    assert "run 1 of 'a' is left ready" in run
    assert "port 18000 is left held by run 1" in run
    assert "a tree of run 1 is left: 1001, ()" in run
    assert "pin(a) of caller 1 is not answered" in call.wrong(end=True)
    assert "a tree of run 1 is left: 1001, ()" in tree.wrong(end=True)


def test_what_was_kept_or_could_not_be_stopped_may_stay() -> None:
    closed(Tale("a").load("a", 1), reason="keep", kept=(1,)).look(end=True)
    stuck = Tale("a").load("a", 1).row("run.stopping", run=1).row("run.stop_failed", run=1)
    closed(stuck).look(end=True)
    stuck.servers.clear()

    assert "run 1 of 'a' is left stop_failed" in stuck.wrong(end=True)


def test_a_held_lease_is_a_leak_at_the_end() -> None:
    tale = closed(Tale("a").load("a", 1), reason="keep", kept=(1,))
    tale.leases.append(tale.held(1))

    assert "caller 1 still holds run 1" in tale.wrong(end=True)


# --- loops ---


def test_a_run_that_stops_again_and_again_is_a_loop() -> None:
    tale = Tale("a").load("a", 1).row("run.stopping", run=1).look()
    for _ in range(ROWS_A_RUN + 3):
        tale.row("run.stopping", run=1)
    tale.look()

    assert "run 1 has 45 rows run.stopping" in tale.row("run.stopping", run=1).wrong()


def test_an_opening_writes_a_bounded_number_of_rows_unless_callers_ask() -> None:
    def churn(tale: Tale, *, asked: bool) -> str:
        for run in range(1, 80):
            tale.queue("a", run).row("run.abandoned", "a", run)
            if asked:
                tale.ask("lease", "a", error="LoadCancelledError")
            said = tale.wrong()
            if said != "nothing":
                return said
        return "nothing"

    assert "rows since the log was opened" in churn(Tale("a"), asked=False)
    assert churn(Tale("a"), asked=True) == "nothing"


# --- what is published ---


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seq", 99, "published seq 99"),
        ("lru", (2, 1), "published order of use [2, 1]"),
        ("queue", (), "published queue []"),
        ("free", [18001], "published free ports [18001]"),
        ("held", [], "published held ports []"),
        ("names", {"a": "a"}, "published names {'a': 'a'}"),
        ("max_loaded", 9, "published limits (True, 9,"),
        ("next_run", 9, "published limits"),
        ("open", False, "published limits (False,"),
        ("runs", [], "published runs []"),
        ("models", [], "published models []"),
    ],
)
def test_the_published_state_is_what_the_rows_say(name: str, value: Any, said: str) -> None:
    tale = Tale("a", "b", "c").load("a", 1).load("b", 2).queue("c", 3).look()
    sight = tale.sight()
    assert sight.published is not None
    state = dict(sight.published) | {name: value}

    assert said in tale.wrong(published=state)
    assert tale.wrong(published=state, unwritten=1) == "nothing"  # ahead of the rows: not judged


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        ("models", "pinned", True),
        ("models", "status", "held"),
        ("models", "attempts", 1),
        ("models", "until", "later"),
        ("models", "run", None),
        ("models", "next_run", 9),
        ("runs", "stage", "draining"),
        ("runs", "ports", (1,)),
        ("runs", "pid", 1),
        ("runs", "exited", True),
        ("runs", "swept", True),
        ("runs", "reason", "room"),
        ("runs", "room_bytes", 5),
        ("runs", "nonce", "other"),
    ],
)
def test_each_part_of_it_counts(of: str, name: str, value: Any) -> None:
    tale = Tale("a").load("a", 1)
    sight = tale.sight()
    assert sight.published is not None
    state = dict(sight.published)
    state[of] = [state[of][0] | {name: value}]
    part = "reasons" if name == "reason" else of

    assert f"published {part} " in tale.wrong(published=state)


def test_a_change_that_no_row_tells_is_seen_at_once() -> None:
    tale = Tale("a").load("a", 1)
    sight = tale.sight()
    assert sight.published is not None
    state = dict(sight.published)
    tale.look(published=state)
    state["free"] = []
    unseen = tale.wrong(published=state)
    fresh = tale.wrong(published=dict(state))

    assert unseen == "nothing"  # the same object again: looked at now and then only
    assert "published free ports []" in fresh
