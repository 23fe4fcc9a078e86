"""Callers that stand in each other's way: each of these ends as it should."""

from __future__ import annotations

import asyncio
import threading

import pytest

from actors.bench import WAIT_S
from actors.conftest import Open
from moorage import LoadError, NoRoomError, WaitTimeoutError, WouldDeadlockError
from moorage.actors import deadlines
from moorage.actors.deadlines import DRAIN_LOOK_S
from moorage.core import events as ev
from moorage.testing import Script


@pytest.mark.parametrize("first", ["c", "d"])
def test_two_threads_that_hold_a_and_b_and_want_c_and_d_end_by_their_deadlines(
    first: str, bench: Open
) -> None:
    b = bench()
    b.define(*"abcd")
    both_hold = threading.Barrier(2)
    may_ask = {"c": threading.Event(), "d": threading.Event()}
    leases = {}

    def holds_and_wants(held: str, wanted: str, timeout_s: float) -> WaitTimeoutError | None:
        with b.service.lease(held):
            both_hold.wait(WAIT_S)
            may_ask[wanted].wait(WAIT_S)
            try:
                with b.service.lease(wanted, timeout_s) as lease:
                    leases[wanted] = lease.run
                    return None
            except WaitTimeoutError as error:
                gave_up = error
        with b.service.lease(wanted, timeout_s) as lease:  # it holds nothing any more
            leases[wanted] = lease.run
        return gave_up

    wants_c = b.call(lambda: holds_and_wants("a", "c", 60))
    wants_d = b.call(lambda: holds_and_wants("b", "d", 90))
    may_ask[first].set()
    b.until(lambda: b.service.status().waiting == 1)
    for event in may_ask.values():
        event.set()
    b.until(lambda: b.service.status().waiting == 2)
    b.advance(59)
    still_wait = not wants_c.done() and not wants_d.done()
    b.advance(2)

    assert isinstance(b.result(wants_c), WaitTimeoutError)  # and lets go of a
    assert b.result(wants_d) is None  # a made room before its own deadline
    assert still_wait
    assert sorted(leases) == ["c", "d"]


def test_a_thread_that_leases_a_model_twice_gets_it_though_another_wants_it_away(
    bench: Open,
) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    outer = b.service.lease("a")
    other = b.lease("b")
    b.until_state("a", "draining")
    with b.service.lease("a") as inner:
        nested = (inner.run, inner.lost)
    outer.release()
    b.result(other).release()

    assert nested == (1, False)


def test_a_task_that_leases_a_model_twice_gets_it_and_another_task_waits(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")

    async def run() -> tuple[int, bool]:
        outer = await b.service.alease("a")
        other = asyncio.create_task(lease("b"))
        await asyncio.to_thread(b.until_state, "a", "draining")
        stranger = asyncio.create_task(lease("a"))
        async with b.service.alease("a") as inner:
            run = inner.run
        await asyncio.sleep(0)
        waits = not stranger.done()
        outer.release()
        await asyncio.gather(other, stranger)
        return run, waits

    async def lease(name: str) -> None:
        async with b.service.alease(name):
            pass

    assert asyncio.run(run()) == (1, True)


def test_a_one_hour_lease_in_front_of_sixty_second_requests_again_and_again(
    bench: Open,
) -> None:
    b = bench(max_loaded=2)
    b.define("a", "b", "c")
    b.service.start("b")
    b.service.pin("b")
    b.clock.advance(1)
    held = b.service.lease("a")
    for _ in range(5):
        request = b.lease("c", timeout_s=60)
        drains = b.state("a")
        b.advance(61)
        error = b.error(request)
        b.settle()
        shared = b.lease("a")
        b.result(shared).release()

        assert isinstance(error, WaitTimeoutError)
        assert "c is queued, place 1" in str(error)
        assert drains == "draining"
        assert b.state("a") == "ready"
        assert b.service.status().lru == ("b", "a")
    held.release()
    b.service.lease("c").release()

    assert len(b.events(ev.RunReopened)) == 5


def test_a_request_that_only_its_own_leases_stand_in_the_way_of_fails_at_once(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", "b", "c")
    held = b.service.lease("a"), b.service.lease("b")
    with pytest.raises(WouldDeadlockError) as caught:
        b.service.lease("c", timeout_s=3600)
    queued = b.service.status().queue

    assert [lease.lost for lease in held] == [False, False]
    assert caught.value.held == ("a", "b")
    assert queued == ()
    assert not b.events(ev.RunEvicting)


def test_a_pin_and_an_own_lease_together_are_a_deadlock_too(bench: Open) -> None:
    b = bench()
    b.define("a", "c")
    b.define("p", pinned=True)
    b.service.start("p")
    with b.service.lease("a"), pytest.raises(WouldDeadlockError):
        b.service.lease("c", timeout_s=3600)


def test_joint_requests_that_cross_do_not_wait_for_one_another(bench: Open) -> None:
    b = bench()
    b.define(*"abcd")
    turns = 40

    def client(*names: str) -> int:
        for _ in range(turns):
            with b.service.lease_all(*names) as leases:
                assert len(leases) == 2
        return turns

    clients = [b.call(lambda n=n: client(*n)) for n in ("ab", "cd", "bc", "da")]

    assert [b.result(future) for future in clients] == [turns] * 4


def test_a_joint_request_waits_for_the_one_before_it_as_a_whole(bench: Open) -> None:
    b = bench()
    b.define(*"abcd")
    hold = b.ports.hold("b")
    first = b.lease("a", "b")
    b.until_state("a", "ready")
    second = b.lease("c", "d")
    single = b.lease("c")
    b.settle()
    kept = b.state("a")  # idle, but the older joint request has it
    hold.release()
    pair = b.result(first)
    later_ones_wait = not second.done()
    pair.release()
    both = b.result(second)
    both.release()
    b.result(single).release()

    assert kept == "ready"
    assert later_ones_wait
    assert list(both) == ["c", "d"]


def test_a_joint_request_for_more_than_there_is_room_for_fails_at_once(bench: Open) -> None:
    b = bench()
    b.define("a", "b", "c")
    with pytest.raises(NoRoomError):
        b.service.lease_all("a", "b", "c", timeout_s=3600)

    assert b.service.status().queue == ()


def test_a_joint_request_that_needs_more_than_own_leases_leave_fails_at_once(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", "b", "c")
    with b.service.lease("a"), pytest.raises(WouldDeadlockError):
        b.service.lease_all("b", "c", timeout_s=3600)


def test_a_joint_request_loads_again_what_ended_before_the_others_were_ready(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", "b")
    hold = b.ports.hold("b")
    joint = b.lease("a", "b")
    b.until_state("a", "ready")
    b.processes.server("a").exit(signal=9)
    b.until(lambda: len(b.events(ev.RunReady, model="a")) == 2)
    hold.release()
    leases = b.result(joint)

    assert [lease.run for lease in leases.values()] == [3, 2]
    leases.release()


def test_a_joint_request_fails_when_one_of_its_models_cannot_be_loaded(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.processes.will("b", Script(refuse="no executable"))
    joint = b.lease("a", "b")
    error = b.error(joint)
    b.settle()

    assert isinstance(error, LoadError)
    assert b.service.model("a").leases == 0
    assert b.service.status().waiting == 0


def test_a_joint_request_by_name_and_alias_holds_one_run_twice(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", aliases=("first",))
    with b.service.lease_all("a", "first") as leases:
        runs = {lease.run for lease in leases.values()}
        held = b.service.model("a").leases

    assert runs == {1}
    assert held == 2


def test_a_joint_request_of_a_thread_that_holds_a_draining_model_is_not_stuck(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", "b", "c")
    outer = b.service.lease("a")
    second = b.lease("b")
    other = b.result(second)
    third = b.lease("c", timeout_s=3600)
    b.until_state("a", "draining")
    with b.service.lease_all("a", timeout_s=5) as leases:
        run = leases["a"].run
    b.service.lease_all("a", "b", timeout_s=5).release()
    outer.release()
    b.result(third).release()
    other.release()

    assert run == 1


def test_a_drain_that_was_undone_is_not_begun_again_for_the_same_request(bench: Open) -> None:
    b = bench(max_loaded=2)
    b.define(*"abcd")
    a = b.service.lease("a")
    b.clock.advance(1)
    second = b.service.lease("b")
    third = b.lease("c", timeout_s=3600)
    b.until_state("a", "draining")
    hold = b.processes.hold_stop("b")
    second.release()  # another candidate went idle first: seen at the next look
    b.advance(0.3)
    hold.wait_reached()
    b.settle()
    undone = b.state("a")
    hold.release()
    c = b.result(third)

    assert undone == "ready"
    assert [e.reason for e in b.events(ev.RunReopened)] == ["room was found elsewhere"]
    assert [e.model for e in b.events(ev.RunEvicting)] == ["a", "b"]
    a.release()
    c.release()


def test_starting_anew_what_the_same_thread_keeps_from_ending_fails_at_once(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    lease = b.service.lease("a")
    other = b.lease("b")
    b.until_state("a", "draining")
    with pytest.raises(WouldDeadlockError):
        b.service.start("a", timeout_s=3600)
    lease.release()
    b.result(other).release()


def test_who_asks_while_pins_keep_it_over_lowered_limits_is_refused_at_once(bench: Open) -> None:
    b = bench(max_loaded=2)
    b.define("a", "b", "c")
    for name in "ab":
        b.service.start(name)
        b.service.pin(name)
    b.lowered = True
    b.service.set_limits(max_loaded=1)

    with pytest.raises(NoRoomError) as refused:
        b.service.lease("c", timeout_s=0.5)

    assert refused.value.holders == ("a (pinned)", "b (pinned)")
    assert b.service.status().queue == ()


def test_a_joint_request_that_fits_no_more_keeps_nothing_from_others(bench: Open) -> None:
    b = bench()
    b.lowered = True
    b.define("a", "b", "c")
    b.service.start("c")
    stop = b.processes.hold_stop("c")
    b.service.start("a")
    joint = b.lease("b", "a")
    stop.wait_reached()  # room is made for b, and a is kept for the request
    b.service.set_limits(max_loaded=1)
    other = b.lease("b")
    stop.release()
    refusal = b.error(joint)
    with b.result(other) as lease:
        model = lease.model

    assert isinstance(refusal, NoRoomError)
    assert model == "b"


def test_a_joint_request_is_refused_once_a_pin_leaves_too_little_room(bench: Open) -> None:
    b = bench()
    b.define("a", "b", "c")
    with b.service.lease("c"):
        joint = b.lease("b", "a")
        b.service.pin("c")
        refusal = b.error(joint)

    assert isinstance(refusal, NoRoomError)
    assert "c" in str(refusal)


def test_who_waits_gets_the_room_of_a_model_whose_drain_for_him_was_undone_once_it_is_idle(
    bench: Open,
) -> None:
    b = bench(max_loaded=2)
    b.define("a", "b", "c")
    oldest, other = b.service.lease("a"), b.service.lease("b")
    waiting = b.lease("c")
    b.until_state("a", "draining")
    b.service.set_limits(max_loaded=1)
    b.lowered = True
    other.release()
    b.advance_until(lambda: (b.state("a"), b.state("b")) == ("ready", "stopped"), DRAIN_LOOK_S)
    b.advance(1.0)  # the looks that the stop of the other was worth are over
    oldest.release()
    b.advance(DRAIN_LOOK_S)
    lease = b.result(waiting)

    assert lease.model == "c"
    lease.release()


def test_a_run_whose_drain_was_undone_is_not_looked_at_any_more_once_nobody_waits_for_its_room(
    bench: Open,
) -> None:
    b = bench(max_loaded=2)
    b.define("a", "b", "c")
    oldest, other = b.service.lease("a"), b.service.lease("b")
    waiting = b.lease("c")
    b.until_state("a", "draining")
    other.release()
    b.advance_until(waiting.done, DRAIN_LOOK_S)
    b.advance(1.0)  # the looks that the stop of the other was worth are over
    due = deadlines.next_due(b.service._runtime.registry)
    a = b.state("a")
    oldest.release()
    b.result(waiting).release()

    assert a == "ready"
    assert due is not None
    assert due > b.clock.monotonic() + DRAIN_LOOK_S


def test_what_a_joint_request_has_already_is_not_idle_while_it_waits_for_the_rest(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", ttl_s=1)
    b.define("b")
    slow = b.ports.hold("b")
    waiting = b.lease("a", "b", timeout_s=3600)
    b.until_state("a", "ready")
    for _ in range(10):
        b.advance(2.0)
    loads = len(b.events(ev.RunReady, model="a"))
    slow.release()
    b.result(waiting).release()
    b.advance_until(lambda: b.state("a") == "stopped", 1.0)

    assert loads == 1
    assert len(b.events(ev.RunReady, model="a")) == 1
