"""The audit of a state alone: what each finding must name."""

from __future__ import annotations

from core.making import Core
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.audit import Finding, WorldView, audit


def loaded(*names: str) -> Core:
    core = Core()
    core.define(*names)
    for name in names:
        core.load(name)
    return core


def stranger(core: Core, port: int, pid: int | None, command: str) -> Finding:
    """Return the one finding where somebody else listens on a port of the pool."""
    world = WorldView(
        living=frozenset(core.state.runs), processes=(), strangers={port: (pid, command)}
    )
    (found,) = audit(core.state, world)
    return found


def test_a_state_that_contradicts_itself_is_found_with_the_entry_it_is_of() -> None:
    core = loaded("a")
    core.state.lru = ()

    (found,) = audit(core.state, None)

    assert found.kind == "broken-invariant"
    assert found.problem == "the LRU order is (), ready are [1]"
    assert (found.since, found.events) == (core.state.at, (core.state.seq,))
    assert found.fix == ""


def test_limits_lowered_below_what_is_loaded_are_found_with_both() -> None:
    core = loaded("a", "b")
    lower = ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0)
    core.decide(lambda draft: draft.emit(lower))

    (found,) = audit(core.state, None)

    assert found.kind == "over-limits"
    assert found.problem == "2 runs hold room, the limits allow less (1 runs)"
    assert "evicts the least recently used" in found.fix
    assert found.events == (core.state.seq,)


def test_what_could_not_be_stopped_is_found_with_its_port_its_error_and_its_pids() -> None:
    core = loaded("a")
    core.decide(lambda d: decide.stop(d, 1, "operator", force=True, leases=0))
    core.decide(lambda d: decide.stop_failed(d, 1, (1, 5), "it outlived SIGKILL"))
    run = core.state.runs[1]

    (found,) = audit(core.state, None)

    assert found.kind == "quarantine"
    assert found.problem == "run 1 of a could not be stopped: it outlived SIGKILL (pids 1, 5)"
    assert (found.model, found.run, found.port, found.pid) == ("a", 1, 18000, 1)
    assert (found.since, found.events) == (run.ready_at, (run.first_seq, run.last_seq))
    assert "by hand" in found.fix


def test_a_stranger_on_a_held_port_is_found_with_the_run_that_holds_it() -> None:
    core = loaded("a")
    run = core.state.runs[1]

    found = stranger(core, 18000, 77, "nginx")

    assert found.kind == "stranger-on-port"
    assert found.problem == (
        "nginx (pid 77) listens on port 18000 of the pool, which run 1 of a holds"
    )
    assert (found.model, found.run, found.port, found.pid) == ("a", 1, 18000, 77)
    assert (found.since, found.events) == (run.reserved_at, (run.last_seq,))
    assert found.fix == ""


def test_a_stranger_on_a_free_port_is_found_with_what_can_be_seen_of_it() -> None:
    core = loaded("a")

    hidden = stranger(core, 18003, None, "")
    unnamed = stranger(core, 18003, 77, "")

    assert hidden.problem == "a process that cannot be seen listens on port 18003 of the pool"
    assert unnamed.problem == "a process (pid 77) listens on port 18003 of the pool"
    assert (hidden.run, hidden.since, hidden.events) == (None, "", ())
