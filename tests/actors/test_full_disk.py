"""A log that cannot be written: what is ready goes on, what is new is refused, nothing is lost."""

from __future__ import annotations

import pytest

from actors.conftest import Open
from moorage import LogUnavailableError, UnknownModelError
from moorage.core import events as ev
from moorage.core.fold import replay
from moorage.testing import Script

FULL = "no space left on device"


def test_ready_models_are_leased_and_new_loads_refused_with_the_reason(bench: Open) -> None:
    b = bench()
    b.define("a", "b")
    b.service.start("a")
    b.log.unavailable = FULL
    with pytest.raises(LogUnavailableError, match=FULL):
        b.service.lease("b")
    with b.service.lease("a") as lease:
        warm = lease.run
    problem = b.service.status().log_problem
    b.log.unavailable = None
    b.service.lease("b").release()

    assert warm == 1
    assert problem == FULL
    assert b.service.status().log_problem == ""


def test_a_name_nobody_has_is_told_also_while_there_is_something_to_write(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.log.unavailable = FULL
    b.service.stop("a")
    assert b.service.status().unwritten
    for verb in ("pin", "unpin", "reset", "start", "stop", "remove"):
        with pytest.raises(UnknownModelError):
            getattr(b.service, verb)("z")
    for verb in ("pin", "reset"):
        with pytest.raises(LogUnavailableError):
            getattr(b.service, verb)("a")
    b.log.unavailable = None


def test_stops_and_exits_work_and_are_written_in_order_once_the_disk_is_back(
    bench: Open,
) -> None:
    b = bench(max_loaded=3)
    b.define("a", "b", "c")
    for name in "abc":
        b.service.start(name)
    b.log.unavailable = FULL
    b.service.stop("a")
    lease = b.service.lease("b")
    b.processes.server("b").exit(1)
    b.until_state("b", "backoff")
    lost = lease.lost
    unwritten = b.service.status().unwritten
    told = len(b.log.rows)
    live = b.service._runtime.registry.state
    b.log.unavailable = None
    b.advance_until(lambda: b.service.status().unwritten == 0, 1.0)
    written = [e.event.kind for e in b.entries()][told:]

    assert lost
    assert unwritten > 5
    assert replay(b.entries()) == live
    assert written[:2] == ["run.draining", "run.stopping"]
    assert [e.model for e in b.events(ev.RunReleased)] == ["a", "b"]
    assert b.state("c") == "ready"


def test_a_load_under_way_becomes_ready_and_its_waiters_are_served(bench: Open) -> None:
    b = bench()
    b.define("a")
    hold = b.ports.hold("a")
    waiting = b.lease("a")
    b.until_state("a", "loading")
    b.log.unavailable = FULL
    hold.release()
    lease = b.result(waiting)
    not_written = not b.events(ev.RunReady)
    b.log.unavailable = None
    b.advance_until(lambda: bool(b.events(ev.RunReady)), 1.0)

    assert lease.run == 1
    assert not_written
    lease.release()


def test_a_load_that_could_not_be_recorded_before_its_spawn_spends_no_crash_budget(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", crash_budget=1)
    hold = b.backends.hold("a")
    waiting = b.lease("a")
    hold.wait_reached()
    b.log.unavailable = FULL
    hold.release()
    error = b.error(waiting)
    b.log.unavailable = None
    b.advance_until(lambda: b.service.status().unwritten == 0, 1.0)

    assert FULL in str(error)
    assert b.processes.launches == []
    assert b.state("a") == "stopped"
    b.service.start("a")


def test_what_is_so_by_unwritten_facts_alone_is_not_acknowledged(bench: Open) -> None:
    b = bench()
    b.define("a", restart="always")
    b.processes.will("a", Script(refuse="no executable"))
    b.error(b.call(lambda: b.service.start("a")))
    b.log.unavailable = FULL
    b.service.stop("a")  # which ends the backoff, but no row says so yet

    with pytest.raises(LogUnavailableError):
        b.service.reset("a")
    b.log.unavailable = None
    b.service.reset("a")
    assert b.service.status().unwritten == 0


def test_an_eviction_waits_for_the_disk_and_the_victim_is_lent_meanwhile(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    held = b.service.lease("a")
    waiting = b.lease("b", timeout_s=3600)
    b.until_state("a", "draining")
    b.log.unavailable = FULL
    held.release()
    b.settle_now()
    still = b.state("a")
    b.log.unavailable = None
    b.advance_until(waiting.done, 1.0)

    assert still == "draining"
    b.result(waiting).release()


def test_operators_changes_are_refused_and_leave_everything_as_it_was(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.service.start("a")
    b.log.unavailable = FULL
    for change in (
        lambda: b.service.pin("a"),
        lambda: b.service.stop("a", hold=True),
        lambda: b.service.remove("a"),
        lambda: b.service.set_limits(max_loaded=9),
        lambda: b.define("b"),
    ):
        with pytest.raises(LogUnavailableError):
            change()
    status = b.service.status()
    with b.service.lease("a") as lease:
        run = lease.run
    b.log.unavailable = None

    assert (run, status.max_loaded, status.model("a").pinned) == (1, 2, False)
    assert [m.name for m in status.models] == ["a"]


def test_closing_with_a_full_disk_ends_the_servers_and_the_next_owner_sweeps_the_rest(
    bench: Open,
) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(children=1))
    b.service.start("a")
    b.log.unavailable = FULL
    b.service.close(drain_s=0)
    gone = not b.processes.alive()
    b.log.unavailable = None
    b.reopen()
    b.until_state("a", "stopped")

    assert gone
    assert b.events(ev.RunReleased)[-1].outcome == "lost"
