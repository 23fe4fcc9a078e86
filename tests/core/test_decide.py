"""Decisions about models and runs, one by one: what is refused, what changes nothing, what ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from core.making import Core, spec
from moorage import (
    ModelHeldError,
    ModelUnavailableError,
    NameClashError,
    StopFailedError,
    UnknownModelError,
)
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.draft import Draft, later, seconds_between
from moorage.core.fold import FoldError
from moorage.core.lifecycle import TABLE, LifecycleError, Stage, step
from moorage.core.pace import Fetching
from moorage.core.snapshot import state_from_data, state_to_data
from moorage.spec import ModelSpec

Fact = Callable[[Draft], Any]


def _about(run: int) -> dict[str, Fact]:
    """Everything that can be told or asked of a run."""
    return {
        "fetched": lambda d: decide.fetched(
            d, run, path="p", commit="c", files=(), fetched_bytes=0
        ),
        "fetch_noted": lambda d: decide.fetch_noted(
            d, run, Fetching(at=0, done_bytes=1, total_bytes=2)
        ),
        "fetch_failed": lambda d: decide.fetch_failed(d, run, "x"),
        "prepared": lambda d: decide.prepared(d, run, argv=(), nonce="n", log_file="f"),
        "not_spawned": lambda d: decide.not_spawned(d, run, "launch", "x"),
        "launched": lambda d: decide.launched(
            d, run, pid=1, group=1, session=1, start_ticks=1, boot_id="boot"
        ),
        "ready": lambda d: decide.ready(d, run, 0),
        "not_ready": lambda d: decide.not_ready(d, run, "ready", "x"),
        "exited": lambda d: decide.exited(d, run, code=0, signal=None, log_tail=()),
        "swept": lambda d: decide.swept(d, run, pids=(), seconds=0, peak_bytes=None),
        "stop_failed": lambda d: decide.stop_failed(d, run, (), "x"),
        "stop": lambda d: decide.stop(d, run, "operator", force=False, leases=0),
        "cancel": lambda d: decide.cancel(d, run, "x"),
        "drained": lambda d: decide.drained(d, run),
        "reopen": lambda d: decide.reopen(d, run, "x"),
        "unhealthy": lambda d: decide.unhealthy(d, run, "x", leases=0),
        "stop_again": lambda d: decide.stop_again(d, run, "operator"),
        "recover": lambda d: decide.recover(d, run, same_boot=True, alive=False),
    }


NAMES = tuple(_about(0))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_told_of_a_run_that_has_ended_changes_nothing(name: str) -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=0))
    core.end(run)
    before = core.state.seq

    assert core.decide(_about(run)[name]) is False
    assert core.state.seq == before


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"cancel", "stop", "recover"}))
def test_what_does_not_fit_a_queued_run_changes_nothing(name: str) -> None:
    core = Core(max_loaded=1)
    core.define("a", "b")
    core.load("a", leases=1)
    core.use(1, 1)
    run = core.want("b")
    before = core.state.seq

    assert core.decide(_about(run)[name]) is False
    assert core.state.seq == before


FITS_READY = {"exited", "stop", "unhealthy", "recover"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - FITS_READY))
def test_what_does_not_fit_a_ready_run_changes_nothing(name: str) -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    before = core.state.seq

    assert core.decide(_about(run)[name]) is False
    assert core.state.seq == before


def test_a_stop_of_what_stops_already_changes_nothing() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.exit(run)

    assert core.decide(_about(run)["stop"]) is False
    assert core.decide(_about(run)["exited"]) is False
    assert core.decide(_about(run)["not_spawned"]) is False


def test_a_model_that_is_not_about_to_start_by_itself_need_not_be_told_to_stay_down() -> None:
    core = Core()
    core.define("a", restart="always")
    core.load("a")
    before = core.state.seq

    core.decide(lambda d: decide.stay_down(d, "a"))

    assert core.state.seq == before


def test_what_stops_for_a_failure_is_told_once_that_it_stays_down() -> None:
    core = Core()
    core.define("a", restart="always")
    run = core.want("a")
    core.launch(run)
    core.decide(lambda d: decide.not_ready(d, run, "ready", "x"))

    for _ in range(2):
        core.decide(lambda d: decide.stay_down(d, "a"))

    stops = [each.event for each in core.entries if isinstance(each.event, ev.RunStopping)]
    assert [(stop.reason, stop.stage, stop.error) for stop in stops] == [
        ("failed", "ready", "x"),
        ("operator", "ready", "x"),
    ]


# --- models ---


def test_the_same_definition_again_changes_nothing() -> None:
    core = Core()
    new = spec("a", aliases=("first",))

    assert core.decide(lambda d: decide.define(d, new, "hash")) is True
    assert core.decide(lambda d: decide.define(d, new, "hash")) is False
    assert core.decide(lambda d: decide.define(d, new, "other")) is True
    assert core.decide(lambda d: decide.outdated(d, core.state.models["a"], None)) == []


def test_a_name_of_another_model_or_of_one_that_is_being_removed_is_refused() -> None:
    core = Core()
    core.define("a", aliases=("first",))
    run = core.load("a")
    with pytest.raises(NameClashError):
        core.decide(lambda d: decide.define(d, spec("b", aliases=("first",)), ""))
    core.decide(lambda d: decide.remove(d, "a", force=False, leases=1))
    with pytest.raises(NameClashError, match="being removed"):
        core.decide(lambda d: decide.define(d, spec("a"), ""))
    with pytest.raises(UnknownModelError):
        core.decide(lambda d: decide.resolve(d, "first"))
    leaving = core.decide(lambda d: decide.leaving(d, "a"))
    core.decide(lambda d: decide.drained(d, run))
    core.end(run)

    assert leaving
    assert core.state.models == {}
    assert core.state.names == {}


def test_an_unknown_name_is_told_what_is_near() -> None:
    core = Core()
    core.define("llama-small", "llama-large", "other")
    with pytest.raises(UnknownModelError) as caught:
        core.decide(lambda d: decide.resolve(d, "llamb"))

    assert caught.value.near == ("llama-large", "llama-small")


def test_pins_are_told_once_and_follow_the_definition() -> None:
    core = Core()
    core.define("a", pinned=True)

    assert core.decide(lambda d: decide.pin(d, "a", pinned=True)) is False
    core.define("a", pinned=False)
    assert core.decide(lambda d: decide.pin(d, "a", pinned=True)) is True
    assert [e.kind for e in core.told(ev.ModelPinned, ev.ModelUnpinned)] == [
        "model.pinned",
        "model.unpinned",
        "model.pinned",
    ]


def test_hold_and_reset_are_told_once() -> None:
    core = Core()
    core.define("a")

    assert core.decide(lambda d: decide.reset(d, "a", "x")) is False
    assert core.decide(lambda d: decide.hold(d, "a", "x")) is True
    assert core.decide(lambda d: decide.hold(d, "a", "x")) is False
    with pytest.raises(ModelHeldError):
        core.want("a")
    core.want("a", start=True)
    assert core.state.models["a"].status == "stopped"


def test_a_reset_forgets_what_failed() -> None:
    core = Core()
    core.define("a", crash_budget=1)
    core.end(core.load("a"))
    failed = core.state.models["a"].status
    told = core.decide(lambda d: decide.reset(d, "a", "operator"))

    assert (failed, told) == ("failed", True)
    assert core.state.models["a"].status == "stopped"
    assert core.state.models["a"].last is None


def test_runs_are_outdated_when_what_they_were_launched_with_has_changed() -> None:
    core = Core()
    core.define("a", "b")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=1))
    core.load("b")
    waits = core.want("a")  # it takes the spec that it finds when it reserves
    old = core.state.models["a"]

    def outdated() -> list[int]:
        draft = core.draft()
        return [r.run for r in decide.outdated(draft, core.state.models["a"], old)]

    core.decide(lambda d: decide.define(d, spec("a", ttl_s=5), ""))
    same = outdated()
    core.decide(lambda d: decide.define(d, spec("a", env={"X": "1"}), ""))
    other = outdated()
    core.decide(lambda d: decide.define(d, spec("a"), "of another secret"))
    secret = outdated()

    assert core.state.models["a"].next_run == waits
    assert (same, other, secret) == ([], [run], [run])


def test_a_model_without_a_run_is_removed_at_once_and_its_next_run_cancelled() -> None:
    core = Core()
    core.define("a", "b")
    gone = core.decide(lambda d: decide.remove(d, "b", force=False, leases=0))
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=1))
    core.want("a")
    ends = core.decide(lambda d: decide.remove(d, "a", force=True, leases=1))

    assert gone is None
    assert ends == run
    assert core.state.models["a"].next_run is None
    assert core.stage("a") == "stopping"


def test_a_removal_of_what_stops_already_removes_it_and_keeps_the_failure() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.exit(run, 3)
    core.decide(lambda d: decide.remove(d, "a", force=False, leases=0))
    core.sweep(run)

    assert core.state.models == {}
    assert core.told(ev.RunReleased)[0].outcome == "failed: exit"


# --- requests ---


def test_whoever_comes_while_a_run_drains_waits_for_one_and_the_same_next_run() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=1))

    assert core.want("a") == core.want("a", start=True) == run + 1


def test_whoever_comes_while_a_run_loads_or_serves_gets_that_one() -> None:
    core = Core()
    core.define("a")
    loading = core.want("a")

    assert core.want("a") == loading
    core.launch(loading)
    core.decide(lambda d: decide.ready(d, loading, 0))
    assert core.want("a", start=True) == loading


def test_a_stop_of_what_loads_is_a_cancel() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=0))

    assert core.told(ev.RunReleased)[0].outcome == "cancelled"


def test_backoff_refuses_until_its_time_and_failed_until_reset() -> None:
    core = Core()
    core.define("a", crash_budget=3)
    for _ in range(2):
        run = core.want("a", start=True)
        core.decide(lambda d, r=run: decide.not_spawned(d, r, "launch", "no executable"))
    with pytest.raises(ModelUnavailableError) as backoff:
        core.want("a")
    waits = decide.wait_s(core.state.models["a"], core.at)
    core.now += 1
    over = decide.wait_s(core.state.models["a"], core.at)
    core.decide(lambda d: decide.not_spawned(d, core.want("a"), "launch", "x"))
    core.now -= 1
    run = core.want("a") if core.state.models["a"].status == "stopped" else None
    core.now += 1
    run = core.want("a", start=True)
    core.decide(lambda d: decide.not_spawned(d, run, "launch", "no executable"))
    with pytest.raises(ModelUnavailableError) as failed:
        core.want("a")

    assert (backoff.value.status, backoff.value.retry_after_s) == ("backoff", 1.0)
    assert (waits, over) == (1.0, 0.0)
    assert (failed.value.status, failed.value.retry_after_s) == ("failed", None)


def test_a_clock_that_was_set_back_makes_no_backoff_longer() -> None:
    core = Core()
    core.define("a", crash_budget=3)
    for _ in range(2):
        run = core.want("a", start=True)
        core.decide(lambda d, r=run: decide.not_spawned(d, r, "launch", "no executable"))
    core.now -= 3600

    assert decide.wait_s(core.state.models["a"], core.at) == 0.0
    core.want("a")


def test_a_failure_of_a_held_model_leaves_it_held() -> None:
    core = Core()
    core.define("a", crash_budget=2)
    for _ in range(2):
        run = core.want("a", start=True)
        core.decide(lambda d: decide.hold(d, "a", "x"))
        core.decide(lambda d, r=run: decide.not_spawned(d, r, "launch", "x"))

        assert core.state.models["a"].status == "held"


def test_a_model_that_cannot_be_stopped_refuses_with_its_pids() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=0))
    core.decide(lambda d: decide.stop_failed(d, run, (5, 6), "it lives"))
    with pytest.raises(StopFailedError) as caught:
        core.want("a")
    again = core.decide(lambda d: decide.stop_again(d, run, "operator"))
    core.decide(lambda d: decide.stop_failed(d, run, (5,), "it lives"))
    core.exit(run)
    core.sweep(run)

    assert caught.value.pids == (5, 6)
    assert again is True
    assert core.told(ev.RunReleased)[0].outcome == "ok"


# --- runs ---


def test_a_fetch_is_followed_by_the_queue_and_its_failure_ends_the_run() -> None:
    core = Core()
    core.define("a", repo="org/a")
    first = core.want("a")
    core.decide(lambda d: decide.fetch_failed(d, first, "no network"))
    second = core.want("a")
    fetched = core.decide(_about(second)["fetched"])
    core.schedule()

    assert core.state.models["a"].attempts == 1
    assert fetched is True
    assert core.stage("a") == "reserved"
    assert core.state.runs[second].path == "p"


def test_how_far_a_fetch_is_is_told_once_its_size_is_known() -> None:
    core = Core()
    core.define("a", repo="org/a")
    run = core.want("a")
    unsized = Fetching(at=0, done_bytes=1)
    sized = Fetching(at=1, done_bytes=2, total_bytes=4, bytes_per_s=1.6)

    assert core.decide(lambda d: decide.fetch_noted(d, run, unsized)) is False
    assert core.decide(lambda d: decide.fetch_noted(d, run, sized)) is True
    assert core.told(ev.FetchNoted) == [
        ev.FetchNoted(model="a", run=run, done_bytes=2, total_bytes=4, bytes_per_s=2)
    ]


def test_what_is_stopped_on_purpose_in_its_backoff_starts_no_more_by_itself() -> None:
    core = Core()
    core.define("a", restart="always")
    run = core.want("a")
    core.decide(lambda d: decide.not_spawned(d, run, "launch", "no executable"))
    before = core.state.models["a"].status
    core.decide(lambda d: decide.stay_down(d, "a"))

    assert before == "backoff"
    assert core.state.models["a"].status == "stopped"


def test_why_a_fetch_failed_is_kept_for_programs_until_the_next_attempt() -> None:
    core = Core()
    core.define("a", repo="org/a", crash_budget=3)
    for _ in range(2):
        run = core.want("a", start=True)
        core.decide(lambda d, run=run: decide.fetch_failed(d, run, "accept its terms", "gated"))
    with pytest.raises(ModelUnavailableError) as caught:
        core.want("a")

    (last,) = core.told(ev.ModelBackoff)[-1:]
    assert core.told(ev.RunAbandoned)[0].reason == last.reason == "gated"
    assert (caught.value.stage, caught.value.reason) == ("fetch", "gated")
    assert state_from_data(json.loads(json.dumps(state_to_data(core.state)))) == core.state


@pytest.mark.parametrize(
    ("code", "signal", "text"),
    [
        (3, None, "exited with status 3"),
        (None, 9, "killed by signal 9"),
        (None, None, "exited, the status is unknown"),
    ],
)
def test_an_exit_is_told_in_words(code: int | None, signal: int | None, text: str) -> None:
    assert decide.describe_exit(code, signal) == text


def test_a_cancel_before_the_spawn_was_told_ends_with_the_answer_of_the_spawn() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    core.decide(_about(run)["prepared"])
    core.decide(lambda d: decide.cancel(d, run, "operator"))
    late = core.decide(_about(run)["launched"])
    core.sweep(run)
    waits = core.stage("a")
    core.exit(run)

    assert late is True
    assert waits == "stopping"  # swept, but its exit is not known yet
    assert core.told(ev.RunReleased)[0].outcome == "cancelled"


def test_a_cancelled_spawn_that_never_was_releases_at_once() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    core.decide(_about(run)["prepared"])
    core.decide(lambda d: decide.cancel(d, run, "reload"))
    core.decide(_about(run)["not_spawned"])

    assert core.told(ev.RunStopping)[0].reason == "reload"
    assert core.told(ev.RunReleased)[0].outcome == "cancelled"


def test_an_exit_while_loading_tells_who_has_the_port() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    core.launch(run)
    core.decide(
        lambda d: decide.exited(d, run, code=1, signal=None, log_tail=(), port_lost="nginx")
    )
    core.sweep(run)

    assert core.told(ev.RunReleased)[0].outcome == "failed: port"
    assert core.state.models["a"].attempts == 0


def test_an_unhealthy_run_drains_and_its_end_counts_as_a_failure() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.unhealthy(d, run, "no answer", leases=1))
    draining = core.stage("a")
    core.decide(lambda d: decide.drained(d, run))
    core.end(run)

    assert draining == "draining"
    assert core.told(ev.RunReleased)[0].outcome == "failed: health"
    assert core.state.models["a"].last is not None
    assert core.state.models["a"].last.error == "no answer"


def test_a_drain_that_is_undone_cancels_the_run_that_was_to_follow() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=1))
    core.want("a")
    core.decide(lambda d: decide.reopen(d, run, "test"))

    assert core.state.models["a"].next_run is None
    assert core.told(ev.RunAbandoned)[0].error == decide.REOPENED


def test_a_stop_for_another_reason_takes_the_drain_over() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "reload", force=False, leases=1))
    core.decide(lambda d: decide.stop(d, run, "reload", force=False, leases=1))
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=1))

    assert [e.reason for e in core.told(ev.RunDraining)] == ["reload", "operator"]


# --- recovery ---


def _in_stage(stage: str) -> tuple[Core, int]:
    core = Core(max_loaded=1)
    core.define("a", "b", repo="org/a" if stage == "fetching" else None)
    if stage == "queued":
        core.load("b")
        core.use(1, 1)
    run = core.want("a")
    if stage == "launching":
        core.decide(_about(run)["prepared"])
    if stage not in ("fetching", "queued", "reserved", "launching"):
        core.launch(run)
    if stage in ("ready", "room", "operator", "stopping", "exited", "stop_failed"):
        core.decide(lambda d: decide.ready(d, run, 0))
    if stage == "room":
        core.use(run, 1)
        core.want("b")
    if stage in ("operator", "stopping", "stop_failed"):
        leases = int(stage == "operator")
        core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=leases))
    if stage == "stop_failed":
        core.decide(_about(run)["stop_failed"])
    if stage == "exited":
        core.exit(run)
    return core, run


@pytest.mark.parametrize(
    ("stage", "alive", "then"),
    [
        ("fetching", False, None),
        ("queued", False, None),
        ("reserved", False, None),
        ("launching", False, "stopping recovery"),
        ("loading", True, "loading "),
        ("loading", False, "stopping recovery"),
        ("ready", True, "ready "),
        ("ready", False, "stopping recovery"),
        ("room", True, "ready "),
        ("room", False, "stopping recovery"),
        ("operator", True, "stopping operator"),
        ("operator", False, "stopping operator"),
        ("stopping", True, "stopping operator"),
        ("exited", False, "stopping exited"),
        ("stop_failed", True, "stopping operator"),
    ],
)
def test_an_open_run_is_brought_under_its_new_owner(
    stage: str, then: str | None, *, alive: bool
) -> None:
    core, run = _in_stage(stage)
    core.decide(lambda d: decide.recover(d, run, same_boot=True, alive=alive))
    found = core.state.runs.get(run)

    assert (f"{found.stage} {found.reason}" if found else None) == then


@pytest.mark.parametrize(
    ("drains_for", "ends_for", "then"),
    [("operator", "operator", "stopped"), ("reload", "exited", "backoff")],
)
def test_who_exits_while_it_drains_has_failed_and_stays_down_only_if_that_was_asked(
    drains_for: str, ends_for: str, then: str
) -> None:
    core = Core()
    core.define("a", restart="always")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, drains_for, force=False, leases=1))
    core.exit(run, 1)
    ending = core.state.runs[run]
    found = f"{ending.stage} {ending.reason} {ending.fail_stage}"
    core.sweep(run)

    assert found == f"stopping {ends_for} exit"
    assert core.told(ev.RunReleased)[0].outcome == "failed: exit"
    assert core.state.models["a"].status == then


@pytest.mark.parametrize("stage", ["launching", "loading", "ready", "room", "exited"])
def test_what_ran_before_another_boot_is_released_as_lost(stage: str) -> None:
    core, run = _in_stage(stage)
    core.decide(lambda d: decide.recover(d, run, same_boot=False, alive=False))

    assert run not in core.state.runs
    assert core.told(ev.RunReleased)[0].outcome in ("lost", "failed: exit")


def test_what_was_swept_before_another_boot_is_released_once() -> None:
    core, run = _in_stage("stopping")
    core.decide(_about(run)["swept"])
    stage = core.state.runs[run].stage
    core.decide(lambda d: decide.recover(d, run, same_boot=False, alive=False))

    assert stage is Stage.STOPPING
    assert run not in core.state.runs
    assert len(core.told(ev.RunSwept)) == len(core.told(ev.RunReleased)) == 1


def test_a_run_that_says_it_is_loading_without_a_leader_is_a_contradiction() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    core.launch(run)
    draft = core.draft()
    draft.state.runs[run] = type(draft.state.runs[run])(
        run=run,
        model="a",
        stage=Stage.LOADING,
        spec_hash="",
        requested_by="",
        first_seq=1,
        last_seq=1,
        began_at="",
    )
    with pytest.raises(FoldError, match="without a leader"):
        decide.recover(draft, run, same_boot=True, alive=True)


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_run_whose_release_was_cut_off_the_log_is_released_by_the_next_owner(
    same_boot: bool,
) -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=0))
    core.exit(run)
    draft = core.draft()
    decide.swept(draft, run, pids=(), seconds=0.0, peak_bytes=None)
    swept = draft.entries[0].event  # in one append with the release
    core.decide(lambda d: d.emit(swept))

    core.decide(lambda d: decide.recover(d, run, same_boot=same_boot, alive=False))

    assert core.told(ev.RunReleased)[0].outcome == "ok"
    assert not core.state.held


# --- small things ---


def test_the_lifecycle_is_the_table_and_nothing_else() -> None:
    reached = set(TABLE.values())

    assert step(None, "run.queued") is Stage.QUEUED
    assert reached == set(Stage)
    assert not [stage for stage, _ in TABLE if stage is Stage.ENDED]
    with pytest.raises(LifecycleError, match=r"run\.ready cannot follow stage queued"):
        step(Stage.QUEUED, "run.ready")


def test_seconds_are_never_negative_and_nothing_when_a_time_is_missing() -> None:
    early, late = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:01.500000Z"

    assert seconds_between(early, late) == 1.5
    assert seconds_between(late, early) == 0.0
    assert seconds_between("", late) == 0.0
    assert later(early, 1.5) == late


def test_a_draft_that_is_dropped_leaves_no_trace() -> None:
    core = Core()
    core.define("a")
    before = core.state.fork()
    draft = core.draft()
    decide.request(draft, "a", "test", start=False)

    assert core.state == before
    assert draft.entries[0].cause is None
    assert isinstance(core.state.models["a"].spec, ModelSpec)


def test_the_cause_of_an_entry_is_what_was_asked_or_the_runs_last_entry() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    causes = {e.event.kind: e.cause for e in core.entries}
    seqs = {e.event.kind: e.seq for e in core.entries}

    assert causes["run.ready"] == seqs["run.launched"]
    assert causes["run.launched"] == seqs["run.launching"]
    assert core.draft().run(run) is not None
