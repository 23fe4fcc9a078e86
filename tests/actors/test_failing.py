"""Crash budgets, holds, lost ports, stuck servers, dead actors, and a registry that dies."""

from __future__ import annotations

import pykka
import pytest

from actors.bench import Bench, spec
from actors.conftest import Open
from moorage import (
    LoadCancelledError,
    LoadError,
    ModelHeldError,
    ModelUnavailableError,
    NoRoomError,
    ServiceFailedError,
    StopFailedError,
    UnknownModelError,
)
from moorage.actors import messages as msg
from moorage.actors.shells import ModelActor
from moorage.core import events as ev
from moorage.core.fold import replay
from moorage.core.lifecycle import Stage
from moorage.testing import ExitStatus, Readiness, Script

DIES = Script(exits=ExitStatus(code=1), log=("out of memory",))


# --- crash budget ---


def test_failures_in_a_row_lead_from_backoff_to_failed_and_reset_ends_it(bench: Open) -> None:
    b = bench()
    b.define("a", crash_budget=3)
    b.processes.will("a", DIES, DIES, DIES)
    seen: list[tuple[str, int, float | None]] = []
    assert isinstance(b.error(b.lease("a")), LoadError)  # the first may be tried again at once
    for _ in range(2):
        assert isinstance(b.error(b.lease("a")), LoadError)
        b.settle()
        with pytest.raises(ModelUnavailableError) as caught:
            b.service.lease("a")
        seen.append((b.state("a"), b.service.model("a").attempts, caught.value.retry_after_s))
        b.advance(1.5)
    status = b.service.model("a")
    b.service.reset("a")
    with b.service.lease("a") as lease:
        pass

    assert seen == [("backoff", 2, 1.0), ("failed", 3, None)]
    assert status.error == "exited with status 1"
    assert status.log_tail == ("out of memory",)
    assert lease.run == 4


def test_a_lease_in_backoff_gets_the_last_error_at_once_and_start_tries_anyway(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", DIES, DIES)
    for _ in range(2):
        assert isinstance(b.error(b.lease("a")), LoadError)
        b.settle()
    with pytest.raises(ModelUnavailableError) as caught:
        b.service.lease("a", timeout_s=3600)
    started = b.service.start("a")

    assert caught.value.status == "backoff"
    assert caught.value.last == "exited with status 1"
    assert started.state == "ready"


def test_a_run_that_was_steady_starts_the_count_of_failures_anew(bench: Open) -> None:
    b = bench()
    b.define("a", crash_budget=2)
    for _ in range(4):
        b.service.start("a")
        b.advance(61)
        b.processes.server("a").exit(1)
        b.until_state("a", "backoff")

    assert [e.attempts for e in b.events(ev.ModelBackoff)] == [1, 1, 1, 1]
    assert not b.events(ev.ModelFailed)


def test_what_is_always_to_run_comes_back_by_itself_after_its_backoff(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    b.service.start("a")
    for turn in range(1, 4):
        b.processes.server("a").exit(1)
        b.until(lambda turn=turn: len(b.events(ev.RunReleased)) == turn)
        b.advance_until(lambda turn=turn: len(b.events(ev.RunReady)) == turn + 1, 1.0)

    assert b.state("a") == "ready"


def _restart_to_come(b: Bench) -> None:
    """Let `a` be restarted in a second, and `b` have the only room."""
    b.define("a", restart="always")
    b.define("b", "c")
    b.service.start("a")
    b.processes.server("a").exit(1)
    b.until(lambda: len(b.events(ev.RunReady, model="a")) == 2)
    b.processes.server("a").exit(1)
    b.until_state("a", "backoff")
    b.service.lease("b").release()


def _queued_restart(b: Bench) -> None:
    """Let `a` wait for its restart while `b` has the only room."""
    _restart_to_come(b)
    b.advance_until(lambda: b.state("a") == "queued", 2.0)


def test_a_restart_nobody_asked_for_evicts_nobody_and_holds_nobody_up(bench: Open) -> None:
    b = bench(max_loaded=1)
    _queued_restart(b)
    with b.service.lease("c"):
        b.advance(5)
        still = b.state("a")
    b.service.stop("c")
    b.until_state("a", "ready")

    assert still == "queued"
    assert all(e.for_model != "a" for e in b.events(ev.RunEvicting))


def test_a_request_turns_a_restart_nobody_asked_for_into_its_own(bench: Open) -> None:
    b = bench(max_loaded=1)
    _queued_restart(b)
    with b.service.lease("a") as lease:
        pass

    assert lease.model == "a"


def test_a_restart_goes_on_waiting_when_a_request_that_joined_it_leaves(bench: Open) -> None:
    b = bench(max_loaded=1)
    _queued_restart(b)
    with b.service.lease("b"):
        joined = b.lease("a", timeout_s=60)
        b.advance(61)
        b.error(joined)
        b.settle()
        still = b.state("a")
    b.service.stop("b")
    b.until_state("a", "ready")

    assert still == "queued"


@pytest.mark.parametrize("pinned", ["before it is due", "while it waits"])
def test_a_restart_waits_for_room_that_a_pin_holds_until_the_pin_is_gone(
    bench: Open, pinned: str
) -> None:
    b = bench(max_loaded=1)
    _restart_to_come(b)
    if pinned == "while it waits":
        b.advance(2)
    b.service.pin("b")
    b.advance(5)
    still = b.state("a")
    b.service.unpin("b")
    b.service.stop("b")
    b.until_state("a", "ready")

    assert still == "queued"
    assert not b.events(ev.RunAbandoned)


def test_a_restart_waits_for_a_port_to_be_free(bench: Open) -> None:
    b = bench(ports=range(18000, 18001))
    _restart_to_come(b)
    b.advance(2)
    still = b.state("a")
    b.service.stop("b")
    b.until_state("a", "ready")

    assert still == "queued"
    assert not b.events(ev.RunAbandoned)


def test_a_restart_goes_on_waiting_when_a_request_that_joined_it_is_refused(bench: Open) -> None:
    b = bench(max_loaded=1)
    _queued_restart(b)
    b.service.pin("b")
    with pytest.raises(NoRoomError):
        b.service.lease("a")
    b.until_state("a", "queued")
    b.service.unpin("b")
    b.service.stop("b")
    b.until_state("a", "ready")

    assert [e.requested_by for e in b.events(ev.RunQueued, model="a")][-2:] == ["restart"] * 2


def test_what_is_always_to_run_waits_until_it_is_defined_where_its_secrets_are_not_known(
    bench: Open,
) -> None:
    b = bench(on_close="keep")
    b.define("a", restart="always", secrets={"KEY": "hush"})
    b.service.start("a")
    b.reopen()
    b.processes.server("a").exit(1)
    b.advance_until(lambda: bool(b.events(ev.RunReleased, outcome="failed: secrets")), 1.0)
    before = len(b.log.rows)
    for _ in range(10):
        b.advance(2.0)
    quiet = len(b.log.rows) == before
    b.define("a", restart="always", secrets={"KEY": "hush"})
    b.until_state("a", "ready")

    assert quiet


def test_a_lost_port_of_a_model_that_is_always_to_run_is_no_reason_to_give_up(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", restart="always")
    b.service.start("a")
    b.ports.will("a", Readiness("lost", "nginx"), Readiness("lost", "nginx"))
    b.processes.server("a").exit(1)
    b.advance_until(lambda: len(b.events(ev.RunReady)) == 2, 2.0)

    assert b.state("a") == "ready"


def _runs_in_the_end(b: Bench) -> int:
    """Return how many were ever begun, also once this owner and the next had time to."""
    for _ in range(2):
        b.advance(120)
        b.settle()
        b.reopen()
    return len(b.events(ev.RunQueued))


def test_a_stop_cancels_a_restart_that_is_still_to_come(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    b.service.start("a")
    b.processes.server("a").exit(1)
    b.until(lambda: len(b.events(ev.RunReady)) == 2)
    b.processes.server("a").exit(1)
    b.until_state("a", "backoff")
    b.service.stop("a")

    assert b.state("a") == "stopped"
    assert _runs_in_the_end(b) == 2


def test_a_stop_cancels_a_restart_that_waits_for_room(bench: Open) -> None:
    b = bench(max_loaded=1)
    _queued_restart(b)
    b.service.stop("a")
    b.service.stop("b")

    assert _runs_in_the_end(b) == 4


def test_a_stop_cancels_the_restart_of_a_server_whose_tree_is_being_swept(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    b.service.start("a")
    hold = b.processes.hold_stop("a")
    b.processes.server("a").exit(1)
    hold.wait_reached()
    stop = b.call(lambda: b.service.stop("a"))
    b.until(lambda: bool(b.events(ev.RunStopping, reason="operator")))
    hold.release()
    b.result(stop)

    assert b.events(ev.RunReleased)[0].outcome == "failed: exit"
    assert _runs_in_the_end(b) == 1


def test_a_stop_cancels_the_restart_of_a_server_that_was_lost_with_its_owner(bench: Open) -> None:
    b = bench(on_close="keep")
    b.define("a", restart="always")
    b.service.start("a")
    b.service.close()
    b.processes.server("a").exit(1)
    hold = b.processes.hold_stop("a")
    b.reopen(on_close="stop")
    hold.wait_reached()
    stop = b.call(lambda: b.service.stop("a"))
    b.settle()
    hold.release()
    b.result(stop)

    assert [e.outcome for e in b.events(ev.RunReleased)] == ["lost"]
    assert _runs_in_the_end(b) == 1


def test_a_stop_that_waits_for_a_lease_is_not_undone_by_a_crash(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    with b.service.lease("a") as lease:
        stop = b.call(lambda: b.service.stop("a"))
        b.until_state("a", "draining")
        b.processes.server("a").exit(1)
        b.result(stop)
        lost = lease.lost

    assert lost
    assert b.events(ev.RunReleased)[0].outcome == "failed: exit"
    assert _runs_in_the_end(b) == 1


def test_a_removal_that_waits_for_a_lease_is_not_undone_by_a_crash(bench: Open) -> None:
    b = bench()
    b.define("a")
    with b.service.lease("a"):
        removal = b.call(lambda: b.service.remove("a"))
        b.until_state("a", "draining")
        b.processes.server("a").exit(1)
        b.result(removal)

    assert b.service.status().models == ()
    assert b.events(ev.ModelRemoved, model="a")


def test_a_restart_is_not_made_once_the_model_is_defined_without_it(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    b.service.start("a")
    b.ports.will("a", Readiness("lost", "nginx"))
    b.processes.server("a").exit(1)
    b.until(lambda: bool(b.events(ev.RunReleased, outcome="failed: port")))
    b.define("a")

    assert _runs_in_the_end(b) == 2


def test_a_stop_cancels_a_restart_that_no_fault_of_the_server_put_off(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    b.service.start("a")
    b.ports.will("a", Readiness("lost", "nginx"))
    b.processes.server("a").exit(1)
    b.until(lambda: bool(b.events(ev.RunReleased, outcome="failed: port")))
    b.service.stop("a")

    assert _runs_in_the_end(b) == 2


# --- hold ---


def test_a_held_model_refuses_leases_until_it_is_started(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.service.start("a")
    b.service.stop("a", hold=True)
    with pytest.raises(ModelHeldError):
        b.service.lease("a")
    held = b.state("a")
    b.reopen()
    with pytest.raises(ModelHeldError):
        b.service.lease("a")
    b.service.start("a")
    b.service.stop("a", hold=True)
    b.service.reset("a")
    with b.service.lease("a"):
        pass

    assert held == "held"


def test_a_hold_of_a_model_that_crashes_meanwhile_stays_a_hold(bench: Open) -> None:
    b = bench()
    b.define("a")
    with b.service.lease("a"):
        stop = b.call(lambda: b.service.stop("a", hold=True))
        b.until_state("a", "draining")
        b.processes.server("a").exit(1)
        b.result(stop)

    assert b.state("a") == "held"


# --- ports ---


def test_a_lost_port_race_is_tried_three_times_outside_the_crash_budget(bench: Open) -> None:
    b = bench()
    b.define("a", crash_budget=1)
    lost = Readiness("lost", "port is answered by nginx")
    b.ports.will("a", lost, lost)
    with b.service.lease("a") as lease:
        port = lease.port
    reserved = [e.port for e in b.events(ev.RunReserved)]

    assert reserved == [18000, 18001, 18002]
    assert port == 18002
    assert b.service.model("a").attempts == 0


@pytest.mark.parametrize("owner_check", [True, False])
def test_whose_listener_is_not_looked_at_has_no_stranger_on_its_port(
    bench: Open, owner_check: bool
) -> None:
    b = bench()
    b.define("a", owner_check=owner_check)
    (port,) = b.service.start("a").ports
    b.ports.occupy(port, command="docker-proxy")

    assert set(b.service._runtime.look().strangers) == ({port} if owner_check else set())


def test_whose_listener_is_not_looked_at_did_not_lose_its_port_when_it_ends(bench: Open) -> None:
    b = bench()
    b.define("a", owner_check=False)
    answers = b.ports.hold("a")
    waiter = b.lease("a")
    answers.wait_reached()
    b.ports.occupy(b.events(ev.RunReserved)[0].port, command="docker-proxy")
    b.processes.server("a").exit(7)
    error = b.error(waiter)
    answers.release()

    assert isinstance(error, LoadError)
    assert (error.stage, error.code) == ("load", 7)


def test_who_waits_for_a_run_that_lost_its_port_hears_that_the_one_another_began_failed(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    b.ports.will("a", Readiness("lost", "port is answered by nginx"))
    stops = b.processes.hold_stop("a")
    first = b.lease("a")
    stops.wait_reached()
    b.service.define(spec("a", repo="org/new"))
    b.fetcher.will_fail("a", "the hub is down")
    second = b.lease("a")
    errors = [b.error(first), b.error(second)]
    stage = b.state("a")
    stops.release()

    assert [error.stage for error in errors if isinstance(error, LoadError)] == ["fetch"] * 2
    assert stage == "stopping"


def test_every_request_has_three_tries_of_its_own(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.ports.always("a", Readiness("lost", "port is answered by nginx"))
    errors = [b.error(b.lease("a")) for _ in range(3)]

    assert [e.stage for e in errors if isinstance(e, LoadError)] == ["port"] * 3
    assert len(b.events(ev.RunReserved)) == 9
    assert b.service.status().ports_free == 10
    assert b.state("a") == "stopped"


def test_a_stop_before_the_spawn_takes_no_try_from_the_next_request(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(refuse="no executable"))
    spawns = b.processes.hold_launch("a")
    start = b.call(lambda: b.service.start("a"))
    spawns.wait_reached()
    stop = b.call(lambda: b.service.stop("a"))
    b.until_state("a", "stopping")
    spawns.release()
    b.result(stop)
    cancelled = b.error(start)
    b.ports.will("a", Readiness("lost", "port is answered by nginx"))
    with b.service.lease("a") as lease:
        port = lease.port

    assert isinstance(cancelled, LoadCancelledError)
    assert port == 18002


def test_a_server_that_exits_because_a_stranger_has_its_port_lost_the_race(bench: Open) -> None:
    b = bench()
    b.define("a", crash_budget=1)
    hold = b.ports.hold("a")
    waiting = b.lease("a")
    b.until_state("a", "loading")
    b.ports.occupy(18000, command="nginx", pid=99)
    b.processes.server("a").exit(1)
    hold.release()
    lease = b.result(waiting)

    assert lease.port == 18001
    assert b.events(ev.RunExited)[0].error == "nginx (pid 99) listens on port 18000"
    assert b.service.model("a").attempts == 0
    lease.release()


def test_a_model_removed_while_its_lost_port_is_given_back_is_gone(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.ports.will("a", Readiness("lost", "nginx"))
    hold = b.processes.hold_stop("a")
    waiting = b.lease("a")
    hold.wait_reached()
    removal = b.call(lambda: b.service.remove("a"))
    b.until(lambda: bool(b.events(ev.RunStopping, reason="remove")))
    hold.release()
    b.result(removal)

    assert isinstance(b.error(waiting), LoadError)
    assert b.service.status().models == ()


# --- stops that fail ---


def test_a_model_that_cannot_be_stopped_refuses_leases_at_once_and_its_exit_releases_it(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(unkillable=True))
    b.service.start("a")
    with pytest.raises(StopFailedError) as stopped:
        b.service.stop("a")
    with pytest.raises(StopFailedError) as leased:
        b.service.lease("a", timeout_s=3600)
    taken = b.service.status().ports_held
    b.processes.server("a").exit(0)
    b.until_state("a", "stopped")
    with b.service.lease("a") as again:
        pass

    assert stopped.value.pids == leased.value.pids == (10_000_001,)
    assert taken == {18000: "a"}
    assert again.run == 2


def test_waiters_behind_a_run_that_cannot_be_stopped_are_told(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(unkillable=True))
    b.service.start("a")
    hold = b.processes.hold_stop("a")
    stop = b.call(lambda: b.service.stop("a"))
    hold.wait_reached()
    waiting = b.lease("a")
    hold.release()

    assert isinstance(b.error(stop), StopFailedError)
    assert isinstance(b.error(waiting), StopFailedError)
    b.processes.server("a").exit(0)
    b.until_state("a", "stopped")


def test_a_removal_of_what_cannot_be_stopped_is_told_and_ends_with_its_exit(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(unkillable=True))
    b.service.start("a")
    with pytest.raises(StopFailedError):
        b.service.stop("a")
    with pytest.raises(StopFailedError):
        b.service.remove("a")
    b.processes.server("a").exit(0)
    b.until(lambda: not b.service.status().models)

    assert b.service.status().ports_free == 10


@pytest.mark.parametrize("force", [False, True])
def test_a_model_removed_while_it_is_being_evicted_is_gone_in_the_end(
    bench: Open, *, force: bool
) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    b.service.start("a")
    hold = b.processes.hold_stop("a")
    other = b.lease("b")
    hold.wait_reached()
    removal = b.call(lambda: b.service.remove("a", force=force))
    b.until(lambda: bool(b.events(ev.RunStopping, reason="remove")))
    hold.release()
    b.result(removal)
    b.result(other).release()

    assert [m.name for m in b.service.status().models] == ["b"]
    with pytest.raises(UnknownModelError):
        b.service.lease("a")


def test_a_forced_stop_hurries_one_that_is_under_way_and_loses_the_leases(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(ignores=frozenset({15})))
    lease = b.service.lease("a")
    b.processes.hold_stop("a")  # only hurry ends it
    gentle = b.call(lambda: b.service.stop("a"))
    b.until_state("a", "draining")
    b.service.stop("a", force=True)
    b.result(gentle)

    assert lease.lost
    assert b.processes.server("a").signals == [9]


# --- deaths ---


def _model_actors() -> list[pykka.ActorRef[ModelActor]]:
    return pykka.ActorRegistry.get_by_class(ModelActor)


def _kill_the_actor() -> None:
    [ref] = _model_actors()
    ref.tell("no message of ours")


@pytest.mark.parametrize("stage", ["fetching", "launching", "loading"])
def test_the_death_of_a_model_actor_is_noticed_and_ends_the_load_it_drove(
    bench: Open, stage: str
) -> None:
    b = bench()
    b.define("a", repo="org/a" if stage == "fetching" else None)
    hold = {
        "fetching": b.fetcher.hold,
        "launching": b.processes.hold_launch,
        "loading": b.ports.hold,
    }[stage]("a")
    waiting = b.lease("a")
    b.until_state("a", stage)
    hold.wait_reached()
    _kill_the_actor()
    b.until(lambda: b.state("a") != stage)
    hold.release()
    error = b.error(waiting)
    b.until(lambda: not b.processes.alive())
    again = b.service.start("a")

    assert isinstance(error, LoadError)
    assert "actor ended" in str(error)
    assert again.state == "ready"


def test_the_death_of_a_model_actor_begins_its_stop_again(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.processes.hold_stop("a")
    stop = b.call(lambda: b.service.stop("a"))
    b.processes.hold_stop("a").wait_reached()
    _kill_the_actor()
    b.until(lambda: len(b.processes.stops) == 2)
    b.processes.hold_stop("a").release()
    b.result(stop)

    assert not b.processes.alive()


def test_the_death_of_a_model_actor_does_nothing_to_a_ready_run(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    [ref] = _model_actors()
    _kill_the_actor()
    ref.actor_stopped.wait(20)
    b.settle()
    with b.service.lease("a") as lease:
        run = lease.run
    b.processes.server("a").exit(1)
    b.until_state("a", "backoff")

    assert run == 1
    assert b.service.start("a").state == "ready"


def test_an_exception_in_the_registry_is_fail_stop_and_reopening_recovers(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.service.start("a")
    b.ports.hold("b")
    waiting = b.lease("b")
    b.until_state("b", "loading")
    lease = b.service.lease("a")
    b.log.fail_next(ZeroDivisionError("a fault of ours"))
    with pytest.raises(ServiceFailedError):
        b.service.pin("a")
    told = b.error(waiting)
    with pytest.raises(ServiceFailedError, match="a fault of ours"):
        b.service.lease("a")
    kept = len(b.processes.alive())
    not_lost = not lease.lost
    pid = b.processes.server("a").pid
    b.ports.hold("b").release()
    b.reopen()
    b.until_state("a", "ready")
    adopted = b.service.model("a").pid
    with b.service.lease("a"), b.service.lease("b"):
        pass

    assert isinstance(told, ServiceFailedError)
    assert (kept, not_lost) == (2, True)
    assert adopted == pid


def test_a_message_with_an_old_run_number_changes_nothing_and_is_counted(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.service.stop("a")
    b.service.start("a")
    before = len(b.log.rows)
    runtime = b.service._runtime
    stale = b.service.status().stale_messages
    for old in (
        msg.ExitSeen(1, ExitStatus(code=1), ()),
        msg.ReadyDone(1, Readiness("ready")),
        msg.FetchDone(1, None, "late"),
        msg.PrepareDone(1, None, problem="late"),
        msg.LaunchDone(1, None, "late"),
        msg.StopDone(1, None, "late"),
        msg.Emptied(1),
    ):
        runtime._post(old)
    b.settle()

    assert b.state("a") == "ready"
    assert len(b.log.rows) == before
    assert b.service.status().stale_messages == stale + 7


def test_messages_that_come_in_the_wrong_stage_change_nothing(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    before = len(b.log.rows)
    for late in (
        msg.ReadyDone(1, Readiness("timeout")),
        msg.FetchDone(1, None, "late"),
        msg.PrepareDone(1, None, problem="late"),
        msg.LaunchDone(1, None, "late"),
        msg.StopDone(1, None, "late"),
        msg.Emptied(1),
    ):
        b.service._runtime._post(late)
    b.settle()

    assert b.state("a") == "ready"
    assert len(b.log.rows) == before


def test_a_worker_that_is_never_heard_of_costs_time_and_not_truth(bench: Open) -> None:
    b = bench()
    b.define("a", load_timeout_s=5.0)
    b.ports.hold("a")
    waiting = b.lease("a", timeout_s=3600)
    b.until_state("a", "loading")
    b.advance(20)
    error = b.error(waiting)

    assert isinstance(error, LoadError)
    assert "nothing was heard" in str(error)
    b.until_state("a", "backoff")


@pytest.mark.parametrize(
    ("stage", "deadline_s"),
    [("fetching", 7 * 86_400), ("reserved", 60), ("launching", 60)],
)
def test_no_stage_of_a_load_lasts_for_ever(bench: Open, stage: str, deadline_s: float) -> None:
    b = bench()
    b.define("a", repo="org/a" if stage == "fetching" else None)
    holds = {
        "fetching": lambda: b.fetcher.hold("a"),
        "reserved": lambda: b.backends.hold("a"),
        "launching": lambda: b.processes.hold_launch("a"),
    }
    hold = holds[stage]()
    waiting = b.lease("a", timeout_s=30 * 86_400)
    hold.wait_reached()
    b.until_state("a", stage)
    b.advance(deadline_s - 1)
    early = waiting.done()
    b.advance(2)
    b.until(lambda: b.state("a") != stage)
    hold.release()
    error = b.error(waiting)

    assert not early
    assert f"nothing was heard within the {stage} deadline" in str(error)
    b.until(lambda: b.service.status().ports_held == {})


def test_a_stop_that_is_never_heard_of_is_shown_and_tried_again(bench: Open) -> None:
    b = bench()
    b.define("a", stop_timeout_s=5)
    b.service.start("a")
    hold = b.processes.hold_stop("a")  # until it is in a hurry
    stop = b.call(lambda: b.service.stop("a", timeout_s=3600))
    hold.wait_reached()
    b.advance(21)
    error = b.error(stop)
    shown = b.state("a"), b.service.status().ports_held
    b.advance_until(lambda: b.state("a") == "stopped", 1.0)

    assert isinstance(error, StopFailedError)
    assert "nothing was heard within the stopping deadline" in str(error)
    assert shown == ("stop_failed", {18000: "a"})
    assert b.service.status().ports_held == {}


# --- definitions ---


def test_a_reload_is_by_difference_and_waits_for_leases(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    lease, other = b.service.lease("a"), b.service.lease("b")
    b.service.define(spec("a", args=("--new",)), spec("b", aliases=("bb",), ttl_s=900))
    b.settle()
    states = b.state("a"), b.state("b")
    lost = lease.lost
    waiting = b.lease("a")
    lease.release()
    again = b.result(waiting)

    assert states == ("draining", "ready")
    assert not lost
    assert again.run == 3
    assert "--new" in b.processes.server("a").order.argv
    again.release()
    other.release()


def test_a_reload_during_a_load_gives_its_waiters_the_new_run(bench: Open) -> None:
    b = bench()
    b.define("a")
    hold = b.ports.hold("a")
    waiting = b.lease("a")
    b.until_state("a", "loading")
    b.service.define(spec("a", args=("--new",)))
    hold.release()
    lease = b.result(waiting)

    assert lease.run == 2
    assert "--new" in b.processes.server("a").order.argv
    lease.release()


def test_who_waited_for_a_load_that_stops_for_a_reload_hears_that_the_next_one_failed(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    loads, stops = b.ports.hold("a"), b.processes.hold_stop("a")
    waiting = b.lease("a")
    b.until_state("a", "loading")
    b.fetcher.will_fail("a", "the hub is down")
    b.service.define(spec("a", repo="org/new"))
    stops.wait_reached()
    error = b.error(waiting)
    stage = b.state("a")
    loads.release()
    stops.release()

    assert isinstance(error, LoadError)
    assert error.stage == "fetch"
    assert stage == "stopping"


def test_a_next_run_that_fetches_what_is_not_wanted_any_more_fetches_anew(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.service.define(spec("a", repo="org/old"))
    first = b.service.lease("a")
    stop = b.call(lambda: b.service.stop("a"))
    b.until_state("a", "draining")
    waiting = b.lease("a")
    b.service.define(spec("a", repo="org/new"))
    first.release()
    b.result(stop)
    b.result(waiting).release()

    assert b.backends.plans[-1].path == "/fake/org/new"


def test_the_whole_set_of_models_is_declared_at_open(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.service.start("a")
    b.reopen(models=[spec("b"), spec("c")])

    assert [m.name for m in b.service.status().models] == ["b", "c"]


# --- limits ---


def test_lowered_limits_converge_idle_runs_first_and_drain_the_leased(bench: Open) -> None:
    b = bench(max_loaded=3)
    b.lowered = True
    b.define("a", "b", "c")
    leases = [b.service.lease("a"), b.service.lease("b")]
    b.service.start("c")
    b.service.set_limits(max_loaded=1)
    b.until_state("c", "stopped")
    b.settle()
    states = b.state("a"), b.state("b")
    waiting = b.lease("c", timeout_s=3600)
    for lease in leases:
        lease.release()
    b.until_state("a", "stopped")
    b.result(waiting).release()

    assert states == ("draining", "ready")
    assert [e.reason for e in b.events(ev.RunEvicting)][:2] == ["limits", "limits"]


def test_limits_raised_again_undo_the_drains(bench: Open) -> None:
    b = bench(max_loaded=2)
    b.lowered = True
    b.define("a", "b")
    with b.service.lease("a"), b.service.lease("b"):
        b.service.set_limits(max_loaded=1)
        b.until_state("a", "draining")
        b.service.set_limits(max_loaded=2)
        b.settle()

        assert b.state("a") == "ready"
        assert b.service.status().lru == ("a", "b")


def test_memory_is_admitted_as_declared(bench: Open) -> None:
    b = bench(max_loaded=10, memory_limit=100)
    b.service.define(spec("a", memory=60), spec("b", memory=40), spec("c", memory=50))
    b.service.start("a")
    b.clock.advance(1)
    b.service.start("b")
    both = b.service.status().memory_bytes
    b.service.start("c")
    [event] = b.events(ev.RunEvicting)

    assert both == 100
    assert (event.model, event.reason) == ("a", "memory")


def test_memory_that_is_unknown_is_admitted_alone_and_learned(bench: Open) -> None:
    b = bench(max_loaded=10, memory_limit=100)
    b.define("a", "b")
    b.processes.always("a", Script(peak_bytes=30))
    b.processes.always("b", Script(peak_bytes=300))
    b.service.start("a")
    b.service.start("b")
    alone = b.service.status().loaded
    b.service.stop("b")
    b.service.start("a")
    known = b.service.status().memory_bytes
    b.service.start("b")

    assert alone == 1
    assert known == 30
    assert [m.peak_bytes for m in b.service.status().models] == [30, 300]
    assert b.service.status().memory_bytes == 100  # clipped to the limit


def test_a_replayed_log_is_the_live_state(bench: Open) -> None:
    b = bench()
    b.define("a", "b", "c")
    for name in "abcba":
        b.service.lease(name).release()
    b.settle()
    live = b.service._runtime.registry.state

    assert replay(b.entries()) == live
    assert {run.stage for run in live.runs.values()} == {Stage.READY}
