"""The judge's rules of victims, the order of use and the queue."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.judging.eviction import OVERTAKEN
from simulation.telling import Tale


def full(**more: Any) -> Tale:
    """Return a tale in which a and b are loaded in this order, and c waits for room."""
    tale = Tale("a", "b", "c", **more).load("a", 1).look(1).load("b", 2)
    return tale.look(1).queue("c", 3).look()


def evict(tale: Tale, run: int, **more: Any) -> Tale:
    values = {"for_run": 3} | more
    tale.row("usage.noted").row("run.evicting", run=run, **values)
    return tale.row("run.stopping", run=run, reason=values.get("reason", "room"))


def test_the_least_recently_used_idle_run_gives_way() -> None:
    tale = full()
    evict(tale, 1).look().end(1).reserve(3, displaced=(1,)).look()
    said = evict(full(), 2).wrong()

    assert "run 2 is evicted, the older run 1 is not, unsaid why" in said


def test_a_run_displaced_those_who_gave_way_for_it() -> None:
    tale = full()
    evict(tale, 1).look().end(1).look()
    said = tale.reserve(3, displaced=(1, 2)).wrong()

    assert "it displaced 2, which did not give way for it" in said


def test_whom_an_eviction_skips_it_names_with_the_true_reason() -> None:
    tale = full().row("model.pinned", "a").look()
    evict(tale, 2, skipped=((1, "pinned"),)).look()
    said = evict(full(), 2, skipped=((1, "pinned"),)).wrong()

    assert "run 1 was skipped as pinned, which it is not" in said


def test_a_leased_run_is_no_victim_but_a_lost_lease_protects_nothing() -> None:
    tale = full().serve(1, leader_alive=False, others=(2001,))
    tale.lease("a", 1, lost=True).look().lease("b", 2).look()
    evict(tale, 1).look()
    held = full().lease("b", 2).look().lease("a", 1).look()
    said = evict(held, 1, order=(2, 1)).wrong()

    stopped = full().lease("b", 2).look().lease("a", 1).look()
    stopped.leases = [stopped.held(2), stopped.held(1, lost=True)]  # by the very step that evicts
    lost = evict(stopped, 1, order=(2, 1)).wrong()

    assert "run 1 is evicted as if idle, 1 leases on it are held" in lost
    assert "run 1 is evicted as if idle, 1 leases on it are held" in said
    assert "run 1 of 'a' stops for room, 1 leases on it are held" in said


def test_a_run_that_drains_for_room_stops_when_its_last_lease_has_ended() -> None:
    tale = full().lease("b", 2).look().lease("a", 1).look()
    tale.row("usage.noted").row("run.evicting", run=1, for_run=3, leases=1).look()
    early = tale.row("run.stopping", run=1, reason="room").wrong()
    tale = full().lease("b", 2).look().lease("a", 1).look()
    tale.row("usage.noted").row("run.evicting", run=1, for_run=3, leases=1).look()
    tale.release(1).row("run.stopping", run=1, reason="room").look()

    assert "run 1 of 'a' stops for room, 1 leases on it are held" in early


@pytest.mark.parametrize("reason", ["room", "idle", "limits"])
def test_a_pinned_run_is_no_victim(reason: str) -> None:
    tale = full(max_loaded=2).define("a", ttl_s=0.5).row("model.pinned", "a").look(60)
    said = evict(tale, 1, reason=reason, for_run=3 if reason == "room" else None).wrong()

    assert "run 1 of 'a' is evicted, which is pinned" in said
    assert f"run 1 of 'a' stops for {reason}, it is pinned" in said


def test_a_run_stays_for_its_minimum_residency() -> None:
    tale = full(min_residency_s=30.0).look(30)
    evict(tale, 1).look()
    young = evict(full(min_residency_s=30.0), 1).wrong()

    assert "run 1 is evicted 2.0 s after it was ready, not 30.0" in young


def test_an_idle_run_is_evicted_after_its_time_counted_from_its_last_use() -> None:
    tale = Tale("a", spec={"ttl_s": 5.0}).load("a", 1).look(4).lease("a", 1).look().release(1)
    tale.look().look(4)
    early = evict(tale, 1, reason="idle", for_run=None).wrong()
    never = evict(Tale("a").load("a", 1).look(60), 1, reason="idle", for_run=None).wrong()
    late = Tale("a", spec={"ttl_s": 5.0}).load("a", 1).look(5)
    evict(late, 1, reason="idle", for_run=None).look()

    assert "run 1 is evicted idle for 4.0 s, not 5.0" in early
    assert "run 1 is evicted for idleness, 'a' has no ttl_s" in never


def test_an_idle_eviction_counts_no_leases_and_a_reason_is_one_of_those_that_are() -> None:
    tale = Tale("a", spec={"ttl_s": 0.0}).load("a", 1)
    leased = evict(tale, 1, reason="idle", for_run=None, leases=2).wrong()

    assert "run 1 is evicted for idleness with 2 leases" in leased
    assert "run 1 is evicted for 'fun'" in evict(full(), 1, reason="fun").wrong()


def test_nobody_is_evicted_for_a_run_that_does_not_wait_or_for_which_there_is_room() -> None:
    gone = full().row("run.abandoned", "c", 3).look()
    roomy = full(max_loaded=3)
    said = evict(full(), 1, reason="limits").wrong()

    assert "run 1 is evicted for run 3, which does not wait" in evict(gone, 1).wrong()
    assert "run 1 is evicted for run 3, for which there is room" in evict(roomy, 1).wrong()
    assert "run 1 is evicted for the limits and for run 3" in said


def test_an_eviction_saw_the_order_that_there_is() -> None:
    tale = full()
    evict(tale, 1).row("run.evicting", run=2, for_run=3, order=(1, 2), leases=1)
    tale.look()  # of two victims, the second saw the order from before the first went
    said = evict(full(), 1, order=(2, 1)).wrong()

    assert "the eviction saw the order (2, 1), but it is [1, 2]" in said


def test_the_order_of_use_is_that_of_entering_and_leaving() -> None:
    tale = full().lease("a", 1).look()
    tale.row("usage.noted", order=(2, 1)).look(1)
    tale.lease("b", 2).look(1).release(2).look(1).row("usage.noted", order=(1, 2)).look()
    entered = full().lease("a", 1).look(1).row("usage.noted", order=(1, 2)).wrong()
    left = full().lease("a", 1).look().lease("b", 2, caller=2).look(1).release(1).look(1).look(1)

    assert "order (1, 2), but 1 was used at 3.0, 2 at 1.0" in entered
    assert "order (1, 2), but 1 was used at 4.0, 2 at 3.0" in (
        left.row("usage.noted", order=(1, 2)).wrong()
    )


def test_a_lease_that_was_lost_is_a_use_until_it_is_found() -> None:
    def judged(**late: tuple[int, ...]) -> str:
        tale = full().lease("b", 2).look(1).release(2).look(1).look(1)
        tale.lease("a", 1).look(1).look(1, **late)
        return tale.row("usage.noted", order=(1, 2)).wrong()

    assert "order (1, 2), but 1 was used" in judged()
    assert judged(lingering=(2,)) == "nothing"


def test_what_an_earlier_owner_saw_of_use_is_what_it_wrote() -> None:
    tale = full().lease("a", 1).look(1).release(1)
    tale.owner += 1
    tale.row("service.opened").row("usage.noted", order=(1, 2)).look()
    said = tale.row("usage.noted", order=(2, 1)).wrong()

    assert "order (2, 1): 2 and 1 changed places unused" in said


def test_an_order_is_one_of_the_runs_that_are_ready() -> None:
    assert "order [1], but [1, 2] are ready" in full().row("usage.noted", order=(1,)).wrong()


def test_no_request_is_overtaken_for_ever() -> None:
    models = [f"m{n}" for n in range(OVERTAKEN + 2)]
    tale = Tale("slow", *models, max_loaded=100, ports=((18000, 18100),), memory_limit=1000)
    tale.queue("slow", 1).look()
    for n in range(OVERTAKEN):
        tale.queue(models[n], n + 2).reserve(n + 2, room_bytes=1).look()
    run = OVERTAKEN + 2
    said = tale.queue(models[OVERTAKEN], run).reserve(run, room_bytes=1).wrong()

    assert f"run 1 of 'slow' was overtaken {OVERTAKEN + 1} times" in said


def test_nobody_is_admitted_behind_one_that_waits_for_leases() -> None:
    def behind(*, drains: bool) -> str:
        tale = Tale("a", "big", "small", memory_limit=100, max_loaded=3)
        tale.load("a", 1, room_bytes=50).lease("a", 1).look().queue("big", 2).look()
        if drains:
            tale.row("usage.noted")
            tale.row("run.evicting", run=1, reason="memory", for_run=2, leases=1).look()
        return tale.queue("small", 3).reserve(3, room_bytes=10).wrong()

    assert behind(drains=True) == "run 3 is admitted past 2, for which 1 drains"
    assert behind(drains=False) == "nothing"


def test_where_only_places_count_the_first_who_asked_is_the_first() -> None:
    def second_first(**queued: Any) -> str:
        tale = Tale("a", "b").row("run.queued", "a", 1, **queued).queue("b", 2).look()
        return tale.reserve(2).wrong()

    restart = second_first(requested_by="restart")

    assert "run 1 of 'a' was overtaken 1 times" in second_first()
    assert restart == "nothing"  # who restarts unasked evicts nobody: others may pass
