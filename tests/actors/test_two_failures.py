"""The two failures this project starts from: the leaked port and the split lock."""

from __future__ import annotations

import threading

import pytest

from actors.bench import spec
from actors.conftest import Open
from moorage import (
    LoadError,
    NameClashError,
    PortPoolExhaustedError,
    UnknownModelError,
    WaitTimeoutError,
)
from moorage.core import events as ev
from moorage.testing import ExitStatus, Readiness, Script

STARTS = 101


@pytest.mark.parametrize("stage", ["fetch", "prepare", "launch", "load", "ready"])
def test_starts_that_fail_between_reserve_and_ready_leave_no_port_held(
    bench: Open, stage: str
) -> None:
    b = bench()
    b.define("a", repo="org/a" if stage == "fetch" else None, crash_budget=STARTS + 1)
    match stage:
        case "fetch":
            b.fetcher.will_fail("a", *["the hub is down"] * STARTS)
        case "prepare":
            b.backends.refuse("a", "the executable is missing")
        case "launch":
            b.processes.always("a", Script(refuse="the log folder cannot be made"))
        case "load":
            b.processes.always("a", Script(exits=ExitStatus(code=3), log=("out of memory",)))
        case _:
            b.ports.always("a", Readiness("timeout", "last seen: 503"))
    stages = set()
    for _ in range(STARTS):
        with pytest.raises(LoadError) as caught:
            b.service.start("a")
        stages.add(caught.value.stage)
    status = b.service.status()

    assert stages == {stage}
    assert status.ports_held == {}
    assert status.ports_free == 10
    assert len(b.events(ev.RunReserved)) == len(b.events(ev.RunReleased))
    ends = [e.run for e in b.events(ev.RunReleased, ev.RunAbandoned)]
    assert ends == sorted(set(ends))
    assert len(ends) == STARTS


def test_a_server_that_dies_at_once_tells_its_exit_code_and_its_last_lines(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.processes.will("a", Script(exits=ExitStatus(signal=9), log=("loading", "killed")))
    error = b.error(b.lease("a"))

    assert isinstance(error, LoadError)
    assert (error.stage, error.signal, error.code) == ("load", 9, None)
    assert error.log_tail == ("loading", "killed")
    assert b.service.status().ports_held == {}


def test_an_exhausted_pool_names_its_holders_and_the_next_release_cures_it(bench: Open) -> None:
    b = bench(ports=range(18000, 18002), max_loaded=3)
    b.define("a", "b", "c")
    b.service.start("a")
    b.service.start("b")
    with pytest.raises(PortPoolExhaustedError) as caught:
        b.service.lease("c")
    b.service.stop("a")
    cured = b.service.start("c")

    assert caught.value.holders == ("a (18000)", "b (18001)")
    assert "18000-18001" in str(caught.value)
    assert cured.ports == (18000,)


def test_ports_are_handed_out_least_recently_released_first(bench: Open) -> None:
    b = bench(ports=range(18000, 18003))
    b.define("a")
    used = []
    for _ in range(4):
        used.append(b.service.start("a").ports[0])
        b.service.stop("a")

    assert used == [18000, 18001, 18002, 18000]


def test_a_stranger_on_a_port_is_skipped_and_recorded(bench: Open) -> None:
    b = bench()
    b.define("a")
    b.ports.occupy(18000, pid=77, command="nginx")

    assert b.service.start("a").ports == (18001,)
    assert [(e.port, e.pid, e.command) for e in b.events(ev.PortBlocked)] == [(18000, 77, "nginx")]


def test_any_mix_of_start_stop_evict_timeout_and_failure_has_one_builder_a_model(
    bench: Open,
) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b", crash_budget=1000)
    b.processes.will("a", Script(), Script(exits=ExitStatus(code=1)), Script())
    begun = threading.Barrier(6)

    def client(number: int) -> None:
        begun.wait()
        for turn in range(15):
            name = "ab"[(number + turn) % 2]
            try:
                with b.service.lease(name):
                    pass
                if (number, turn % 5) == (0, 0):
                    b.service.stop(name, force=True)
                if number == 1:
                    b.service.start("ab"[turn % 2], timeout_s=0.001)  # it may well be in time
            except (LoadError, WaitTimeoutError):
                pass
            except Exception as error:
                if type(error).__name__ not in ("LoadCancelledError", "ModelUnavailableError"):
                    raise

    clients = [b.call(lambda n=n: client(n)) for n in range(6)]
    for future in clients:
        b.result(future)

    assert b.processes.most_alive["a"] == 1
    assert b.processes.most_alive["b"] == 1


def test_a_lease_that_comes_after_a_removal_began_never_gets_the_dying_run(bench: Open) -> None:
    b = bench()
    b.define("a")
    with b.service.lease("a") as lease:
        removal = b.call(lambda: b.service.remove("a"))
        b.until_state("a", "draining")
        late = b.error(b.lease("a"))
    b.result(removal)
    b.define("a")
    with b.service.lease("a") as again:
        pass

    assert isinstance(late, UnknownModelError)
    assert again.run != lease.run


def test_a_lease_that_comes_after_a_stop_began_waits_and_gets_the_new_run(bench: Open) -> None:
    b = bench()
    b.define("a")
    with b.service.lease("a") as lease:
        stop = b.call(lambda: b.service.stop("a"))
        b.until_state("a", "draining")
        late = b.lease("a")
        waited = not late.done()
    b.result(stop)

    assert waited
    with b.result(late) as again:
        assert again.run != lease.run


def test_a_removal_given_up_on_timeout_leaves_the_model_in_its_exact_lru_place(
    bench: Open,
) -> None:
    b = bench(max_loaded=3)
    b.define("a", "b", "c")
    for name in "abc":
        b.service.start(name)
    with b.service.lease("b") as lease:
        b.clock.advance(1)
        for name in "ac":
            b.service.lease(name).release()
        before = b.lru, b.service.status().lru
        with pytest.raises(WaitTimeoutError):
            b.service.remove("b", timeout_s=0.01)
        b.settle()
        after = b.lru, b.service.status().lru
        reopened = b.state("b")
        with b.service.lease("b") as again:
            same = again.run == lease.run

    assert reopened == "ready"
    assert same
    assert before == after == (("a", "b", "c"), ("b", "a", "c"))


def test_an_eviction_whose_append_fails_reopens_the_gates_and_keeps_the_order(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", "b", "c")
    b.service.start("a")
    b.service.start("b")
    b.log.fail_next()
    error = b.error(b.lease("c"))
    b.clock.advance(1)
    with b.service.lease("a") as lease:
        pass

    assert "cannot be written" in str(error)
    assert lease.run == 1
    assert b.lru == ("a", "b")
    assert b.service.status().lru == ("b", "a")  # as a was used since
    assert not b.events(ev.RunEvicting)


def test_evicting_several_of_which_one_cannot_be_stopped_keeps_pins_and_the_rest_in_order(
    bench: Open,
) -> None:
    b = bench(max_loaded=5)
    b.define("stuck", "goes", "stays")
    b.define("pin2", "pin1", pinned=True)
    for name in ("stuck", "pin2", "goes", "stays", "pin1"):
        b.service.start(name)
        b.clock.advance(1)
    b.processes.server("stuck").script = Script(unkillable=True)
    b.lowered = True
    b.service.set_limits(max_loaded=4)
    b.until_state("stuck", "stop_failed")
    b.until_state("goes", "stopped")

    assert b.lru == b.service.status().lru == ("pin2", "stays", "pin1")
    assert [e.model for e in b.events(ev.RunEvicting)] == ["stuck", "goes"]
    skipped = b.events(ev.RunEvicting)[0].skipped
    assert skipped == ((2, "pinned"), (5, "pinned"))
    b.processes.server("stuck").exit(0)
    b.until_state("stuck", "stopped")
    b.service.unpin("pin2")
    b.service.set_limits(max_loaded=2)
    b.until(lambda: b.service.status().loaded == 2)

    assert [e.model for e in b.events(ev.RunEvicting)] == ["stuck", "goes", "pin2"]
    assert b.lru == b.service.status().lru == ("stays", "pin1")


def test_concurrent_cold_starts_of_one_model_make_one_run_and_one_lru_entry(bench: Open) -> None:
    b = bench()
    b.define("a", aliases=("first",))
    hold = b.ports.hold("a")
    waiting = [b.lease(name) for name in ("a", "first", "a", "first", "a")]
    hold.release()
    runs = {b.result(future).run for future in waiting}

    assert runs == {1}
    assert b.service.status().lru == ("a",)
    assert [e.leases for e in b.events(ev.RunReady)] == [5]


@pytest.mark.parametrize("first", ["a", "first"])
def test_alias_and_name_are_one_run_whichever_comes_first(bench: Open, first: str) -> None:
    b = bench()
    b.define("a", aliases=("first",))
    with b.service.lease(first) as one, b.service.lease("first") as two, b.service.lease("a") as x:
        runs = {one.run, two.run, x.run}
        ports = b.service.status().ports_held

    assert runs == {1}
    assert ports == {18000: "a"}


def test_an_alias_that_clashes_is_refused_when_defined_and_freed_with_its_model(
    bench: Open,
) -> None:
    b = bench()
    b.define("a", aliases=("first",))
    with pytest.raises(NameClashError) as caught:
        b.service.define(spec("b", aliases=("first",)))
    b.service.remove("a")
    b.service.define(spec("b", aliases=("first",)))
    with b.service.lease("first") as lease:
        pass

    assert caught.value.owner == "a"
    assert lease.model == "b"


def test_a_model_in_use_is_not_evicted_and_the_idle_one_is(bench: Open) -> None:
    b = bench()
    b.define("a", "b", "c")
    with b.service.lease("a") as held:
        b.clock.advance(1)
        b.service.lease("b").release()
        b.clock.advance(1)
        with b.service.lease("c"):
            lost = held.lost

    assert not lost
    assert [e.model for e in b.events(ev.RunEvicting)] == ["b"]


def test_simultaneous_cold_starts_of_different_models_keep_the_limit(bench: Open) -> None:
    b = bench(max_loaded=2)
    names = "abcdef"
    b.define(*names)
    begun = threading.Barrier(len(names))

    def client(name: str) -> None:
        begun.wait()
        with b.service.lease(name):
            pass

    for future in [b.call(lambda n=n: client(n)) for n in names]:
        b.result(future)

    assert len(b.events(ev.RunReady)) == 6  # the judge looks at every prefix


def test_two_closed_loop_clients_on_four_models_see_not_one_failure(bench: Open) -> None:
    b = bench(max_loaded=2)
    b.define(*"abcd")

    def client(offset: int) -> int:
        done = 0
        for turn in range(150):
            with b.service.lease("abcd"[(turn * 7 + offset * turn) % 4]) as lease:
                done += not lease.lost
        return done

    served = [b.call(lambda n=n: client(n)) for n in (1, 2)]

    assert [b.result(future) for future in served] == [150, 150]
