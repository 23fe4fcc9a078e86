"""The cause of an entry is where a reader who asks why wants to be led."""

from __future__ import annotations

import pytest

from moorage.core import decide
from moorage.core import events as ev
from moorage.spec import ModelSpec
from offline.acting import Acting


@pytest.fixture
def acting() -> Acting:
    made = Acting()
    made.define("a", "b", "c")
    return made


def test_an_eviction_leads_to_the_request_it_was_made_for(acting: Acting) -> None:
    for name in "abc":
        acting.load(name)
    release = next(e for e in acting.entries if e.event.kind == "run.released")
    chain = []
    while release is not None:
        chain.append(release.event.kind)
        release = acting.entries[release.cause - 1] if release.cause else None  # type: ignore[assignment]

    assert chain[0] == "run.released"
    assert chain[-3:] == ["run.stopping", "run.evicting", "run.queued"]


def test_an_adoption_leads_to_the_owner_that_made_it(acting: Acting) -> None:
    run = acting.load("a")
    acting.reopen(survivors=[run])

    assert acting.cause("run.adopted") == "service.opened"


def test_what_is_lost_at_a_reopening_leads_there_and_goes_on_in_its_own_run(
    acting: Acting,
) -> None:
    run = acting.load("a")
    acting.reopen()
    acting.end(run)

    assert acting.cause("run.stopping") == "service.opened"
    assert acting.cause("run.exited") == "run.stopping"
    assert acting.cause("run.released") == "run.swept"


def test_a_reload_leads_to_the_definition_that_asked_for_it(acting: Acting) -> None:
    run = acting.load("a")
    with acting.deciding() as draft:
        decide.define(draft, ModelSpec(name="a", backend="command", args=("other",)), "")
        decide.stop(draft, run, "reload", force=False, leases=0)
        decide.begin(draft, "a", "lease('a')")

    assert acting.cause("run.draining") == "model.defined"
    assert acting.cause("run.queued") == "model.defined"


def test_an_eviction_for_lower_limits_leads_to_them(acting: Acting) -> None:
    acting.load("a")
    acting.load("b")
    with acting.deciding() as draft:
        draft.emit(ev.LimitsSet(max_loaded=1, memory_limit=None, min_residency_s=0.0))

    assert acting.cause("run.evicting") == "limits.set"


def test_a_stop_with_a_hold_leads_to_the_hold(acting: Acting) -> None:
    run = acting.load("a")
    with acting.deciding() as draft:
        decide.hold(draft, "a", "stopped on purpose")
        decide.stop(draft, run, "operator", force=False, leases=0)

    assert acting.cause("run.draining") == "model.held"


def test_a_start_of_a_held_model_leads_to_the_end_of_its_hold(acting: Acting) -> None:
    with acting.deciding() as draft:
        decide.hold(draft, "a", "stopped on purpose")
    with acting.deciding() as draft:
        decide.request(draft, "a", "start('a')", start=True)

    assert acting.cause("run.queued") == "model.reset"


def test_an_undone_drain_leads_to_the_end_of_the_request_it_was_for(acting: Acting) -> None:
    acting.leased = {acting.load("a"): 1, acting.load("b"): 1}
    run = acting.ask("c")
    with acting.deciding() as draft:
        decide.cancel(draft, run, "nobody waits")

    assert acting.cause("run.reopened") == "run.abandoned"


def test_a_request_has_no_cause_in_the_log(acting: Acting) -> None:
    acting.load("a")

    assert acting.cause("run.queued") is None
