"""Each kind of scheduling fault that others have, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from actors.conftest import Open
from moorage import (
    LoadCancelledError,
    LoadError,
    NoRoomError,
    QueueFullError,
    WaitTimeoutError,
)
from moorage.core import events as ev
from moorage.testing import ExitStatus, FakeClock, Script


def test_an_idle_time_unload_that_meets_requests_answers_every_one_of_them(bench: Open) -> None:
    b = bench()
    b.define("a", ttl_s=5)
    b.service.lease("a").release()
    hold = b.processes.hold_stop("a")
    b.advance(6)
    hold.wait_reached()
    late = [b.lease("a") for _ in range(3)]
    hold.release()
    runs = {b.result(future).run for future in late}

    assert runs == {2}
    assert [(e.reason, e.leases) for e in b.events(ev.RunEvicting)] == [("idle", 0)]


def test_an_idle_time_unload_does_not_touch_a_model_that_is_leased(bench: Open) -> None:
    b = bench()
    b.define("a", ttl_s=5)
    with b.service.lease("a") as lease:
        b.advance(3600)
        kept = not lease.lost
    b.advance(4)
    early = b.state("a")
    b.advance(6)
    b.until_state("a", "stopped")

    assert kept
    assert early == "ready"


def test_a_pinned_model_is_not_unloaded_for_idleness(bench: Open) -> None:
    b = bench()
    b.define("a", ttl_s=5, pinned=True)
    b.service.start("a")
    b.advance(3600)
    pinned = b.state("a")
    b.service.unpin("a")
    b.advance(6)
    b.until_state("a", "stopped")

    assert pinned == "ready"


def test_an_idle_model_is_kept_for_its_minimum_residency(bench: Open) -> None:
    b = bench(min_residency_s=60)
    b.define("a", ttl_s=5)
    b.service.start("a")
    b.advance(30)
    young = b.state("a")
    b.advance(31)
    b.until_state("a", "stopped")

    assert young == "ready"


def test_a_full_queue_is_refused_at_the_door_with_a_hint_and_takes_no_place(bench: Open) -> None:
    b = bench(max_waiting=2)
    b.define("a")
    hold = b.ports.hold("a")
    waiting = [b.lease("a"), b.lease("a")]
    with pytest.raises(QueueFullError) as caught:
        b.service.lease("a")
    counted = b.service.status().waiting
    hold.release()
    for future in waiting:
        b.result(future).release()
    b.service.start("a")

    assert caught.value.limit == 2
    assert caught.value.retry_after_s > 0
    assert counted == 2
    assert b.service.status().waiting == 0


def test_callers_that_come_at_once_never_make_the_queue_longer_than_its_limit(
    bench: Open,
) -> None:
    limit, callers = 5, 40
    b = bench(max_waiting=limit)
    b.define("a")
    hold = b.ports.hold("a")
    begun = threading.Barrier(callers)

    def come() -> bool:
        begun.wait()
        try:
            lease = b.service.lease("a")
        except QueueFullError:
            return False
        lease.release()
        return True

    came = [b.call(come) for _ in range(callers)]
    b.until(lambda: sum(future.done() for future in came) >= callers - limit)
    waiting = b.service.status().waiting
    hold.release()

    assert waiting <= limit
    assert sum(b.result(future) for future in came) == waiting


def test_places_in_a_full_queue_come_back_however_a_wait_ends(bench: Open) -> None:
    b = bench(max_waiting=1, max_loaded=1)
    b.define("a", "b")
    b.processes.will("b", Script(refuse="no"))
    with b.service.lease("a"), pytest.raises(WaitTimeoutError):
        b.call(lambda: b.service.lease("b", timeout_s=0.01)).result(20)
    b.settle()
    with pytest.raises(LoadError):
        b.service.lease("b")
    with pytest.raises(LookupError):
        b.service.lease("nobody")
    b.service.lease_all("a").release()
    b.service.start("a")

    assert b.service.status().waiting == 0


def test_alternating_clients_thrash_no_faster_than_the_minimum_residency(bench: Open) -> None:
    b = bench(max_loaded=1, min_residency_s=30)
    b.define("a", "b")
    b.service.lease("a").release()
    other = b.lease("b", timeout_s=3600)
    early = other.done()
    for _ in range(3):
        b.service.lease("a").release()
    b.advance(29)
    still = b.state("a")
    b.advance(2)
    lease = b.result(other)

    assert not early
    assert still == "ready"
    assert lease.model == "b"
    lease.release()


def test_no_waiter_is_overtaken_for_ever_by_those_who_come_after_it(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    held = b.service.lease("a")
    other = b.lease("b")
    late = b.lease("a")  # somebody else wants the model that is there
    overtaken = late.done()
    held.release()
    second = b.result(other)
    third_waits = not late.done()
    second.release()
    third = b.result(late)

    assert not overtaken
    assert third_waits
    assert third.run != held.run
    third.release()


def test_a_client_that_leaves_a_load_changes_nothing_for_the_others(bench: Open) -> None:
    b = bench()
    b.define("a")
    hold = b.ports.hold("a")
    stays = b.lease("a")
    leaves = b.call(lambda: b.service.lease("a", timeout_s=0.01))
    gone = b.error(leaves)
    hold.release()
    lease = b.result(stays)

    assert isinstance(gone, WaitTimeoutError)
    assert lease.run == 1
    assert [e.leases for e in b.events(ev.RunReady)] == [1]


def test_a_load_whose_only_client_left_after_the_reservation_goes_on(bench: Open) -> None:
    b = bench()
    b.define("a")
    hold = b.ports.hold("a")
    only = b.call(lambda: b.service.lease("a", timeout_s=0.01))
    b.error(only)
    b.settle()
    loading = b.state("a")
    hold.release()
    b.until_state("a", "ready")

    assert loading == "loading"


def test_a_fetch_that_nobody_waits_for_is_cancelled(bench: Open) -> None:
    b = bench()
    b.define("a", repo="org/a")
    b.fetcher.hold("a")
    only = b.call(lambda: b.service.lease("a", timeout_s=0.01))
    b.error(only)
    b.until_state("a", "stopped")

    assert [e.outcome for e in b.events(ev.RunAbandoned)] == ["cancelled"]


def test_a_child_that_crashes_while_loading_ends_the_load_for_all_waiters_at_once(
    bench: Open,
) -> None:
    b = bench(max_loaded=1)
    b.define("a")
    b.ports.hold("a")
    waiting = [b.lease("a") for _ in range(3)]
    b.until_state("a", "loading")
    b.processes.server("a").script = Script(log=("boom",))
    b.processes.server("a").exit(7)
    errors = [b.error(future) for future in waiting]

    assert {(type(e), e.code, e.log_tail) for e in errors} == {(LoadError, 7, ("boom",))}
    assert b.service.status().loaded == 0
    assert b.state("a") == "backoff"


def test_a_loading_model_counts_for_room_and_is_never_a_victim(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    hold = b.ports.hold("a")
    first = b.lease("a")
    second = b.lease("b")
    loaded = b.service.status().loaded
    queued = b.state("b")
    hold.release()
    b.result(first).release()
    lease = b.result(second)

    assert (loaded, queued) == (1, "queued")
    assert lease.model == "b"
    assert b.events(ev.RunReady)[0].run == 1
    lease.release()


def test_room_and_memory_are_taken_until_nothing_of_the_former_server_is_left(
    bench: Open,
) -> None:
    b = bench(memory_limit=100)
    b.define("a", "b", memory=60)
    b.service.start("a")
    b.processes.server("a").script = Script(children=3)
    hold = b.processes.hold_stop("a")
    waiting = b.lease("b")
    hold.wait_reached()
    b.processes.server("a").exit(0)  # the leader has gone, the stop goes on
    b.until(lambda: bool(b.service.status().ports_held))
    b.settle()
    queued, reserved = b.state("b"), b.events(ev.RunReserved, model="b")
    hold.release()
    b.result(waiting).release()
    kinds = [e.event.kind for e in b.entries() if getattr(e.event, "model", "") in ("a", "b")]

    assert (queued, reserved) == ("queued", [])
    assert kinds.index("run.swept") < kinds.index("run.released") < kinds.index("run.reserved", 5)


def test_a_request_of_any_length_is_no_sign_of_a_hang(bench: Open) -> None:
    b = bench()
    b.define("a", ttl_s=5, load_timeout_s=5, stop_timeout_s=5)
    with b.service.lease("a") as lease:
        before = len(b.log.rows)
        for _ in range(10):
            b.advance(86_400)
            b.settle()
        kept = (lease.lost, b.state("a"))
        told = {row.kind for row in b.log.rows[before:]}

    assert kept == (False, "ready")
    assert told <= {"usage.noted"}


def test_a_run_that_becomes_ready_is_leased_in_that_step_though_another_wants_its_room(
    bench: Open,
) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    hold = b.ports.hold("a")
    first = b.lease("a")
    second = b.lease("b")
    hold.release()
    lease = b.result(first)
    b.settle()
    kept = not lease.lost
    lease.release()
    b.result(second).release()

    assert kept
    assert [(e.leases, e.for_model) for e in b.events(ev.RunEvicting)] == [(1, "b")]


def test_everything_pinned_is_refused_with_the_names_of_the_pins_at_once(bench: Open) -> None:
    b = bench()
    b.define("a", "b", pinned=True)
    b.define("c")
    b.service.start("a")
    b.service.start("b")
    with pytest.raises(NoRoomError) as caught:
        b.service.lease("c", timeout_s=3600)
    b.service.unpin("a")
    with b.service.lease("c") as lease:
        pass

    assert caught.value.holders == ("a (pinned)", "b (pinned)")
    assert lease.model == "c"


def test_pins_survive_a_restart(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    b.service.pin("a")
    b.reopen()
    b.service.start("a")
    with pytest.raises(NoRoomError):
        b.service.lease("b")

    assert b.service.model("a").pinned


def test_a_second_pinned_model_is_refused_as_soon_as_the_first_has_the_room(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b", pinned=True)
    hold = b.ports.hold("a")
    first = b.lease("a")
    second = b.lease("b")
    error = b.error(second)
    hold.release()
    b.result(first).release()

    assert isinstance(error, NoRoomError)


def test_what_cannot_be_stopped_is_quarantined_and_another_victim_is_tried(bench: Open) -> None:
    b = bench(max_loaded=2)
    b.define("a", "b", "c")
    b.processes.will("a", Script(unkillable=True))
    b.service.start("a")
    b.clock.advance(1)
    b.service.start("b")
    with b.service.lease("c") as lease:
        pass
    status = b.service.model("a")
    with pytest.raises(Exception, match="pids 10000001"):
        b.service.lease("a")
    b.processes.server("a").exit(0)
    b.until_state("a", "stopped")

    assert lease.model == "c"
    assert status.state == "stop_failed"
    assert [e.model for e in b.events(ev.RunEvicting)] == ["a", "b"]
    assert b.service.status().ports_free == 9


def test_children_that_outlive_sigkill_keep_port_and_room_until_they_are_seen_gone(
    bench: Open,
) -> None:
    b = bench(max_loaded=1)
    b.define("a")
    b.processes.will("a", Script(stuck_children=2, children=1))
    b.service.start("a")
    with pytest.raises(Exception, match="could not be stopped"):
        b.service.stop("a")
    stuck = b.service.status()
    before = len(b.log.rows)
    # The third attempt begins when what the second came to has been told.
    b.advance_until(lambda: len(b.processes.stops) >= 3)
    b.settle_now()
    quiet = len(b.log.rows) == before
    b.processes.server("a").let_go()
    b.advance_until(lambda: b.state("a") == "stopped")

    assert stuck.ports_held == {18000: "a"}
    assert stuck.loaded == 1
    assert quiet
    assert b.service.status().ports_free == 10


def test_waiters_of_a_failing_load_share_one_attempt_and_one_error(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(refuse="the executable is missing"))
    hold = b.processes.hold_launch("a")
    waiting = [b.lease("a") for _ in range(5)]
    hold.release()
    texts = {str(b.error(future)) for future in waiting}

    assert texts == {"'a' (run 1) failed at launch: the executable is missing"}
    assert len(b.processes.launches) == 1


@pytest.mark.parametrize("stage", ["fetching", "queued", "launching", "loading"])
def test_a_stop_during_a_load_acts_at_once_in_every_stage(bench: Open, stage: str) -> None:
    b = bench(max_loaded=1)
    b.define("z")
    b.define("a", repo="org/a" if stage == "fetching" else None)
    blocker = b.service.lease("z") if stage == "queued" else None
    holds = {"fetching": b.fetcher, "loading": b.ports}
    launch = b.processes.hold_launch("a") if stage == "launching" else None
    if stage in holds:
        holds[stage].hold("a")
    waiting = b.lease("a")
    b.until_state("a", stage)
    if launch is not None:
        launch.wait_reached()
    stop = b.call(lambda: b.service.stop("a"))
    if launch is not None:
        b.until_state("a", "stopping")
        launch.release()
    b.result(stop)
    error = b.error(waiting)
    if blocker is not None:
        blocker.release()

    assert isinstance(error, LoadCancelledError)
    assert b.state("a") == "stopped"
    assert b.processes.alive() == () or stage == "queued"


def test_room_freed_for_a_request_that_left_goes_to_the_next_waiter(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b", "c")
    b.service.start("a")
    hold = b.processes.hold_stop("a")
    leaves = b.lease("b", timeout_s=5)
    hold.wait_reached()
    next_ = b.lease("c", timeout_s=3600)
    b.advance(6)
    b.error(leaves)
    b.settle()
    hold.release()
    lease = b.result(next_)

    assert lease.model == "c"
    assert b.state("b") == "stopped"
    lease.release()


def test_the_last_waiter_leaving_before_the_reservation_takes_entry_and_drains_away(
    bench: Open,
) -> None:
    b = bench(max_loaded=3)
    b.define("a", "b", "c", "d")
    for name in "abc":
        b.service.start(name)
        b.clock.advance(1)
    leases = [b.service.lease(name) for name in "abc"]
    b.settle()
    before = b.service.status().lru
    leaves = b.lease("d", timeout_s=5)
    b.until_state("a", "draining")
    b.advance(6)
    b.error(leaves)
    b.settle()
    after = b.service.status()

    assert after.model("d").state == "stopped"
    assert after.model("a").state == "ready"
    assert after.lru == before == ("a", "b", "c")
    assert [e.reason for e in b.events(ev.RunReopened)] == ["the request left"]
    for lease in leases:
        lease.release()


def test_the_queue_is_served_in_the_order_of_arrival(bench: Open) -> None:
    b = bench(max_loaded=1)
    names = "abcde"
    b.define("z", *names)
    first = b.service.lease("z")
    waiting = [b.lease(name) for name in names]
    places = [b.service.model(name).place for name in names]
    first.release()
    for future in waiting:
        b.result(future).release()

    assert places == [1, 2, 3, 4, 5]
    assert [e.model for e in b.events(ev.RunReserved)] == ["z", *names]


def test_every_eviction_says_for_whom_what_it_saw_and_whom_it_skipped(bench: Open) -> None:
    b = bench(max_loaded=3)
    b.define("a", "b", "c", "d")
    for name in "abc":
        b.service.start(name)
        b.clock.advance(1)
    b.service.pin("a")
    with b.service.lease("d"):
        pass
    [event] = b.events(ev.RunEvicting)

    assert (event.model, event.for_model, event.reason) == ("b", "d", "room")
    assert event.order == (1, 2, 3)
    assert event.skipped == ((1, "pinned"),)
    assert b.events(ev.RunReserved, model="d")[0].displaced == (2,)


def test_use_decides_the_order_and_is_in_the_log_before_the_eviction_that_relies_on_it(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", "b", "c")
    for name in "ab":
        b.service.start(name)
        b.clock.advance(1)
    b.service.lease("a").release()
    b.clock.advance(1)
    b.service.start("c")
    kinds = [e.event.kind for e in b.entries()]

    assert [e.model for e in b.events(ev.RunEvicting)] == ["b"]
    assert kinds.index("usage.noted") == kinds.index("run.evicting") - 1
    assert b.events(ev.UsageNoted)[0].order == (2, 1)
    assert b.events(ev.UsageNoted)[0].leases == ((1, 1),)


def test_a_victim_that_gets_busy_while_it_is_chosen_is_passed_over(bench: Open) -> None:
    b = bench()
    b.define("a", "b", "c")
    for name in "ab":
        b.service.start(name)
        b.clock.advance(1)
    stop = threading.Event()

    def hammer() -> int:
        turns = 0
        while not stop.is_set():
            b.service.lease("a").release()
            turns += 1
        return turns

    busy = [b.call(hammer) for _ in range(2)]
    for _ in range(8):
        b.service.lease("c").release()
        b.service.lease("b").release()
    stop.set()

    assert all(b.result(future) > 0 for future in busy)


class MeddlingClock(FakeClock):
    """Does something when the registry asks for the time, at a moment of the test's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 0
        self.meddle: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        if self.moment and threading.current_thread().name == "moorage-registry":
            self.moment -= 1
            if not self.moment:
                self.meddle()
        return super().monotonic()


@pytest.mark.parametrize("moment", range(1, 13))
def test_a_lease_that_ends_at_any_moment_of_a_decision_lets_the_waiter_in(
    bench: Open, moment: int
) -> None:
    clock = MeddlingClock()
    b = bench(max_loaded=1, clock=clock)
    b.define("a", "b")
    lease = b.service.lease("a")
    b.settle()
    clock.meddle = lease.release
    clock.moment = moment
    waiting = b.call(lambda: b.service.lease("b"))  # and nothing else that would wake anybody
    b.until(lambda: b.state("b") != "stopped" and b.state("a") != "ready")
    lease.release()  # again, unless the moment has not come
    b.result(waiting).release()


def test_a_crash_of_a_leased_run_tells_its_holder_and_the_next_lease_restarts(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    with b.service.lease("a") as lease:
        b.processes.server("a").exit(signal=9)
        b.until_state("a", "backoff")
        lost = lease.lost
    with b.service.lease("a") as again:
        pass

    assert lost
    assert again.run == 2
    assert b.events(ev.RunReleased)[0].outcome == "failed: exit"
    assert b.events(ev.RunExited)[0].signal == ExitStatus(signal=9).signal
