"""The judge's rules of what callers are told."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.judging.callers import GRACE_S, TOLD_S, TOLD_STEPS
from simulation.judging.reasons import ERRORS
from simulation.telling import Tale

# --- leases ---


def test_a_lease_is_of_a_run_that_was_ready_and_of_the_model_asked_for() -> None:
    Tale("a").define("a", aliases=["small"]).load("a", 1).lease("small", 1).look()
    tale = Tale("a", "b").load("a", 1).queue("b", 2).reserve(2).look().launch(2)
    other = tale.lease("b", 1).wrong()
    tale.leases.clear()
    early = tale.lease("b", 2).wrong()

    assert "granted no model that 'b' stood for" in other
    assert "granted run 2, which was never ready" in early


def test_a_lease_is_granted_at_once_though_its_row_waits_for_the_disk() -> None:
    tale = Tale("a").queue("a", 1).reserve(1).look().launch(1)
    ready = tale.sight().published
    assert ready is not None
    ready["runs"][0]["stage"] = "ready"
    tale.lease("a", 1).look(unwritten=1, published=ready)
    loading = Tale("a").queue("a", 1).reserve(1).look().launch(1)

    assert "never ready" in loading.lease("a", 1).wrong()


def test_an_alias_may_have_stood_for_another_model_while_its_caller_waited() -> None:
    tale = Tale("a", "b").define("a", aliases=["x"]).load("a", 1)
    call = tale.call("lease", "x")
    tale.look().define("a").define("b", aliases=["x"]).look()
    lease = tale.held(1)
    tale.leases.append(lease)
    tale.answer(call, leases=(lease,)).look()
    tale.release(1).look()

    assert "granted no model that 'x' stood for" in tale.lease("x", 1).wrong()


def test_a_lease_says_the_port_and_the_run_that_there_are() -> None:
    tale = Tale("a").load("a", 1)

    assert "but run 1 is 'a' on (18000,)" in tale.lease("a", 1, port=18001).wrong()


def test_no_lease_of_a_run_that_ended_unless_it_says_that_it_is_lost() -> None:
    tale = Tale("a").load("a", 1)
    lost, held = tale.held(1, lost=True), tale.held(1)
    tale.stop(1)
    tale.answer(tale.call("lease", "a"), leases=(lost,)).look()
    said = tale.answer(tale.call("lease", "a"), leases=(held,)).wrong()

    assert "granted run 1, which is ok" in said


def test_a_dead_or_closed_service_grants_nothing() -> None:
    dead = Tale("a").load("a", 1).lease("a", 1).wrong(dead=True)
    closed = Tale("a").load("a", 1).lease("a", 1).wrong(open=False)

    assert "granted by a service that is dead or closed" in dead
    assert "granted by a service that is dead or closed" in closed


def test_a_run_that_was_taken_over_is_lent_once_it_answered() -> None:
    tale = Tale("a").load("a", 1).serve(1, answers=False)
    tale.row("service.opened").row("run.adopted", run=1, state="ready").look()
    early = tale.lease("a", 1).wrong()
    tale.release(1).serve(1).look().serve(1, answers=False).lease("a", 1).look()

    assert "granted run 1, which was taken over and did not answer yet" in early


def test_a_run_that_drains_is_granted_again_to_those_who_hold_it_only() -> None:
    tale = Tale("a").load("a", 1).lease("a", 1).look()
    tale.row("run.draining", run=1, leases=1).look().lease("a", 1).look()

    assert "granted run 1, which drains for operator" in tale.lease("a", 1, caller=2).wrong()


def test_a_held_model_is_not_lent() -> None:
    tale = Tale("a").load("a", 1).row("model.held", "a").look()
    said = tale.lease("a", 1).wrong()
    tale.release(1).row("model.reset", "a").look().lease("a", 1).look()

    assert "granted a lease of 'a', which is held" in said


@pytest.mark.parametrize("stage", ["stopping", "ended"])
def test_a_lease_that_is_not_lost_is_of_a_run_that_serves(stage: str) -> None:
    tale = Tale("a").load("a", 1).lease("a", 1).look()
    if stage == "stopping":
        tale.row("run.stopping", run=1, reason="forced")
    else:
        tale.end(1)

    assert f"caller 1 holds a lease of run 1: {stage}" in tale.wrong()


@pytest.mark.parametrize("reason", ["room", "reload", "operator", "remove"])
def test_no_lease_is_lost_while_its_server_lives_unless_somebody_forced_it(reason: str) -> None:
    def lost(*, force: bool) -> str:
        tale = Tale("a").load("a", 1).lease("a", 1).look()
        tale.call("stop", "a", caller=2, options={"force": force})
        tale.look()
        tale.leases = [tale.held(1, lost=True)]
        return tale.row("run.draining", run=1).row("run.stopping", run=1, reason=reason).wrong()

    forced = lost(force=True)

    assert f"caller 1 lost run 1, which lives ({reason})" in lost(force=False)
    assert ("nothing" in forced) == (reason in ("operator", "remove"))


def test_a_lease_is_lost_with_its_server_but_not_while_that_serves() -> None:
    tale = Tale("a").load("a", 1).lease("a", 1).look()
    tale.leases = [tale.held(1, lost=True)]
    said = tale.wrong()
    dead = Tale("a").load("a", 1).lease("a", 1).look().serve(1, leader_alive=False, others=(2001,))
    dead.leases = [dead.held(1, lost=True)]
    dead.look()

    assert said == "caller 1 lost run 1, which lives ()"


def test_several_at_once_are_all_granted_or_none() -> None:
    tale = Tale("a", "b").load("a", 1).load("b", 2)
    both = (tale.held(1), tale.held(2))
    tale.leases.extend(both)
    tale.answer(tale.call("lease_all", "a", "b"), leases=both).look()
    one = tale.answer(tale.call("lease_all", "a", "b"), leases=both[:1]).wrong()
    none = tale.answer(tale.call("lease_all", "a", "b")).wrong()

    assert "granted no model that 'b' stood for" in one
    assert "0 leases were granted" in none


# --- success ---


@pytest.mark.parametrize(
    ("verb", "rows", "said"),
    [
        ("remove", ("model.removed",), "no row says that 'a' was removed"),
        ("pin", ("model.pinned",), "no row says so of 'a'"),
        ("reset", ("model.reset",), "no row says that 'a' was reset"),
    ],
)
def test_what_was_told_is_in_the_rows(verb: str, rows: tuple[str, ...], said: str) -> None:
    good = Tale("a").row("model.held", "a").look()
    for kind in rows:
        good.row(kind, "a")
    good.ask(verb, "a").look()
    bad = Tale("a").row("model.held", "a").look()

    assert said in bad.ask(verb, "a").wrong()


def test_a_removal_that_was_told_while_the_disk_was_full_is_one_afterwards() -> None:
    def told() -> Tale:
        tale = Tale("a").load("a", 1).row("run.draining", run=1, reason="remove")
        tale.row("run.stopping", run=1, reason="remove").look().servers.clear()
        return tale.ask("remove", "a").look(unwritten=3, log_works=False)

    kept = told().end(1).row("model.removed", "a").look()
    told().end(1).row("model.removed", "a").define("a").look()
    lost = told().end(1).wrong()

    assert kept.book.models == {}
    assert "'a' is defined, though its removal was told" in lost


def test_unpin_is_told_when_it_is_so() -> None:
    Tale("a").ask("unpin", "a").look()
    pinned = Tale("a").row("model.pinned", "a").look()

    assert "no row says so of 'a'" in pinned.ask("unpin", "a").wrong()


def test_a_definition_is_told_when_the_rows_have_it_as_it_was_asked_for() -> None:
    Tale("a").ask("define", "a", options={"a": {"ttl_s": None, "aliases": ()}}).look()
    Tale().define("a", ttl_s=3.0).ask("define", "a").look()
    other = Tale("a").ask("define", "a", options={"a": {"ttl_s": 3.0}})

    assert "'b' is not defined" in Tale("a").ask("define", "b").wrong()
    assert "ttl_s of 'a' is None, not 3.0" in other.wrong()


def test_a_stop_is_told_when_all_that_ran_before_it_is_gone() -> None:
    tale = Tale("a").load("a", 1)
    call = tale.call("stop", "a")
    tale.look().stop(1).queue("a", 2).answer(call).look()
    runs = Tale("a").load("a", 1).ask("stop", "a")
    lives = Tale("a").load("a", 1)
    left = lives.servers[1]
    call = lives.call("stop", "a")
    lives.stop(1).servers[1] = left

    assert "run 1 is ready" in runs.wrong()
    assert "something of run 1 lives" in lives.answer(call).wrong()


def test_a_stop_that_holds_is_told_when_the_model_is_held() -> None:
    Tale("a").row("model.held", "a").ask("stop", "a", options={"hold": True}).look()

    assert "'a' is not held" in Tale("a").ask("stop", "a", options={"hold": True}).wrong()


def test_a_start_is_told_when_a_run_was_ready() -> None:
    tale = Tale("a").load("a", 1).ask("start", "a").look()
    call = tale.call("start", "a")
    tale.look().stop(1).answer(call, "LoadCancelledError").look()
    said = tale.ask("start", "a").wrong()

    assert "no run of 'a' was ready" in said


def test_limits_are_told_when_the_rows_have_them() -> None:
    Tale("a").ask("set_limits", options={"max_loaded": 2}).look()
    tale = Tale("a").row("limits.set", max_loaded=3, memory_limit=None, min_residency_s=0.0)
    tale.ask("set_limits", options={"max_loaded": 3}).look()
    unset = Tale("a").ask("set_limits", options={"max_loaded": 3})

    assert "max_loaded is 2, not 3" in unset.wrong()


def test_closed_and_open_are_told_when_they_are_so() -> None:
    tale = Tale("a").row("service.closed")
    tale.open = False
    tale.ask("close").look()
    tale.open = True
    tale.row("service.opened").ask("open").look()
    silent = Tale("a")
    silent.open = False

    assert "it is open" in Tale("a").ask("close").wrong()
    assert "no row says that it closed" in silent.ask("close").wrong()
    assert "no row says that it opened" in Tale("a").row("service.closed").ask("open").wrong()


# --- errors ---


@pytest.mark.parametrize("verb", sorted(set(ERRORS) - {"close", "open"}))
def test_a_verb_raises_only_what_its_contract_names(verb: str) -> None:
    said = Tale("a").ask(verb, "a", error="KeyError").wrong()

    assert f"{verb}(a) of caller 1 raised KeyError, which is not in its contract" in said


UNREASONED = (
    *("UnknownModelError", "ModelHeldError", "ModelUnavailableError"),
    *("LogUnavailableError", "ServiceClosedError", "ServiceFailedError", "LoadError"),
    *("LoadCancelledError", "StopFailedError", "WouldDeadlockError", "NoRoomError"),
    "PortPoolExhaustedError",
)


@pytest.mark.parametrize("error", UNREASONED)
def test_an_error_has_a_reason(error: str) -> None:
    said = Tale("a").ask("lease", "a", error=error).wrong()

    assert f"lease(a) of caller 1 raised {error}, for which there was no reason" in said


def broke(tale: Tale) -> Tale:
    return tale.queue("a", 1).reserve(1).row("run.released", run=1, outcome="failed: prepare")


REASONS: dict[str, Any] = {
    "ModelHeldError": lambda t: t.row("model.held", "a"),
    "ModelUnavailableError": lambda t: broke(t).row("model.backoff", "a", 1, attempts=1),
    "LoadError": broke,
    "LoadCancelledError": lambda t: t.queue("a", 1).row("run.abandoned", "a", 1),
    "UnknownModelError": lambda t: t.row("model.removed", "a"),
    "NoRoomError": lambda t: t.row("model.pinned", "b"),
}


@pytest.mark.parametrize("error", sorted(REASONS))
def test_a_reason_that_was_there_while_its_caller_waited_is_one(error: str) -> None:
    tale = Tale("a", "b")
    call = tale.call("lease", "a")
    REASONS[error](tale.look()).look().answer(call, error).look()
    later = REASONS[error](Tale("a", "b")).look()
    if error == "UnknownModelError":
        later.define("a").look()
    elif error in ("ModelHeldError", "ModelUnavailableError"):
        later.row("model.reset", "a").look()
    elif error == "NoRoomError":
        later.row("model.unpinned", "b").look()

    assert "there was no reason" in later.ask("lease", "a", error=error).wrong()


def test_a_deadline_is_over_when_a_caller_is_told_so() -> None:
    tale = Tale("a")
    call = tale.call("lease", "a", deadline=5.0)
    tale.look().look(5).answer(call, "WaitTimeoutError").look()
    call = tale.call("lease", "a", deadline=11.0)
    tale.look().look(5)

    assert "there was no reason" in tale.answer(call, "WaitTimeoutError").wrong()


def test_trouble_with_the_log_and_the_end_of_a_service_are_told_when_they_are() -> None:
    Tale("a").ask("pin", "a", error="LogUnavailableError").look(log_works=False)
    Tale("a").ask("lease", "a", error="ServiceFailedError").look(dead=True)
    tale = Tale("a")
    tale.call("close", caller=2)
    tale.ask("lease", "a", error="ServiceClosedError").look()

    assert "no reason" in Tale("a").ask("pin", "a", error="LogUnavailableError").wrong()


def test_what_could_not_be_stopped_is_told_to_those_who_want_it() -> None:
    tale = Tale("a", "b").load("a", 1).row("run.stopping", run=1).row("run.stop_failed", run=1)
    tale.look().ask("lease", "a", error="StopFailedError").look()

    assert "no reason" in tale.ask("lease", "b", error="StopFailedError").wrong()


def test_only_who_holds_leases_would_wait_for_himself() -> None:
    tale = Tale("a", "b", max_loaded=1).load("a", 1).lease("a", 1).look()
    tale.ask("lease", "b", error="WouldDeadlockError").look()
    own = tale.ask("lease", "a", error="WouldDeadlockError").wrong()

    assert "no reason" in own
    assert "no reason" in tale.ask("lease", "b", caller=2, error="WouldDeadlockError").wrong()


def test_ports_are_out_when_strangers_and_runs_have_them_all() -> None:
    tale = Tale("a", "b", ports=((18000, 18001),)).load("a", 1)
    tale.ask("lease", "b", error="PortPoolExhaustedError").look(strangers={18001: 7})
    tale.row("port.blocked", port=18001).ask("lease", "b", error="PortPoolExhaustedError").look()

    assert "no reason" in tale.ask("lease", "b", error="PortPoolExhaustedError").wrong()


# --- in time ---


@pytest.mark.parametrize("verb", ["lease", "stop"])
def test_every_call_is_answered_by_its_deadline(verb: str) -> None:
    tale = Tale("a")
    call = tale.call(verb, "a", deadline=10.0)
    tale.look(10 + GRACE_S)
    said = tale.wrong(0.5)
    tale.answer(call, "WaitTimeoutError").look()

    assert f"{verb}(a) of caller 1 is not answered 2.5 s after its deadline" in said


@pytest.mark.parametrize("heard", [True, False])
def test_a_failed_load_is_told_to_all_who_waited_for_it(heard: bool) -> None:
    tale = Tale("a")
    call = tale.call("lease", "a", deadline=1e9, heard=heard)
    tale.look()
    broke(tale).look()
    last = late(tale)
    tale.calls.remove(call)

    assert last == ("lease(a) of caller 1 waits though run 1 failed" if heard else "nothing")


def late(tale: Tale) -> str:
    """Let steps and time pass until whoever should know something does."""
    for _ in range(TOLD_STEPS):
        tale.look()
    return tale.wrong(TOLD_S + 1)


@pytest.mark.parametrize(
    ("stage", "caller", "due"),
    [("load", 1, False), ("load", 2, True), ("port", 1, True)],
    ids=["of the run before", "of the run", "passed on"],
)
def test_who_waits_for_a_run_that_still_stops_hears_of_that_one(
    stage: str, caller: int, due: bool
) -> None:
    tale = Tale("a").queue("a", 1).reserve(1).look().launch(1)
    tale.call("lease", "a", caller=1, deadline=1e9)
    tale.look()
    del tale.servers[1]
    tale.row("run.exited", run=1, wanted=False, stage=stage).look()
    tale.call("lease", "a", caller=2, deadline=1e9)
    tale.row("run.fetching", "a", 2).look().look()
    tale.row("run.abandoned", "a", 2, outcome="failed: fetch").look()
    tale.calls = [call for call in tale.calls if call.caller == caller]
    last = late(tale)

    assert last == (f"lease(a) of caller {caller} waits though run 2 failed" if due else "nothing")


@pytest.mark.parametrize("exits", [False, True])
def test_who_waits_for_a_run_that_is_loaded_anew_hears_of_the_next_one(exits: bool) -> None:
    tale = Tale("a").queue("a", 1).reserve(1).look().launch(1)
    call = tale.call("lease", "a", deadline=1e9)
    tale.look().row("run.stopping", run=1, reason="reload").look()
    if exits:
        del tale.servers[1]
        tale.row("run.exited", run=1, wanted=False, stage="exit").look()
    tale.row("run.fetching", "a", 2).look().look()
    tale.row("run.abandoned", "a", 2, outcome="failed: fetch").look()
    last = late(tale)
    tale.calls.remove(call)

    assert last == "lease(a) of caller 1 waits though run 2 failed"


def test_who_waits_for_a_run_hears_of_the_one_in_its_place_while_an_older_one_stops() -> None:
    tale = Tale("a").queue("a", 1).reserve(1).look().launch(1).look()
    del tale.servers[1]
    tale.row("run.exited", run=1, wanted=False, stage="load").look()
    call = tale.call("lease", "a", deadline=1e9)
    tale.row("run.fetching", "a", 2).look().look()
    tale.row("run.abandoned", "a", 2, outcome="cancelled", error="reload")
    tale.row("run.fetching", "a", 3).look().look()
    tale.row("run.abandoned", "a", 3, outcome="failed: fetch").look()
    last = late(tale)
    tale.calls.remove(call)

    assert last == "lease(a) of caller 1 waits though run 3 failed"


def test_who_waits_for_a_run_has_it_when_it_is_ready() -> None:
    tale = Tale("a").define("a", aliases=["x"]).queue("a", 1)
    call = tale.call("lease", "x", deadline=1e9)
    tale.reserve(1).look().launch(1).row("run.ready", run=1).look()
    tale.call("lease", "a", caller=2, deadline=1e9)  # came later: it has no claim on that step
    said = late(tale)
    tale.calls.remove(call)

    assert said == "lease(x) of caller 1 waits though run 1 was ready"
    assert late(tale) == "nothing"


def test_who_holds_a_run_that_drains_has_it_again_at_once() -> None:
    tale = Tale("a").load("a", 1).lease("a", 1).row("run.draining", run=1, leases=1).look()
    call = tale.call("lease", "a", caller=2, deadline=1e9)
    other = late(tale.look())
    tale.calls.remove(call)
    tale.call("lease", "a", deadline=1e9)

    assert other == "nothing"
    assert late(tale.look()) == "lease(a) of caller 1 waits though he holds it already"


@pytest.mark.parametrize("state", ["held", "failed", "stop_failed"])
def test_a_lease_of_what_is_not_lent_is_refused_at_once(state: str) -> None:
    tale = Tale("a", spec={"crash_budget": 1})
    match state:
        case "held":
            tale.row("model.held", "a")
        case "failed":
            broke(tale).row("model.failed", "a", 1, attempts=1)
        case _:
            tale.load("a", 1).row("run.stopping", run=1).row("run.stop_failed", run=1)
    tale.look().call("lease", "a", deadline=1e9)

    assert late(tale.look()) == f"lease(a) of caller 1 waits though 'a' is {state}"


def test_who_came_after_the_failure_waits_for_the_next_run() -> None:
    tale = Tale("a").queue("a", 1).reserve(1).look().launch(1)
    tale.servers.clear()
    tale.row("run.exited", run=1, wanted=False, stage="load").look()
    tale.call("lease", "a", deadline=1e9)
    tale.look().row("run.swept", run=1).row("run.released", run=1, outcome="failed: load").look()
    for _ in range(TOLD_STEPS + 1):
        tale.look(TOLD_S)
