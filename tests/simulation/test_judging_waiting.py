"""The judge's rules that nobody waits for what is there, and no more than may."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.judging.waiting import NOTICED_S, NOTICED_STEPS, PROVEN_S
from simulation.telling import Tale


def later(tale: Tale, seconds: float = NOTICED_S + 0.1, **changes: Any) -> str:
    """Return what the judge says once nothing happened for so long."""
    for _ in range(NOTICED_STEPS + 1):
        tale.look(**changes)
    return tale.wrong(seconds, **changes)


def test_a_request_that_waits_while_a_run_is_idle_was_forgotten() -> None:
    said = later(Tale("a", "b", max_loaded=1).load("a", 1).queue("b", 2))

    assert "run 2 waits since" in said
    assert "run 1 is idle" in said


def test_a_request_that_waits_while_a_place_is_free_was_forgotten() -> None:
    tale = Tale("a", "b", max_loaded=2).load("a", 1).queue("b", 2)

    assert "a place is free" in later(tale)


@pytest.mark.parametrize(
    "changes",
    [{"log_works": False}, {"unwritten": 1}, {"dead": True}, {"strangers": {18001: 7, 18002: 8}}],
    ids=lambda changes: next(iter(changes)),
)
def test_who_cannot_be_admitted_waits_on(changes: dict[str, Any]) -> None:
    tale = Tale("a", "b", max_loaded=1, ports=((18000, 18002),)).load("a", 1).queue("b", 2)

    assert later(tale, **changes) == "nothing"


def test_who_waits_for_a_lease_a_pin_or_the_age_of_a_run_waits_on() -> None:
    leased = Tale("a", "b", max_loaded=1).load("a", 1).lease("a", 1).queue("b", 2)
    pinned = Tale("a", "b", max_loaded=1).load("a", 1).row("model.pinned", "a").queue("b", 2)
    young = Tale("a", "b", max_loaded=1, min_residency_s=60.0).load("a", 1).queue("b", 2)
    joint = Tale("a", "b", max_loaded=1).load("a", 1).queue("b", 2)
    joint.call("lease_all", "a", "b")

    assert [later(tale) for tale in (leased, pinned, young, joint)] == ["nothing"] * 4


def test_who_waits_for_what_was_taken_over_waits_until_that_has_answered() -> None:
    tale = Tale("a", "b", max_loaded=1).load("a", 1).queue("b", 2).look()
    tale.owner += 1
    tale.row("service.opened", max_loaded=1).row("run.adopted", run=1, state="ready").look()
    early = later(tale)

    assert early == "nothing"
    assert "run 1 is idle" in later(tale.look(PROVEN_S))


def test_who_waits_for_the_last_run_of_his_own_model_waits_on() -> None:
    tale = Tale("a", max_loaded=1).load("a", 1).lease("a", 1)
    tale.row("run.draining", run=1, reason="operator").queue("a", 2)

    assert later(tale) == "nothing"


def test_no_more_wait_than_may() -> None:
    tale = Tale("a", max_loaded=1).load("a", 1).row("model.pinned", "a")
    for caller in range(3):
        tale.call("lease", "b", caller=caller)
    tale.call("lease", "b", caller=3, heard=False)

    assert later(tale, max_waiting=3) == "nothing"
    assert later(tale, max_waiting=2) == "3 callers wait, of whom 2 may"
