"""The fold, the invariants, the codec and the snapshot: what contradicts itself is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.making import Core, spec
from moorage.core import chain, codec, decide
from moorage.core import events as ev
from moorage.core.fold import FoldError, apply, replay
from moorage.core.invariants import check, fold, over_limits, violations
from moorage.core.lifecycle import LifecycleError
from moorage.core.snapshot import cached_state, state_from_data, state_to_data
from moorage.core.state import State, changed, checked, compress, describe_pool, expand
from moorage.errors import CorruptLogError


def _ready() -> Core:
    core = Core()
    core.define("a", "b")
    core.load("a")
    core.load("b")
    return core


def _say(core: Core, event: ev.Event) -> None:
    core.decide(lambda draft: draft.emit(event, None))


# --- contradictions ---


def _reserved(run: int, model: str, port: int) -> ev.RunReserved:
    return ev.RunReserved(model=model, run=run, port=port)


CONTRADICTIONS: dict[str, Callable[[Core], ev.Event]] = {
    "names two models": lambda _: ev.ModelDefined(
        model="c", spec=spec("c", aliases=("a",)).to_data(), spec_hash="x"
    ),
    "was removed while it had a run": lambda _: ev.ModelRemoved(model="a", reason="x"),
    "which a has not": lambda _: ev.RunReady(
        model="a", run=2, port=1, pid=1, seconds=0, load_s=0, leases=0, owner_check=True
    ),
    "which b has not": lambda _: ev.RunExited(
        model="b", run=9, pid=1, code=0, signal=None, wanted=True
    ),
    "ready are": lambda _: ev.UsageNoted(order=(1,), leases=()),
}


@pytest.mark.parametrize("text", sorted(CONTRADICTIONS))
def test_an_event_that_contradicts_the_state_is_refused(text: str) -> None:
    core = _ready()
    with pytest.raises(FoldError, match=text):
        _say(core, CONTRADICTIONS[text](core))


def test_a_second_waiting_run_a_taken_port_and_a_second_holder_are_refused() -> None:
    core = Core()
    core.define("a", "b")
    first = core.load("a")
    core.decide(lambda d: decide.stop(d, first, "operator", force=False, leases=1))
    following = core.decide(lambda d: decide.request(d, "a", "x", start=False)).run
    other = core.decide(lambda d: decide.request(d, "b", "x", start=False)).run
    with pytest.raises(FoldError, match="two runs that wait"):
        _say(core, ev.RunQueued(model="a", run=99, requested_by="x", place=1))
    with pytest.raises(FoldError, match="is not free"):
        _say(core, _reserved(other, "b", 18000))
    with pytest.raises(FoldError, match="beside another run"):
        _say(core, _reserved(following, "a", 18001))
    with pytest.raises(LifecycleError):
        _say(core, ev.RunAbandoned(model="a", run=first, outcome="x"))


def test_a_run_number_is_never_used_again() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    core.decide(lambda d: decide.cancel(d, run, "x"))
    with pytest.raises(FoldError, match="is used twice"):
        _say(core, ev.RunQueued(model="a", run=run, requested_by="x", place=1))


def test_entries_follow_one_another() -> None:
    state = State()
    with pytest.raises(FoldError, match="entry 5 follows 0"):
        apply(state, ev.Entry(5, "", None, ev.LogCreated(log_id="aa", program="x")))


def test_events_that_move_nothing_are_folded_all_the_same() -> None:
    core = Core()
    _say(core, ev.ProcessReaped(run=1, pid=5, command="x", reason="x"))
    _say(core, ev.PortBlocked(port=18000, pid=None, command="x"))
    _say(core, ev.PortBlocked(port=1, pid=None, command="x"))
    _say(core, ev.ServiceClosed(reason="stop", kept=()))

    assert list(core.state.free) == [18001, 18002, 18003, 18000]
    assert not core.state.open
    assert replay(core.entries) == core.state


def test_another_pool_keeps_held_ports_and_what_is_released_outside_it_is_gone() -> None:
    core = Core()
    core.define("a")
    run = core.load("a")
    core.open((18001, 18002))
    free = list(core.state.free)
    core.decide(lambda d: decide.stop(d, run, "operator", force=True, leases=0))
    core.end(run, peak=70)

    assert free == [18001, 18002]
    assert list(core.state.free) == [18001, 18002]
    assert core.state.models["a"].peak_bytes == 70
    assert violations(core.state) == ()


def test_the_largest_peak_is_learned_and_only_of_runs_that_were_ready() -> None:
    core = Core()
    core.define("a")
    peaks = []
    for peak in (70, 50, None):
        run = core.load("a")
        core.decide(lambda d, r=run: decide.stop(d, r, "operator", force=True, leases=0))
        core.end(run, peak)
        peaks.append(core.state.models["a"].peak_bytes)

    assert peaks == [70, 70, 70]


def test_a_redefinition_frees_its_old_names() -> None:
    core = Core()
    core.define("a", aliases=("first",))
    core.define("a", aliases=("second",))

    assert core.state.names == {"a": "a", "second": "a"}


# --- invariants ---


BROKEN: dict[str, Callable[[State], None]] = {
    "port 18000 is both held and free": lambda s: s.free.update({18000: None}),
    "port 18003 is held by run 9, which does not have it": lambda s: s.held.update({18003: 9}),
    "port 18000 of run 1 is not held by it": lambda s: s.held.update({18000: 2}),
    "run 1 in stage ready has ports": lambda s: s.runs.update({1: replace(s.runs[1], ports=())}),
    "port 18003 of the pool is lost": lambda s: s.free.pop(18003),
    "port 77 is free and not of the pool": lambda s: s.free.update({77: None}),
    "model a says runs": lambda s: s.models.update({"a": replace(s.models["a"], run=None)}),
    "model a holds room twice": lambda s: s.runs.update({2: replace(s.runs[2], model="a")}),
    "model a holds room for its next run": lambda s: s.models.update(
        {"a": replace(s.models["a"], run=None, next_run=1)}
    ),
    "the LRU order is": lambda s: setattr(s, "lru", (1, 1, 2)),
    "the queue is": lambda s: setattr(s, "queue", (1,)),
    "names are": lambda s: s.names.pop("a"),
}


@pytest.mark.parametrize("text", sorted(BROKEN))
def test_each_invariant_is_seen_when_it_breaks(text: str) -> None:
    core = _ready()
    sound = violations(core.state)
    BROKEN[text](core.state)

    assert sound == ()
    assert any(problem.startswith(text) for problem in violations(core.state))


def test_more_than_the_limits_is_seen_by_count_and_by_bytes() -> None:
    core = _ready()
    within = over_limits(core.state)
    _say(core, ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0))
    by_count = over_limits(core.state)
    _say(core, ev.LimitsSet(max_loaded=9, memory_limit=10, min_residency_s=0))

    assert (within, by_count, over_limits(core.state)) == (False, True, True)


# --- codec ---

_TEXT = st.text(max_size=5)
_INT = st.integers(0, 2**40)
_OPTIONAL_INT = st.none() | _INT
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": _TEXT,
    "int": _INT,
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "int | None": _OPTIONAL_INT,
    "str | None": st.none() | _TEXT,
    "tuple[str, ...]": st.lists(_TEXT, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(_INT, max_size=3).map(tuple),
    "tuple[tuple[int, int], ...]": st.lists(st.tuples(_INT, _INT), max_size=2).map(tuple),
    "tuple[tuple[int, str], ...]": st.lists(st.tuples(_INT, _TEXT), max_size=2).map(tuple),
    "tuple[tuple[str, int, str], ...]": st.lists(st.tuples(_TEXT, _INT, _TEXT), max_size=2).map(
        tuple
    ),
    "dict[str, Any]": st.dictionaries(_TEXT, st.lists(_INT, max_size=2) | _TEXT, max_size=2),
}


@st.composite
def _events(draw: st.DrawFn) -> ev.Event:
    cls = draw(st.sampled_from(sorted(ev.KINDS.values(), key=lambda c: c.kind)))
    return cls(**{f.name: draw(_VALUES[str(f.type)]) for f in fields(cls)})


@given(event=_events())
def test_every_event_comes_back_from_what_the_log_stores(event: ev.Event) -> None:
    columns, data = codec.encode(event)
    stored = json.loads(json.dumps(data))

    assert codec.decode(event.kind, event.version, columns, stored) == event


def test_a_kind_or_version_of_a_newer_program_is_refused() -> None:
    with pytest.raises(codec.UnknownKindError, match=r"run\.danced"):
        codec.decode("run.danced", 1, {}, {})
    with pytest.raises(codec.UnknownKindError, match="version 2"):
        codec.decode("model.held", 2, {"model": "a"}, {"reason": "x"})


def test_data_that_does_not_fit_is_refused() -> None:
    columns = {"model": "a"}
    with pytest.raises(ValueError, match="does not fit"):
        codec.decode("model.held", 1, columns, {"reason": "x", "colour": "red"})
    with pytest.raises(ValueError, match="does not fit"):
        codec.decode("model.held", 1, columns, {})


def test_an_older_version_is_brought_up_to_date_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(codec.UPCASTS, ("model.held", 0), lambda data: {"reason": data["why"]})
    event = codec.decode("model.held", 0, {"model": "a"}, {"why": "x"})

    assert event == ev.ModelHeld(model="a", reason="x")


def test_an_event_of_before_a_field_was_added_takes_its_default() -> None:
    event = codec.decode(
        "run.abandoned", 1, {"model": "a", "run": 1, "port": None, "pid": None}, {"outcome": "x"}
    )

    exited = codec.decode(
        "run.exited",
        1,
        {"model": "a", "run": 1, "port": None, "pid": 5},
        {"code": 0, "signal": None, "wanted": True},
    )

    assert event == ev.RunAbandoned(model="a", run=1, outcome="x", error="")
    assert isinstance(exited, ev.RunExited)
    assert exited.log_tail == ()


# --- snapshot and small values ---


@pytest.mark.parametrize("damage", ["models", "runs", "seq"])
def test_a_snapshot_that_lacks_something_is_refused(damage: str) -> None:
    data = state_to_data(_ready().state)
    del data[damage]
    with pytest.raises((KeyError, TypeError, ValueError)):
        state_from_data(data)


@pytest.mark.parametrize(
    ("change", "fits"),
    [({}, True), ({"models": None}, False), ({"queue": ["no number"]}, False), ({"seq": 1}, False)],
    ids=["whole", "of another shape", "with a value that no state has", "of another entry"],
)
def test_a_cached_state_is_used_only_when_it_fits(change: dict[str, Any], fits: bool) -> None:
    state = _ready().state
    back = cached_state(state.seq, {**state_to_data(state), **change})

    assert back == (state if fits else None)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (((0, 5),), "0-5 are no ports"),
        (((6, 5),), "6-5 are no ports"),
        (((65535, 65536),), "65535-65536 are no ports"),
        (((1, 65535), (1, 1)), "a port is in the pool twice"),
    ],
)
def test_a_pool_that_cannot_be_one_is_refused(pool: tuple[tuple[int, int], ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checked(pool)


def test_an_entry_of_a_file_that_contradicts_what_came_before_names_file_and_entry() -> None:
    core = _ready()
    again = ev.Entry(core.state.seq + 1, core.at, None, core.entries[-1].event)
    with pytest.raises(CorruptLogError, match=r"the\.db") as caught:
        fold(core.state, again, "the.db")

    assert caught.value.seq == again.seq


def test_a_file_that_adds_up_to_what_no_state_has_is_named() -> None:
    state = _ready().state
    check(state, "the.db")
    state.queue = ("no number",)  # type: ignore[assignment]
    with pytest.raises(CorruptLogError, match=r"the\.db.*queue"):
        check(state, "the.db")


def test_a_failure_and_a_secret_survive_a_snapshot() -> None:
    core = Core()
    secret = spec("a", secrets={"TOKEN": "t"})
    core.decide(lambda d: decide.define(d, secret, "hash"))
    run = core.want("a")
    core.decide(lambda d: decide.not_spawned(d, run, "launch", "no executable"))
    back = state_from_data(json.loads(json.dumps(state_to_data(core.state))))

    assert back == core.state
    assert back.models["a"].secret_names == ("TOKEN",)
    assert back.models["a"].last is not None


def test_a_copy_with_a_field_that_is_not_there_is_refused() -> None:
    core = _ready()
    with pytest.raises(TypeError):
        changed(core.state.runs[1], {"colour": "red"})

    assert changed(core.state.runs[1], {"leases": 3}).leases == 3
    assert core.state.runs[1].leases == 0
    assert core.state.runs[1].port == 18000
    assert replace(core.state.runs[1], ports=()).port is None


def test_ports_are_told_as_ranges() -> None:
    ranges = compress([5, 3, 4, 9, 9])

    assert ranges == ((3, 5), (9, 9))
    assert list(expand(ranges)) == [3, 4, 5, 9]
    assert describe_pool(ranges) == "3-5, 9"
    assert describe_pool(()) == "an empty pool"


def test_the_chain_depends_on_every_row_before() -> None:
    first = chain.link(
        chain.genesis("00aa"), (1, "at", "kind", 1, None, None, None, None, None, "")
    )
    other = chain.link(
        chain.genesis("00ab"), (1, "at", "kind", 1, None, None, None, None, None, "")
    )

    assert first != other
    assert len(first) == 64
