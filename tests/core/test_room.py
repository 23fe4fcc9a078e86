"""Room: who is admitted, who goes for whom, who is passed over and why."""

from __future__ import annotations

import pytest

from core.making import Core, spec
from moorage.core import decide, room, space
from moorage.core import events as ev
from moorage.core.draft import Draft
from moorage.core.room import Observed, Usage


def _core(*names: str, **limits: object) -> Core:
    core = Core(**limits)  # type: ignore[arg-type]
    core.define(*names)
    return core


def test_what_fits_is_reserved_in_the_order_of_the_queue() -> None:
    core = _core("a", "b", "c")
    for name in "abc":
        core.want(name)

    assert [core.stage(n) for n in "abc"] == ["reserved", "reserved", "queued"]


def test_the_least_recently_used_idle_run_goes_and_the_reason_says_all() -> None:
    core = _core("a", "b", "c")
    a, b = core.load("a"), core.load("b")
    core.use(a, 0)
    run = core.want("c")
    [event] = core.told(ev.RunEvicting)

    assert (event.model, event.reason, event.for_run, event.leases) == ("b", "room", run, 0)
    assert event.order == (b, a)
    assert core.state.runs[run].displaced == (b,)
    assert core.told(ev.UsageNoted)[0].leases == ((a, 1),)


def test_what_is_to_be_removed_gives_way_to_nobody_any_more() -> None:
    core = _core("a", "b", max_loaded=1)
    core.use(core.load("a"), 1)
    run = core.want("b")
    before = core.state.runs[run].displaced
    core.decide(lambda d: decide.remove(d, "a", force=False, leases=1))

    assert len(before) == 1
    assert core.state.runs[run].displaced == ()


def test_what_becomes_ready_in_a_decision_is_the_last_in_the_order_of_use() -> None:
    core = _core("a", "b")
    a, b = core.load("a"), core.want("b")
    core.launch(b)
    draft = core.draft()
    draft.emit(ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0))
    decide.ready(draft, b, 0)
    room.schedule(draft, core.observed())
    core.keep(draft)
    [event] = core.told(ev.RunEvicting)

    assert (event.run, event.order) == (a, (a, b))
    assert core.state.lru == (b,)


def test_older_runs_that_are_leased_are_named_where_a_younger_one_is_evicted() -> None:
    core = _core("a", "b", "c", "d", max_loaded=3)
    a, b = core.load("a"), core.load("b")
    core.load("c")
    core.use(a, 1)
    core.use(b, 0)
    core.use(3, 0)
    core.decide(lambda d: d.emit(ev.LimitsSet(max_loaded=2, memory_limit=None, min_residency_s=0)))
    core.schedule()
    core.end(b)
    core.want("d")
    evicted = core.told(ev.RunEvicting)

    assert [(event.reason, event.model) for event in evicted] == [("limits", "b"), ("room", "c")]
    assert [event.skipped for event in evicted] == [((a, "leased"),)] * 2


def test_an_older_run_whose_room_is_not_needed_stays_and_is_named() -> None:
    core = Core(max_loaded=3, memory_limit=100)
    for name, memory in (("small", 10), ("big", 80), ("other", 80)):
        core.decide(lambda d, n=name, m=memory: decide.define(d, spec(n, memory=m), ""))
    small, big = core.load("small"), core.load("big")
    core.use(small, 0)
    core.use(big, 0)
    core.want("other")
    [evicted] = core.told(ev.RunEvicting)

    assert evicted.run == big
    assert evicted.order == (small, big)
    assert evicted.skipped == ((small, "its room is not needed"),)


def test_a_claim_on_room_that_is_coming_is_kept_and_the_rest_of_the_queue_goes_on() -> None:
    core = _core("a", "b", "c", "d")
    core.load("a")
    core.load("b")
    core.want("c")
    core.want("d")

    assert [core.stage(n) for n in "abcd"] == ["stopping", "stopping", "queued", "queued"]
    core.end(1)
    core.schedule()
    assert core.stage("c") == "reserved"


def test_behind_one_that_waits_for_leases_nobody_is_admitted() -> None:
    core = _core("a", "b", "c", max_loaded=1)
    a = core.load("a")
    core.use(a, 1)
    core.want("b")
    core.want("c")
    drains = core.stage("a")
    again = core.schedule()

    assert drains == "draining"
    assert again.refused == []
    assert len(core.told(ev.RunEvicting)) == 1  # looked at again, it is the same drain
    core.usage[a] = Usage(0, 1.0, 0.0, 1)
    core.schedule()
    core.end(a)
    core.schedule()
    assert [core.stage(n) for n in "abc"] == [None, "reserved", "queued"]


def test_memory_decides_with_the_smallest_set_of_victims() -> None:
    core = Core(max_loaded=9, memory_limit=100, ports=(18000, 18009))
    for name, memory in (("a", 10), ("b", 60), ("c", 20), ("d", 60)):
        core.decide(lambda d, n=name, m=memory: decide.define(d, spec(n, memory=m), ""))
    for name in "abc":
        core.load(name)
    core.want("d")

    assert [(e.model, e.reason) for e in core.told(ev.RunEvicting)] == [("b", "memory")]


def test_more_memory_than_there_is_is_refused_by_the_limits_alone() -> None:
    core = Core(memory_limit=100)
    core.decide(lambda d: decide.define(d, spec("a", memory=200), ""))
    run: int = core.decide(lambda d: decide.request(d, "a", "x", start=False)).run
    [refused] = core.schedule().refused

    assert (refused.run, refused.why, refused.holders) == (run, "room", ())
    assert core.told(ev.RunAbandoned)[0].error == "no room, held by the limits alone"


def test_pins_and_what_cannot_be_stopped_are_named() -> None:
    core = _core("a", "b", "c")
    a = core.load("a")
    core.decide(lambda d: decide.pin(d, "a", pinned=True))
    b = core.load("b")
    core.decide(lambda d: decide.stop(d, b, "operator", force=True, leases=0))
    core.decide(lambda d: decide.stop_failed(d, b, (1,), "x"))
    core.decide(lambda d: decide.request(d, "c", "x", start=False))
    [refused] = core.schedule().refused

    assert a in core.state.lru
    assert refused.holders == ("a (pinned)", "b (could not be stopped)")


def test_several_models_fit_or_do_not_fit_as_a_whole() -> None:
    core = _core("a", "b", "c")
    a = core.load("a")

    assert space.could_ever_fit(core.state, "a", "b")
    assert not space.could_ever_fit(core.state, "a", "b", "c")
    assert space.could_ever_fit(core.state, "b", without=frozenset({a}))
    assert not space.could_ever_fit(core.state, "b", "c", without=frozenset({a}))


def test_a_young_run_is_passed_over_and_looked_at_again_when_it_is_old_enough() -> None:
    core = _core("a", "b", max_loaded=1, min_residency_s=30.0)
    core.load("a")
    core.decide(lambda d: decide.request(d, "b", "x", start=False))
    outcome = core.schedule()

    assert core.stage("a") == "ready"
    assert outcome.look_at == 30.0


def test_what_is_not_observed_yet_or_not_proven_is_no_victim() -> None:
    core = _core("a", "b", max_loaded=1)
    a = core.load("a")
    core.decide(lambda d: decide.request(d, "b", "x", start=False))
    unproven = core.schedule(unproven=frozenset({a}))
    unseen: room.Outcome = core.decide(lambda d: room.schedule(d, Observed(now=core.now, usage={})))

    assert core.stage("a") == "ready"
    assert unproven.look_at is None
    assert unseen.look_at == core.now


def test_what_is_kept_for_an_older_request_is_passed_over_and_so_is_its_asker() -> None:
    core = _core("a", "b", "c", max_loaded=2)
    a = core.load("a")
    b = core.load("b")
    core.use(b, 1)
    core.decide(lambda d: decide.request(d, "c", "x", start=False))
    run = core.state.models["c"].run
    core.schedule(kept={run: frozenset({a, b})})

    assert core.stage("c") == "queued"
    assert not core.told(ev.RunEvicting)


def test_one_that_may_evict_nobody_is_passed_and_comes_last() -> None:
    core = _core("a", "b", "c", max_loaded=1)
    core.load("a")
    unasked = core.want("b", immobile=frozenset({2}))
    core.want("c", immobile=frozenset({unasked}))
    evicted = [e.for_model for e in core.told(ev.RunEvicting)]
    core.end(1)
    core.schedule(immobile=frozenset({unasked}))

    assert evicted == ["c"]
    assert [core.stage(n) for n in "bc"] == ["queued", "reserved"]


def test_one_that_nobody_asked_for_waits_for_pins_and_holds_nobody_up() -> None:
    core = Core(max_loaded=2, memory_limit=100)
    for name, memory in (("a", 60), ("b", 60), ("c", 30), ("d", 30)):
        core.decide(lambda d, n=name, m=memory: decide.define(d, spec(n, memory=m), ""))
    core.load("a")
    core.decide(lambda d: decide.pin(d, "a", pinned=True))
    unasked = core.want("b", immobile=frozenset({2}))
    core.looks = {"immobile": frozenset({unasked})}
    core.load("c")
    core.want("d")
    evicted = [(e.model, e.for_model) for e in core.told(ev.RunEvicting)]
    still = core.stage("b")
    core.looks = {}
    [refused] = core.schedule().refused

    assert evicted == [("c", "d")]
    assert still == "queued"
    assert refused.run == unasked  # asked for by now


def test_one_that_nobody_asked_for_waits_for_ports_and_holds_nobody_up() -> None:
    core = Core(ports=(18000, 18002), max_loaded=4)
    core.decide(lambda d: decide.define(d, spec("big", ports=3), ""))
    core.define("a", "b")

    def blocked(port: int) -> ev.PortBlocked | None:
        return ev.PortBlocked(port=port, pid=7, command="nginx") if port == 18002 else None

    a = core.load("a")
    core.looks = {"immobile": frozenset({2, 3}), "blocked": blocked}
    core.want("big")
    b = core.want("b")
    waits = core.stage("big")
    told = core.told(ev.PortBlocked)
    core.decide(lambda d: decide.cancel(d, b, "operator"))
    core.decide(lambda d: decide.stop(d, a, "operator", force=True, leases=0))
    core.end(a)
    core.looks = {"immobile": frozenset({2})}
    core.schedule()

    assert waits == "queued"
    assert core.told(ev.RunReserved)[1].model == "b"
    assert not told  # else each look would add to the log, for as long as it waits
    assert core.stage("big") == "reserved"


def test_a_victim_spared_for_this_request_is_not_drained_again() -> None:
    core = _core("a", "b", max_loaded=1)
    a = core.load("a")
    core.use(a, 1)
    core.decide(lambda d: decide.request(d, "b", "x", start=False))
    run = core.state.models["b"].run
    core.schedule(spared=frozenset({(a, run)}))
    spared = core.stage("a")
    core.schedule()

    assert spared == "ready"
    assert core.stage("a") == "draining"


def test_a_drain_goes_over_to_the_request_that_comes_first_now() -> None:
    core = _core("a", "b", "c", max_loaded=1)
    a = core.load("a")
    core.use(a, 1)
    first = core.want("b")
    core.want("c")
    core.decide(lambda d: decide.cancel(d, first, "nobody waits"))
    core.schedule()

    assert core.stage("a") == "draining"
    assert [e.for_model for e in core.told(ev.RunEvicting)] == ["b", "c"]
    assert [e.reason for e in core.told(ev.RunReopened)] == ["wanted by another request"]


@pytest.mark.parametrize("how", ["left", "elsewhere"])
def test_a_drain_without_a_reason_is_undone_at_its_exact_place(how: str) -> None:
    core = _core("a", "b", "c")
    a, b = core.load("a"), core.load("b")
    core.use(a, 1)
    core.now += 1
    core.use(b, 1)
    run = core.want("c")
    order = core.state.lru
    if how == "left":
        core.decide(lambda d: decide.cancel(d, run, "nobody waits"))
    else:
        core.usage[b] = Usage(0, core.now, 0.0, 1)
    core.schedule()
    reasons = {"left": "the request left", "elsewhere": "room was found elsewhere"}

    assert core.stage("a") == "ready"
    assert core.told(ev.RunReopened)[0].reason == reasons[how]
    assert [r for r in order if r in core.state.lru] == list(core.state.lru)


def test_a_drain_for_another_reason_is_no_candidate_and_is_not_undone() -> None:
    core = _core("a", "b", max_loaded=1)
    a = core.load("a")
    core.use(a, 1)
    core.decide(lambda d: decide.stop(d, a, "operator", force=False, leases=1))
    core.want("b")

    assert core.stage("a") == "draining"
    assert not core.told(ev.RunEvicting)


def test_no_free_port_is_refused_with_the_holders_unless_one_is_coming() -> None:
    core = Core(ports=(18000, 18001), max_loaded=3)
    core.define("a", "b", "c", "d")
    core.load("a")
    b = core.load("b")
    core.decide(lambda d: decide.request(d, "c", "x", start=False))
    [refused] = core.schedule().refused
    core.decide(lambda d: decide.stop(d, b, "operator", force=True, leases=0))
    core.want("c")
    waits = core.stage("c")
    core.end(b)
    core.schedule()

    assert (refused.why, refused.holders) == ("ports", ("a (18000)", "b (18001)"))
    assert waits == "queued"
    assert core.stage("c") == "reserved"


def test_one_that_finds_no_port_does_not_keep_the_next_from_its_own() -> None:
    core = Core(ports=(18000, 18001), max_loaded=3)
    core.decide(lambda d: decide.define(d, spec("big", ports=5), ""))
    core.define("a")
    core.decide(lambda d: decide.request(d, "big", "x", start=False))
    core.decide(lambda d: decide.request(d, "a", "x", start=False))
    core.schedule()

    assert (core.stage("big"), core.stage("a")) == (None, "reserved")


def test_several_ports_are_taken_and_those_of_strangers_skipped() -> None:
    core = Core()
    core.decide(lambda d: decide.define(d, spec("a", ports=2), ""))

    def blocked(port: int) -> ev.PortBlocked | None:
        if port != 18000:
            return None
        return ev.PortBlocked(port=port, pid=7, command="nginx")

    run = core.want("a", blocked=blocked)

    assert core.state.runs[run].ports == (18001, 18002)
    assert list(core.state.free) == [18003, 18000]


def test_lowered_limits_evict_the_idle_first_and_drain_of_the_leased_no_more_than_needed() -> None:
    core = _core("a", "b", "c", max_loaded=3)
    a, b, c = core.load("a"), core.load("b"), core.load("c")
    core.use(a, 1)
    core.use(b, 1)
    core.decide(lambda d: d.emit(ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0)))
    core.schedule()
    first = [core.stage(n) for n in "abc"]
    core.schedule()

    assert c in core.state.runs
    assert first == ["draining", "ready", "stopping"]
    assert len(core.told(ev.RunEvicting)) == 2
    assert core.told(ev.RunEvicting)[0].for_run is None


def test_lowered_limits_take_what_they_can_get_beside_pins() -> None:
    core = _core("a", "b", "c", max_loaded=3)
    core.load("a")
    core.load("b")
    core.load("c")
    for name in "ab":
        core.decide(lambda d, n=name: decide.pin(d, n, pinned=True))
    core.decide(lambda d: d.emit(ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0)))
    core.schedule()

    assert [core.stage(n) for n in "abc"] == ["ready", "ready", "stopping"]


def test_lowered_limits_wait_for_the_run_that_is_yet_to_prove_itself() -> None:
    core = _core("a", "b", max_loaded=2)
    core.load("a")
    b = core.load("b")
    core.decide(lambda d: d.emit(ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0)))
    core.schedule(unproven=frozenset({b}))
    before = [core.stage(n) for n in "ab"]
    core.schedule()

    assert before == ["ready", "ready"]
    assert [core.stage(n) for n in "ab"] == ["stopping", "ready"]


def test_a_drain_undone_in_the_decision_that_ended_its_request_names_it_as_the_cause() -> None:
    core = _core("a", "b", max_loaded=1)
    a = core.load("a")
    core.use(a, 1)
    run = core.want("b")

    def leave(draft: Draft) -> None:
        decide.cancel(draft, run, "nobody waits")
        room.schedule(draft, core.observed())

    core.decide(leave)
    ended, reopened = core.entries[-2:]

    assert (ended.event.kind, reopened.event.kind) == ("run.abandoned", "run.reopened")
    assert reopened.cause == ended.seq


def test_an_idle_run_expires_at_its_time_and_not_while_it_is_to_stay() -> None:
    core = Core(min_residency_s=10.0)
    core.define("a", ttl_s=5.0)
    core.define("b")
    a, b = core.load("a"), core.load("b")

    def expired(run: int) -> bool:
        answer: bool = core.decide(lambda d: room.expire(d, run, core.observed()))
        return answer

    early = expired(a)
    core.now = 20.0
    core.use(a, 1)
    leased = expired(a)
    core.usage[a] = Usage(0, 5.0, 0.0, 1)
    core.decide(lambda d: decide.pin(d, "a", pinned=True))
    pinned = expired(a)
    core.decide(lambda d: decide.pin(d, "a", pinned=False))

    assert (early, leased, pinned, expired(b), expired(99)) == (False,) * 5
    assert expired(a)
    assert core.told(ev.RunEvicting)[-1].reason == "idle"


def test_usage_is_noted_once_and_only_when_it_changed() -> None:
    core = _core("a", "b")
    a, b = core.load("a"), core.load("b")
    nothing = core.decide(lambda d: room.note_usage(d, core.observed()))
    core.use(a, 0)
    changed = core.decide(lambda d: room.note_usage(d, core.observed()))
    again = core.decide(lambda d: room.note_usage(d, core.observed()))
    unseen = core.decide(lambda d: room.note_usage(d, Observed(now=0, usage={})))

    assert (nothing, changed, again, unseen) == (False, True, False, False)
    assert core.state.lru == (b, a)
    assert core.state.runs[a].leases == 1


def test_a_learned_need_beyond_the_limit_is_all_of_it() -> None:
    core = _core("a", memory_limit=10)
    run = core.load("a")
    core.exit(run)
    core.sweep(run, peak=20)

    assert space.need_bytes(core.state, "a") == 10
    assert core.stage("a") is None
    core.decide(lambda d: decide.reset(d, "a", "operator"))
    core.want("a")
    assert core.stage("a") == "reserved"
