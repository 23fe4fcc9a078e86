"""The judge's rules of rows, ports and room: each lets a sound history pass and refuses another."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.judge import Wrong
from simulation.telling import Tale, at

HERE = Path(__file__).parent


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    imported: set[str] = set()
    for path in (HERE / "judge.py", *(HERE / "judging").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    own = {name for name in imported if name.startswith("simulation.")}
    others = {name.partition(".")[0] for name in imported - own}

    assert others <= sys.stdlib_module_names
    assert {name.removeprefix("simulation.judging") for name in own - {"simulation.sight"}} == {
        *(".book", ".callers", ".eviction", ".liveness", ".past"),
        *(".published", ".reasons", ".truths", ".waiting", ".world"),
    }


def test_a_sound_life_of_a_service_passes() -> None:
    tale = Tale("a", "b")
    tale.load("a", 1).lease("a", 1).look().release(1).look()
    tale.load("b", 2).stop(1).load("a", 3)
    call = tale.call("close")
    tale.look()
    for run in (2, 3):
        tale.stop(run, "close")
    tale.row("service.closed").open = False
    tale.answer(call).look()
    tale.calm = True
    tale.look(1000, end=True)


def test_what_is_wrong_is_told_with_its_step_and_what_was_done() -> None:
    tale = Tale("a")
    sight = tale.row("run.ready", "a", 1).sight()
    with pytest.raises(Wrong) as caught:
        tale.judge.look(sight)

    assert str(caught.value).startswith("step 2 (told):\n  row 4 run.ready: it cannot come while")
    assert caught.value.step == 2


# --- the log itself ---


def test_rows_follow_one_another_without_a_gap_or_a_second_writer() -> None:
    tale = Tale("a")
    lost = tale.row("model.pinned", "a", seq=5).wrong()
    twice = Tale("a").row("model.pinned", "a", seq=3).wrong()

    assert "it follows row 3: rows are lost or written twice" in lost
    assert "it follows row 3: rows are lost or written twice" in twice


def test_a_cause_is_an_earlier_row() -> None:
    tale = Tale("a").row("model.pinned", "a", cause=None).look()
    tale.row("model.unpinned", "a", cause=4).look()

    assert "its cause 6 is no earlier row" in tale.row("model.pinned", "a", cause=6).wrong()


def test_time_in_the_log_never_goes_back() -> None:
    tale = Tale("a")
    tale.row("model.pinned", "a", at=at(5)).look()

    assert "before the one before" in tale.row("model.unpinned", "a", at=at(4)).wrong()


# --- the life of a run ---


STAGES = ("unknown", "queued", "reserved", "launching", "loading", "ready", "draining")
REACH: tuple[tuple[str, dict[str, Any]], ...] = (
    ("run.queued", {}),
    ("run.reserved", {"port": 18000}),
    ("run.launching", {"nonce": "n1"}),
    ("run.launched", {"pid": 1001}),
    ("run.ready", {}),
    ("run.draining", {}),
)
"""What leads from each stage to the next."""


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("run.reserved", "unknown"),
        ("run.launching", "queued"),
        ("run.launched", "reserved"),
        ("run.ready", "launching"),
        ("run.evicting", "loading"),
        ("run.draining", "loading"),
        ("run.reopened", "ready"),
        ("run.stopping", "reserved"),
        ("run.exited", "launching"),
        ("run.swept", "ready"),
        ("run.stop_failed", "ready"),
        ("run.released", "ready"),
        ("run.abandoned", "reserved"),
        ("run.fetched", "queued"),
        ("run.adopted", "draining"),
    ],
)
def test_no_row_comes_in_a_stage_where_it_cannot(kind: str, stage: str) -> None:
    tale = Tale("a")
    for told, data in REACH[: STAGES.index(stage)]:
        tale.row(told, "a", 1, **data)
    tale.look()
    said = tale.row(kind, "a", 1, port=18000, pid=1001, state="ready", nonce="n").wrong()

    assert f"{kind}: it cannot come while run 1 is {stage}" in said


def test_a_run_ends_once() -> None:
    tale = Tale("a").load("a", 1).stop(1)

    assert "run 1 has ended before (ok)" in tale.queue("a", 1).wrong()


def test_run_numbers_are_used_in_order_and_once() -> None:
    tale = Tale("a")

    assert "run 2 begins where 1 would be the next" in tale.queue("a", 2).wrong()


def test_a_run_belongs_to_one_model() -> None:
    tale = Tale("a", "b").queue("a", 1).look()
    said = tale.row("run.reserved", "b", 1, port=18000).wrong()

    assert "run 1 is one of 'a', not of 'b'" in said


def test_only_a_defined_model_has_runs() -> None:
    assert "run 1 is one of 'x', which is not defined" in Tale("a").queue("x", 1).wrong()


def test_a_model_has_one_run_and_at_most_one_that_waits_for_its_end() -> None:
    tale = Tale("a").load("a", 1)
    tale.row("run.draining", run=1).queue("a", 2).look()
    early = Tale("a").load("a", 1).queue("a", 2).wrong()

    assert "run 2 begins beside [1] of 'a'" in early
    assert "run 3 begins beside [1, 2] of 'a'" in tale.queue("a", 3).wrong()


def test_a_held_or_failed_model_begins_no_run_before_it_is_started_or_reset() -> None:
    tale = Tale("a").row("model.held", "a").look()
    said = Tale("a").row("model.held", "a").queue("a", 1).wrong()
    tale.row("model.reset", "a").queue("a", 1).look()
    tale = failed(Tale("a", spec={"crash_budget": 1}), 1)
    tale.row("model.failed", "a", 1, attempts=1).look()
    tale.row("run.queued", "a", 2, requested_by="start('a')").row("run.abandoned", "a", 2).look()
    spent = tale.queue("a", 3).wrong()

    assert "run 1 begins while 'a' is held" in said
    assert "run 3 begins while 'a' is failed" in spent


def test_a_port_is_released_only_after_the_exit_and_the_end_of_the_tree_were_seen() -> None:
    Tale("a").load("a", 1).stop(1)
    no_exit = Tale("a").load("a", 1)
    no_exit.row("run.stopping", run=1).row("run.swept", run=1).row("run.released", run=1)
    no_exit.servers.clear()
    no_sweep = Tale("a").load("a", 1)
    no_sweep.row("run.exited", run=1).row("run.released", run=1)
    no_sweep.servers.clear()

    assert "no exit of its leader was recorded" in no_exit.wrong()
    assert "no end of its tree was recorded" in no_sweep.wrong()


def test_what_was_seen_to_live_is_not_released_unswept_though_its_launch_was_never_told() -> None:
    unheard = Tale("a").queue("a", 1).reserve(1)
    unheard.row("run.launching", run=1, nonce="n1").look().serve(1).look()
    unheard.row("run.stopping", run=1).row("run.stop_failed", run=1).look()
    unheard.servers.clear()
    refused = Tale("a").queue("a", 1).reserve(1).row("run.launching", run=1, nonce="n1").look()
    refused.row("run.stopping", run=1).row("run.stop_failed", run=1).look()
    refused.row("run.stopping", run=1).row("run.released", run=1).look()

    assert "no end of its tree was recorded" in unheard.row("run.released", run=1).wrong()


def test_a_leader_exits_once() -> None:
    tale = Tale("a").load("a", 1)
    tale.servers.clear()
    tale.row("run.exited", run=1).look()

    assert "its leader exits a second time" in tale.row("run.exited", run=1).wrong()


# --- ports ---


def test_a_port_is_held_by_one_run() -> None:
    tale = Tale("a", "b").load("a", 1).queue("b", 2).look()

    assert "port 18000 is held by run 1" in tale.reserve(2, port=18000).wrong()


def test_a_port_is_one_of_the_pool() -> None:
    tale = Tale("a").queue("a", 1).look()

    assert "port 19000 is not in the pool" in tale.reserve(1, port=19000).wrong()


def test_the_port_that_is_free_longest_is_handed_out() -> None:
    tale = Tale("a").load("a", 1).stop(1).queue("a", 2).look()
    said = tale.reserve(2, port=18000).wrong()

    assert "port 18000 was taken before 18001, free for longer" in said


def test_a_port_with_a_stranger_is_passed_over_when_that_is_recorded() -> None:
    tale = Tale("a").queue("a", 1).row("port.blocked", port=18000, command="nginx")
    tale.reserve(1, port=18001).look()
    said = Tale("a").queue("a", 1).reserve(1, port=18001).wrong()

    assert "port 18001 was taken before 18000" in said


def test_a_run_of_an_older_pool_keeps_its_port_which_is_not_handed_out_again() -> None:
    tale = Tale("a", "b").load("a", 1)
    tale.row("service.closed", reason="keep", kept=(1,)).look()
    tale.row("service.opened", ports=((18001, 18002),)).look().stop(1)
    tale.queue("b", 2).look()

    assert "port 18000 is not in the pool" in tale.reserve(2, port=18000).wrong()


def test_a_row_names_the_port_of_its_run() -> None:
    tale = Tale("a").queue("a", 1).reserve(1).look()
    said = tale.row("run.launching", run=1, nonce="n1", port=18001).wrong()

    assert "run 1 has ports (18000,), not 18001" in said


# --- room ---


def test_no_more_runs_hold_room_than_may() -> None:
    tale = Tale("a", "b", max_loaded=1).load("a", 1).queue("b", 2).look()

    assert "2 runs hold room for 1" in tale.reserve(2).wrong()


def test_memory_is_never_promised_twice_and_an_unknown_need_is_admitted_alone() -> None:
    tale = Tale("a", "b", "c", max_loaded=3, memory_limit=100)
    tale.load("a", 1, room_bytes=60).load("b", 2, room_bytes=40).queue("c", 3).look()
    over = tale.reserve(3, room_bytes=1).wrong()
    unknown = Tale("a", "b", memory_limit=100).load("a", 1, room_bytes=60).queue("b", 2)

    assert "101 bytes are held of 100" in over
    assert "160 bytes are held of 100" in unknown.reserve(2).wrong()


def test_a_model_takes_the_memory_that_it_declares() -> None:
    tale = Tale("a", spec={"memory": 40}, memory_limit=100).queue("a", 1).look()
    said = tale.reserve(1, room_bytes=30).wrong()
    Tale("a", spec={"memory": 40}).queue("a", 1).reserve(1, room_bytes=40).look()

    assert "it takes 30 bytes, 40 are declared" in said


def test_after_limits_were_lowered_what_is_loaded_stays_but_nothing_new_comes() -> None:
    tale = Tale("a", "b", "c").load("a", 1).load("b", 2)
    tale.row("limits.set", max_loaded=1, memory_limit=None, min_residency_s=0.0).look()
    tale.stop(1).queue("c", 3).look()

    assert "2 runs hold room for 1" in tale.reserve(3).wrong()


# --- names and failures ---


def test_a_name_belongs_to_one_model_and_is_free_once_that_is_removed() -> None:
    tale = Tale("a").define("a", aliases=["small"]).look()
    clash = Tale("a").define("a", aliases=["small"]).define("b", aliases=["small"]).wrong()
    tale.row("model.removed", "a").define("b", aliases=["small"]).look()

    assert "the name 'small' belongs to 'a'" in clash


def test_a_model_is_removed_after_its_runs() -> None:
    tale = Tale("a").load("a", 1)

    assert "its runs [1] have not ended" in tale.row("model.removed", "a").wrong()


def failed(tale: Tale, run: int, outcome: str = "failed: launch") -> Tale:
    tale.queue("a", run).reserve(run).row("run.launching", run=run, nonce=f"n{run}")
    return tale.row("run.released", run=run, outcome=outcome)


def test_the_crash_budget_counts_failed_starts_one_by_one_until_it_is_spent() -> None:
    tale = failed(Tale("a"), 1).row("model.backoff", "a", 1, attempts=1).look()
    failed(tale, 2).row("model.failed", "a", 2, attempts=2).look()
    jump = failed(Tale("a", spec={"crash_budget": 5}), 1)
    late = failed(Tale("a"), 1).row("model.backoff", "a", 1, attempts=1)
    failed(late, 2).row("model.backoff", "a", 2, attempts=2)

    assert "attempt 3 follows 0" in jump.row("model.backoff", "a", 1, attempts=3).wrong()
    assert "2 failures, the budget is 2" in late.wrong()


@pytest.mark.parametrize("outcome", ["lost", "cancelled", "ok", "failed: port"])
def test_what_is_no_failed_start_does_not_count(outcome: str) -> None:
    tale = failed(Tale("a"), 1, outcome).row("model.backoff", "a", 1, attempts=1)

    assert f"run 1 counts as a failure, but ended as {outcome!r}" in tale.wrong()


# --- the queue and the end ---


def test_a_place_in_the_queue_is_the_one_it_has() -> None:
    tale = Tale("a", "b").queue("a", 1).look()

    assert "place 1 in a queue of 2" in tale.row("run.queued", "b", 2, place=1).wrong()


def test_close_keeps_only_what_runs() -> None:
    tale = Tale("a").load("a", 1)
    tale.row("service.closed", reason="keep", kept=(1,)).look()
    said = Tale("a").row("service.closed", reason="keep", kept=(1,)).wrong()

    assert "it keeps [1], which do not run" in said


def test_an_account_that_does_not_hold_together_is_no_judge() -> None:
    tale = Tale("a").load("a", 1)
    del tale.judge.book.free[18002]
    while tale.step % 64 != 63:
        tale.look(published=None)

    assert "ports [18002] are lost, of [18000, 18001, 18002]" in tale.wrong(published=None)
