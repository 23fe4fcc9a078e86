"""What comes in an unlucky order: after the end, too late, twice, or for nobody any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pykka
import pytest

from actors.bench import WAIT_S, Bench, spec
from actors.conftest import Open
from moorage import (
    CloseIncompleteError,
    Lease,
    LoadCancelledError,
    LoadError,
    LogUnavailableError,
    ModelService,
    MoorageError,
    NameClashError,
    StopFailedError,
    UnknownModelError,
    WaitTimeoutError,
)
from moorage.actors import deadlines
from moorage.actors import messages as msg
from moorage.actors.desk import SPARE_DEADLINES, Desk
from moorage.actors.shells import ModelActor
from moorage.actors.tickets import Ticket, leave
from moorage.aio import task_owner
from moorage.core import events as ev
from moorage.protocols import Flag, ReadinessOrder
from moorage.testing import ExitStatus, FakePorts, FakeProcesses, Readiness, Script, fake_parts


@contextlib.contextmanager
def frozen(b: Bench) -> Iterator[None]:
    """Keep the registry from its inbox: what is told meanwhile is there in that order."""
    reached, go = threading.Event(), threading.Event()
    ticket: Ticket[None] = Ticket("freeze")

    def wait() -> None:
        reached.set()
        go.wait(WAIT_S)

    ticket.when_answered(wait)  # called by who answers
    b.service._runtime.ask(msg.SetLimits(ticket, None, ..., None))
    assert reached.wait(WAIT_S)
    try:
        yield
    finally:
        go.set()


# --- after the end ---


def test_nothing_follows_the_closing_in_the_log_or_happens_to_what_was_kept(bench: Open) -> None:
    b = bench()
    b.define("a", ttl_s=5.0)
    b.define("b", restart="always")
    b.service.start("a")
    b.service.start("b")
    runtime = b.service._runtime
    with frozen(b):
        b.service._ask_to_close("keep", drain_s=0.0)
        b.clock.advance(120)  # both the idle time and the interval of notes are over
        runtime._post(msg.Wake())
        runtime._post(msg.ActorDied("a", "too late"))
    b.service.close()

    assert [e.kind for e in b.events()][-1] == "service.closed"
    assert [server.model for server in b.processes.alive()] == ["a", "b"]


def test_an_opening_refused_says_why_also_when_its_closing_leaves_something(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(stuck_children=1))
    b.service.start("a")
    with pytest.raises(StopFailedError):
        b.service.remove("a")
    with pytest.raises(CloseIncompleteError):
        b.service.close()
    b.log = b.log.reopened()
    b.options["models"] = (spec("b", aliases=("a",)),)
    with pytest.raises(NameClashError):
        b._open()
    del b.options["models"]
    b.processes.server("a").let_go()
    b.log = b.log.reopened()
    b.service = b._open()

    b.until(lambda: bool(b.events(ev.ModelRemoved)))


def test_a_closing_that_keeps_servers_does_not_name_them_as_left(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.service.start("a")
    b.service.start("b")
    stops = b.processes.hold_stop("b")
    stop = b.call(lambda: b.service.stop("b"))
    stops.wait_reached()
    with pytest.raises(CloseIncompleteError) as caught:
        b.service.close("keep", timeout_s=0.05)
    stops.release()
    b.error(stop)
    b.reopen()

    assert [left.split()[0] for left in caught.value.left] == ["b"]


# --- removals that are given up ---


@pytest.mark.parametrize("before", ["operator", "reload", "unhealthy"])
def test_a_removal_given_up_leaves_the_stop_that_was_under_way_before_it(
    bench: Open, before: str
) -> None:
    b = bench()
    b.define("a", health_interval_s=0.01 if before == "unhealthy" else None)
    with b.service.lease("a"):
        if before == "operator":
            with pytest.raises(WaitTimeoutError):
                b.service.stop("a", timeout_s=0.01)
        elif before == "reload":
            b.define("a", args=("--new",))
        else:
            b.ports.always("a", Readiness("timeout", "no answer"))
        b.until(lambda: b.service.model("a").reason == before)
        with pytest.raises(WaitTimeoutError):
            b.service.remove("a", timeout_s=0.01)
        b.settle()
        after = b.service.model("a")
    b.ports.always("a", Readiness("ready"))
    b.until(lambda: b.service.model("a").run is None)

    assert (after.state, after.reason) == ("draining", before)
    [end] = b.events(ev.RunReleased)
    assert end.outcome == ("failed: health" if before == "unhealthy" else "ok")


def test_a_removal_whose_caller_left_before_it_was_heard_does_not_happen(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    with frozen(b), pytest.raises(WaitTimeoutError):
        b.service.remove("a", timeout_s=0.01)
    b.settle()

    assert b.state("a") == "ready"


def test_a_removal_given_up_leaves_the_stop_that_another_waits_for(bench: Open) -> None:
    b = bench()
    b.define("a")
    runtime = b.service._runtime
    with b.service.lease("a"):
        stop = b.call(lambda: b.service.stop("a"))
        b.until(lambda: b.service.model("a").reason == "operator")
        removal: Ticket[None] = Ticket("remove")
        runtime.ask(msg.Remove(removal, "a", force=False))
        b.settle()
        meanwhile = b.service.model("a").reason
        leave(removal, runtime.left)
        b.settle()
        after = b.service.model("a")
    b.result(stop)

    assert meanwhile == "remove"
    assert (after.state, after.reason) == ("draining", "operator")
    assert b.state("a") == "stopped"


def test_a_removal_goes_on_when_who_waits_for_the_stop_before_it_leaves(bench: Open) -> None:
    b = bench()
    b.define("a")
    runtime = b.service._runtime
    with b.service.lease("a"):
        stop: Ticket[None] = Ticket("stop")
        runtime.ask(msg.Stop(stop, "a", force=False, hold=False))
        b.settle()
        removal = b.call(lambda: b.service.remove("a"))
        b.until(lambda: b.service.model("a").reason == "remove")
        leave(stop, runtime.left)
        b.settle()
        after = b.service.model("a").reason
    b.result(removal)

    assert after == "remove"
    assert b.service.status().models == ()


# --- what was adopted ---


def test_who_waits_for_an_adopted_run_has_it_as_it_answers_though_another_wants_its_room(
    bench: Open,
) -> None:
    b = bench(max_loaded=1, on_close="keep")
    b.define("a", "b")
    b.service.start("a")
    proof = b.ports.hold("a")
    b.reopen()
    first, other = b.lease("a"), b.lease("b")
    proof.release()
    b.until(lambda: first.done() or other.done())
    overtaken = other.done()
    with b.result(first) as lease:
        run = lease.run
    b.result(other).release()

    assert not overtaken
    assert run == 1


def test_an_adopted_run_is_not_idle_while_it_is_still_to_answer(bench: Open) -> None:
    b = bench(on_close="keep")
    b.define("a", ttl_s=1.0)
    b.service.start("a")
    proof = b.ports.hold("a")
    b.reopen()
    waiting = b.lease("a", timeout_s=3600)
    b.advance(5)
    proof.release()
    with b.result(waiting) as lease:
        run = lease.run

    assert run == 1
    assert not b.events(ev.RunEvicting)


# --- stops ---


def test_the_exit_of_a_stop_that_took_long_is_waited_for_from_its_sweep_on(
    bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.define("a")
    told: list[Callable[[ExitStatus], None]] = []

    def watch(_process: object, on_exit: Callable[[ExitStatus], None], **_: object) -> None:
        told.append(on_exit)

    def swept() -> bool:
        b.settle()
        return bool(b.events(ev.RunSwept))

    monkeypatch.setattr(b.processes, "watch", watch)
    b.service.start("a")
    stops = b.processes.hold_stop("a")
    stop = b.call(lambda: b.service.stop("a"))
    stops.wait_reached()
    b.advance(deadlines.EXIT_S + 1)
    stops.release()
    b.until(swept)
    b.settle()
    waits = b.state("a")
    told[0](ExitStatus(code=7))
    b.result(stop)

    assert waits == "stopping"
    assert [e.code for e in b.events(ev.RunExited)] == [7]


def test_a_forced_stop_that_was_refused_does_not_hurry_a_later_one(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.log.unavailable = "no space left on device"
    with pytest.raises(LogUnavailableError):
        b.service.stop("a", force=True, hold=True)
    with pytest.raises(LogUnavailableError):
        b.service.remove("a", force=True)
    b.log.unavailable = None
    b.service.stop("a")

    assert b.processes.server("a").signals == [15]


def test_a_stop_begun_anew_does_not_keep_the_registry_busy_until_it_ends(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(unkillable=True))
    b.service.start("a")
    with pytest.raises(StopFailedError):
        b.service.stop("a")
    hold = b.processes.hold_stop("a")
    again = b.call(lambda: b.service.stop("a"))
    hold.wait_reached()
    b.advance(6)  # the time of the next look, had nobody asked for it
    due = deadlines.next_due(b.service._runtime.registry)
    b.processes.server("a").exit(0)
    hold.release()
    b.result(again)

    assert due is None or due > b.clock.monotonic()


def test_a_stop_whose_actor_died_does_not_keep_the_registry_busy_until_it_ends(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", stop_timeout_s=60)
    b.service.start("a")
    hold = b.processes.hold_stop("a")
    stop = b.call(lambda: b.service.stop("a"))
    hold.wait_reached()
    [ref] = pykka.ActorRegistry.get_by_class(ModelActor)
    ref.tell("what no actor understands")
    ref.actor_stopped.wait(WAIT_S)
    b.settle()
    b.advance(6)  # the time of the next look, had the stop failed
    due = deadlines.next_due(b.service._runtime.registry)
    hold.release()
    b.result(stop)

    assert due is None or due > b.clock.monotonic()


def test_waiters_of_a_load_that_failed_and_cannot_be_stopped_are_told(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(unkillable=True))
    b.ports.will("a", Readiness("timeout", "not ready in time"))
    error = b.error(b.lease("a"))
    b.processes.server("a").exit(0)
    b.until(lambda: b.service.model("a").run is None)

    assert isinstance(error, StopFailedError)


# --- joint requests ---


def test_what_was_begun_for_a_joint_request_alone_ends_with_its_failure(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.define("b", repo="org/b")
    fetch = b.fetcher.hold("b")
    loading = b.ports.hold("a")
    joint = b.lease("a", "b")
    fetch.wait_reached()
    b.ports.always("a", Readiness("timeout", "never ready"))
    loading.release()
    error = b.error(joint)
    b.settle()

    assert isinstance(error, LoadError)
    assert b.state("b") == "stopped"


def test_what_was_begun_for_a_joint_request_alone_ends_with_the_removal_of_the_other(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    b.define("b", repo="org/b")
    fetch = b.fetcher.hold("b")
    joint = b.lease("a", "b")
    fetch.wait_reached()
    b.until_state("a", "ready")
    b.service.remove("a")
    error = b.error(joint)
    b.settle()

    assert isinstance(error, UnknownModelError)
    assert b.state("b") == "stopped"


def test_what_was_begun_for_a_joint_request_alone_ends_when_its_caller_leaves_meanwhile(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    b.define("b", repo="org/b")
    fetch = b.fetcher.hold("b")
    joint: Ticket[Any] = Ticket("lease_all", names=("a", "b"), leases=True)
    runtime = b.service._runtime
    assert runtime.desk.enter(joint)
    runtime.ask(msg.Want(joint))
    fetch.wait_reached()
    with frozen(b):
        runtime.ask(msg.Want(joint))  # as the registry tells itself when one of the two ended
        leave(joint, runtime.left)
    b.settle()

    assert b.state("b") == "stopped"


def test_a_joint_request_is_not_granted_a_run_whose_exit_was_seen(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.service.start("a")
    b.service.start("b")
    b.service._runtime.hall.died(1)  # as the watcher does, before it tells
    joint = b.lease("a", "b")
    early = joint.done()
    b.processes.server("a").exit(1)
    with b.result(joint) as leases:
        runs = [lease.run for lease in leases.values()]
        lost = [lease.lost for lease in leases.values()]

    assert not early
    assert runs == [3, 2]
    assert lost == [False, False]


def test_ready_counts_the_leases_of_its_own_step_only(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    hold = b.ports.hold("b")
    joint = b.lease("a", "b")
    b.until_state("a", "ready")
    hold.release()
    b.result(joint).release()

    assert [(e.model, e.leases) for e in b.events(ev.RunReady)] == [("a", 0), ("b", 1)]


# --- room ---


def test_a_pinned_model_that_drains_to_be_stopped_is_waited_for(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    b.service.pin("a")
    lease = b.service.lease("a")
    stop = b.call(lambda: b.service.stop("a"))
    b.until_state("a", "draining")
    waiting = b.lease("b")
    early = waiting.done()
    lease.release()
    b.result(stop)
    with b.result(waiting) as other:
        model = other.model

    assert not early
    assert model == "b"


# --- who asks ---


def run_in_thread(work: Callable[[], object]) -> int | None:
    """Run to the end and return the number the system gave to the thread."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    return thread.ident


def test_a_thread_is_not_taken_for_one_that_ended_and_left_its_lease_to_others(
    bench: Open,
) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    held: list[Lease] = []
    errors: list[BaseException] = []

    def ask() -> None:
        if threading.get_ident() != first:
            return  # the system gave it another number this time
        try:
            b.service.lease("b", timeout_s=0.01)
        except MoorageError as error:
            errors.append(error)

    first = run_in_thread(lambda: held.append(b.service.lease("a")))
    tries = 0
    while not errors and tries < 1000:
        tries += 1
        run_in_thread(ask)
    held[0].release()

    assert isinstance(errors[0], WaitTimeoutError)


def test_a_task_is_not_taken_for_one_that_ended_and_left_its_lease_to_others(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    owners: list[object] = []

    async def take() -> Lease:
        owners.append(task_owner())
        return await b.service.alease("a")

    async def later() -> None:
        owners.append(task_owner())
        await b.service.alease("b", timeout_s=0.01)

    async def both() -> None:
        lease = await asyncio.create_task(take())
        gc.collect()
        try:
            with pytest.raises(WaitTimeoutError):
                await asyncio.create_task(later())
        finally:
            lease.release()

    asyncio.run(both())

    assert owners[0] != owners[1]


def test_a_lease_that_is_lost_with_its_task_is_given_back(bench: Open) -> None:
    b = bench()
    b.define("a")

    async def lose() -> None:
        lease = await b.service.alease("a")
        await asyncio.Event().wait()
        lease.release()

    loop = asyncio.new_event_loop()
    b.service.start("a")
    task = loop.create_task(lose())
    loop.run_until_complete(asyncio.sleep(0))
    held = b.service.model("a").leases
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task, loop
    gc.collect()

    assert held == 1
    assert b.service.model("a").leases == 0


# --- model actors and threads that cannot be had ---


@pytest.fixture
def starve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench], pytest.MonkeyPatch]:
    """Let a service get no thread any more, as at the limit of its user; undone by `undo`."""

    def refuse(name: str, work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    def starve_(b: Bench) -> pytest.MonkeyPatch:
        monkeypatch.setattr(b.service._runtime.threads, "run", refuse)
        return monkeypatch

    return starve_


@pytest.mark.parametrize("hold", [True, False])
def test_a_run_that_lost_its_port_is_not_followed_by_another_once_it_was_stopped(
    bench: Open, hold: bool
) -> None:
    b = bench()
    b.define("a")
    b.ports.will("a", Readiness("lost", "a stranger answers"))
    stops = b.processes.hold_stop("a")
    waiter = b.lease("a")
    stops.wait_reached()
    with pytest.raises(WaitTimeoutError):
        b.service.stop("a", hold=hold, timeout_s=0.01)
    b.settle()
    stops.release()
    error = b.error(waiter)
    b.settle()

    assert isinstance(error, LoadError)
    assert error.stage == "port"
    assert len(b.events(ev.RunQueued)) == 1
    assert b.state("a") == ("held" if hold else "stopped")


def test_a_new_definition_does_not_begin_again_what_was_stopped_while_it_loaded(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    loads, stops = b.ports.hold("a"), b.processes.hold_stop("a")
    waiter = b.lease("a")
    loads.wait_reached()
    stop = b.call(lambda: b.service.stop("a", hold=True))
    stops.wait_reached()
    b.define("a", args=("--new",))
    stops.release()
    b.result(stop)
    error = b.error(waiter)

    assert isinstance(error, LoadCancelledError)
    assert len(b.events(ev.RunQueued)) == 1
    assert b.state("a") == "held"


Starve = Callable[[Bench], pytest.MonkeyPatch]


def test_a_run_that_ends_in_the_queue_needs_no_thread_to_be_forgotten(
    bench: Open, starve: Starve, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench(max_loaded=1)
    b.define("a")
    lease = b.service.lease("a")
    b.define("a", args=("--new",))
    waiting = b.lease("a", timeout_s=60)  # its run queues behind the one that drains
    starved = starve(b)
    b.advance(61)
    error = b.error(waiting)
    b.until(lambda: bool(b.events(ev.RunAbandoned)))
    b.settle()
    starved.undo()
    lease.release()
    b.until_state("a", "stopped")

    assert isinstance(error, WaitTimeoutError)
    assert "a model's actor stopped" not in caplog.text


def test_an_actor_that_no_thread_could_be_had_for_is_not_left_to_who_stops_all(
    bench: Open, starve: Starve
) -> None:
    b = bench()
    b.define("a")
    starved = starve(b)
    error = b.error(b.lease("a"))
    b.settle()
    left = pykka.ActorRegistry.get_by_class(ModelActor)
    starved.undo()

    assert isinstance(error, LoadError)
    assert left == []


def test_a_run_that_gets_no_thread_fails_alone_and_its_model_s_other_run_goes_on(
    bench: Open, starve: Starve, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench()
    b.define("a", repo="org/model")
    launch = b.processes.hold_launch("a")
    first = b.lease("a")
    launch.wait_reached()
    starved = starve(b)
    b.define(
        "a", repo="org/model", args=("--new",)
    )  # the one that is being spawned is to be loaded anew
    error = b.error(first)
    b.settle()
    held, ended = b.service.status().ports_held, b.events(ev.RunReleased)
    starved.undo()
    launch.release()
    b.until(lambda: bool(b.events(ev.RunReleased)))

    assert "can't start new thread" in str(error)
    assert list(held.values()) == ["a"]  # while a server may still come
    assert ended == []
    assert not b.processes.alive()
    assert "a model's actor stopped" not in caplog.text


def test_an_actor_that_ends_between_two_orders_is_followed_by_another(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    [ref] = pykka.ActorRegistry.get_by_class(ModelActor)
    ref.stop()  # it was there when its directory looked last
    b.service.stop("a")

    assert not b.processes.alive()


def test_the_successor_of_an_actor_that_died_watches_and_stops_what_serves(bench: Open) -> None:
    b = bench()
    b.define("a", health_interval_s=0.01)
    b.service.start("a")
    [ref] = pykka.ActorRegistry.get_by_class(ModelActor)
    ref.tell("what no actor understands")
    ref.actor_stopped.wait(WAIT_S)
    asked = len(b.ports.asked)
    b.until(lambda: len(b.ports.asked) > asked + 2)
    b.ports.always("a", Readiness("timeout", "no answer"))
    b.until(lambda: bool(b.events(ev.RunReleased)))

    [end] = b.events(ev.RunReleased)
    assert end.outcome == "failed: health"
    assert b.processes.server("a").signals == [15]


def test_a_server_that_hung_when_its_actor_died_is_found_out(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.ports.always("a", Readiness("timeout", "no answer"))
    [ref] = pykka.ActorRegistry.get_by_class(ModelActor)
    ref.tell("what no actor understands")
    b.until(lambda: bool(b.events(ev.RunReleased)))

    [end] = b.events(ev.RunReleased)
    assert end.outcome == "failed: health"


# --- what is kept ---


def test_deadlines_of_answered_requests_are_not_kept_until_they_have_passed() -> None:
    desk = Desk(limit=10)
    asked = 10 * SPARE_DEADLINES
    first = Ticket[None]("first", deadline=1e9)
    desk.enter(first)
    desk.attach(first, 1)
    for _ in range(asked):
        ticket = Ticket[None]("lease", deadline=2e9)
        desk.enter(ticket)
        desk.attach(ticket, 1)
        desk.leave(ticket)

    assert desk.next_deadline() == 1e9
    assert len(desk._deadlines) < 2 * SPARE_DEADLINES


def test_a_key_that_was_cut_is_made_anew_else_hashes_of_secrets_could_be_guessed(
    bench: Open, tmp_path: Path
) -> None:
    (tmp_path / "moorage.key").write_bytes(b"")  # a full disk, or a crash, at the very first open
    b = bench()
    b.define("a", secrets={"TOKEN": "a value"})
    [defined] = b.events(ev.ModelDefined)
    unkeyed = hmac.new(b"", b"TOKEN=a value", "sha256").hexdigest()

    assert len((tmp_path / "moorage.key").read_bytes()) == 32
    assert defined.secrets_hash != unkeyed


class FaultyPorts(FakePorts):
    """Has a fault of its own where it waits for readiness."""

    def wait_ready(self, order: ReadinessOrder, cancelled: Flag) -> Readiness:
        raise ZeroDivisionError("a fault of ours")


def test_a_fault_while_readiness_is_waited_for_fails_the_load_at_once(tmp_path: Path) -> None:
    processes = FakeProcesses()
    parts = fake_parts(processes=processes, ports=FaultyPorts(processes))
    with ModelService.open(tmp_path, parts=parts) as service:
        service.define(spec("a"))
        with pytest.raises(LoadError, match="a fault of ours"):
            service.lease("a")

        assert not processes.alive()


@pytest.mark.parametrize("stage", ["fetching", "reserved", "launching"])
def test_an_exit_that_is_told_before_the_launch_changes_nothing(bench: Open, stage: str) -> None:
    b = bench()
    b.define("a", repo="org/a" if stage == "fetching" else None)
    hold = {
        "fetching": b.fetcher.hold,
        "reserved": b.backends.hold,
        "launching": b.processes.hold_launch,
    }[stage]("a")
    waiting = b.lease("a")
    b.until_state("a", stage)
    b.service._runtime._post(msg.ExitSeen(1, ExitStatus(code=1), ()))
    b.settle()
    hold.release()

    with b.result(waiting) as lease:
        assert lease.run == 1


def test_use_on_a_full_disk_does_not_pile_up_with_time(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.log.unavailable = "no space left on device"
    for _ in range(5):
        b.service.lease("a").release()
        b.advance(61)
    unwritten = b.service.status().unwritten
    b.log.unavailable = None
    b.advance(61)
    b.advance(61)

    assert unwritten == 0
    assert sum(granted for note in b.events(ev.UsageNoted) for _, granted in note.leases) == 5
