"""What is said about entries and models: every sentence names who, what and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from core.making import Core
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.continuing import continued
from moorage.core.fold import FoldError, apply
from moorage.core.story import story
from moorage.core.timeline import build
from moorage.core.why import Said, Teller, present
from moorage.core.words import age, seconds, size


class Entries:
    """Finds entries of a log, as if those before `first` were in a segment that is missing."""

    def __init__(self, core: Core, first: int = 1) -> None:
        self._entries = [entry for entry in core.entries if entry.seq >= first]

    def entry(self, seq: int) -> ev.Entry | None:
        return next((entry for entry in self._entries if entry.seq == seq), None)

    def run(self, number: int) -> Sequence[ev.Entry]:
        return [e for e in self._entries if getattr(e.event, "run", None) == number]


def last(core: Core, kind: type[ev.Event]) -> ev.Entry:
    return next(entry for entry in reversed(core.entries) if isinstance(entry.event, kind))


def told(core: Core, kind: type[ev.Event]) -> Said:
    """Say the last entry of a kind."""
    return Teller(Entries(core)).say(last(core, kind))


def said(event: ev.Event) -> Said:
    """Say an event in a log where `a` has run 1."""
    core = Core()
    core.define("a")
    core.want("a")
    return Teller(Entries(core)).say(ev.Entry(99, core.at, None, event))


def now(core: Core, name: str = "a") -> tuple[str, ...]:
    return present(core.state, core.state.models[name])


def ready(**spec: Any) -> tuple[Core, int]:
    core = Core()
    core.define("a", **spec)
    return core, core.load("a")


# --- what a model is now ---


def test_a_model_that_nobody_uses_says_what_starts_it() -> None:
    core = Core()
    core.define("a")

    assert now(core) == ("a is stopped; the next lease starts it.",)


def test_a_model_whose_crash_budget_is_spent_says_with_what_and_how_to_go_on() -> None:
    core = Core()
    core.define("a", crash_budget=1)
    run = core.want("a")
    core.launch(run)
    core.exit(run, 3)
    core.sweep(run)

    (sentence,) = now(core)
    failure = core.state.models["a"].last
    assert failure is not None
    assert sentence.startswith("a has failed 1 times, its crash budget: ")
    assert f"{failure.error} (stage load, run {run})" in sentence
    assert sentence.endswith("; reset or start it to try again.")


def test_a_run_that_fetches_says_so() -> None:
    core = Core()
    core.define("a", repo="org/model", file="m.gguf")
    run = core.want("a")

    assert now(core) == (f"a has run {run}, which fetches its files.",)


def test_a_run_that_loads_says_where_and_its_pid_once_it_has_one() -> None:
    core = Core()
    core.define("a")
    run = core.want("a")
    before = now(core)
    core.launch(run)

    assert before == ("a has run 1, which is reserved (port 18000).",)
    assert now(core) == ("a has run 1, which is loading (port 18000, pid 1).",)


def test_a_pinned_model_says_that_it_is_never_evicted() -> None:
    core, _ = ready()
    core.decide(lambda draft: decide.pin(draft, "a", pinned=True))

    assert now(core)[-1] == "a is pinned: never evicted."


def test_a_run_that_drains_says_why_and_the_next_one_says_that_it_waits_for_it() -> None:
    core, run = ready()
    core.decide(lambda d: decide.stop(d, run, "reload", force=False, leases=1))
    following = core.want("a")

    assert now(core) == (
        "a has run 1, which is draining as its model was defined anew (port 18000, pid 1).",
        f"run {following} waits for that to end (test).",
    )


def test_a_run_that_could_not_be_stopped_says_where_it_is_and_what_is_wrong() -> None:
    core, run = ready()
    core.decide(lambda d: decide.stop(d, run, "operator", force=True, leases=0))
    core.decide(lambda d: decide.stop_failed(d, run, (1, 5), "it outlived SIGKILL"))

    assert now(core) == (
        "a has run 1, which could not be stopped (port 18000, pid 1): it outlived SIGKILL.",
    )
    assert told(core, ev.RunStopFailed) == Said(
        "run 1 of a could not be stopped (pids 1, 5): its port and room stay taken until it ends",
        ("it outlived SIGKILL",),
    )


# --- what happened ---


def test_a_run_that_is_to_be_always_there_is_told_without_anybody_who_asked() -> None:
    event = ev.RunQueued(model="a", run=1, requested_by="restart", place=2)

    assert said(event).text == "a is to be running always: run 1 of a queued at place 2"


def test_a_segment_is_told_with_its_number_and_its_log() -> None:
    core, _ = ready()
    event = continued(core.state, program="test", segment=2, base_hash="0")

    assert said(event).text == "segment 2 of log aa was begun"


def test_limits_are_told_with_the_memory_where_it_is_limited() -> None:
    with_memory = ev.LimitsSet(max_loaded=3, memory_limit=8_000_000_000, min_residency_s=0)
    without = ev.LimitsSet(max_loaded=3, memory_limit=None, min_residency_s=0)

    assert said(with_memory).text == "the limits were set to room for 3 runs and 8.0 GB"
    assert said(without).text == "the limits were set to room for 3 runs"


def test_a_reset_is_told_with_its_reason() -> None:
    event = ev.ModelReset(model="a", reason="operator")

    assert said(event).text == "hold and failures of a were forgotten (operator)"


def test_a_spent_crash_budget_is_told_with_the_error_and_the_last_output() -> None:
    event = ev.ModelFailed(
        model="a", run=1, attempts=5, stage="load", error="it broke", log_tail=("one", "two")
    )

    assert said(event) == Said(
        "failure 5 in a row of a, at load, spent its crash budget: leases are refused until it "
        "is reset or started",
        ("it broke", "| one", "| two"),
    )


@pytest.mark.parametrize(("file", "what"), [(None, "org/model"), ("m.gguf", "org/model m.gguf")])
def test_a_fetch_is_told_with_who_asked_and_what_is_fetched(file: str | None, what: str) -> None:
    event = ev.RunFetching(model="a", run=1, requested_by="lease('a')", repo="org/model", file=file)

    assert said(event).text == f"lease('a'): run 1 of a began, fetching {what}"


@pytest.mark.parametrize(("rate", "pace"), [(2_500_000, ", at 2.5 MB a second"), (None, "")])
def test_a_long_fetch_is_told_with_how_far_it_was(rate: int | None, pace: str) -> None:
    event = ev.FetchNoted(
        model="a", run=1, done_bytes=1_200_000_000, total_bytes=4_000_000_000, bytes_per_s=rate
    )

    assert said(event).text == f"run 1 of a had fetched 1.2 GB of 4.0 GB{pace}"


def test_fetched_files_are_told_with_how_much_came_and_how_big_each_is() -> None:
    event = ev.RunFetched(
        model="a",
        run=1,
        path="/m",
        commit="0123456789abcdef",
        files=(("m.gguf", 2_500_000, "h"), ("c.json", 12, "h")),
        fetched_bytes=2_500_000,
        seconds=2.5,
    )

    assert said(event) == Said(
        "its files were here after 2.5 s (2.5 MB fetched, commit 0123456789ab)",
        ("m.gguf, 2.5 MB", "c.json, 12 B"),
    )


@pytest.mark.parametrize(
    ("code", "signal", "how"),
    [(None, None, "how is not known"), (3, None, "with status 3"), (None, 9, "killed by signal 9")],
)
def test_an_end_nobody_asked_for_is_told_with_all_that_is_known(
    code: int | None, signal: int | None, how: str
) -> None:
    event = ev.RunExited(
        model="a", run=1, pid=7, code=code, signal=signal, wanted=False, error="x", log_tail=("y",)
    )

    assert said(event) == Said(
        f"its leader 7 ended, {how}, and nobody had asked it to", ("x", "| y")
    )


def test_a_survivor_is_told_with_what_it_was_taken_over_as() -> None:
    event = ev.RunAdopted(model="a", run=1, port=18000, pid=7, state="ready")

    assert said(event).text == (
        "run 1 of a had survived its owner and was taken over as ready, pid 7"
    )


def test_a_process_left_over_is_told_with_its_run_and_its_command() -> None:
    event = ev.ProcessReaped(run=1, pid=7, command="worker --x", reason="its run has ended")

    assert said(event) == Said(
        "process 7, left over from run 1 of a, was killed: its run has ended", ("worker --x",)
    )


def test_a_run_whose_entries_are_missing_is_named_by_its_number() -> None:
    event = ev.ProcessReaped(run=9, pid=7, command="", reason="its run is unknown")

    assert said(event).text.startswith("process 7, left over from run 9, was killed")


# --- stories and pictures ---


def test_a_story_ends_where_the_segment_with_its_cause_is_missing() -> None:
    core, run = ready()
    core.decide(lambda d: decide.stop(d, run, "operator", force=False, leases=1))
    subject = last(core, ev.RunDraining)

    parts = story(subject, Entries(core, first=subject.seq))

    assert subject.cause is not None
    assert [(part.entry, part.role, part.after_s) for part in parts] == [(subject, "subject", None)]


def test_an_eviction_for_nobody_is_marked_with_its_reason_alone() -> None:
    core, run = ready()
    event = ev.RunEvicting(
        model="a",
        run=run,
        reason="idle",
        for_run=None,
        for_model=None,
        leases=0,
        order=(run,),
        skipped=(),
    )
    core.decide(lambda draft: draft.emit(event))

    marks = build(core.entries, apply).marks

    assert [mark.text for mark in marks if mark.kind == "eviction"] == ["a had to go for idle"]


def test_a_picture_of_no_entries_is_empty_whatever_its_window() -> None:
    window = {"begin": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}

    for cut in ({}, window, {"begin": window["begin"]}, {"end": window["end"]}):
        drawn = build([], apply, **cut)

        assert (drawn.length, drawn.bars, drawn.marks, drawn.events) == (0, (), (), 0)


def test_a_segment_that_does_not_go_on_from_the_entries_before_it_is_refused() -> None:
    core, _ = ready()
    event = continued(core.state, program="test", segment=2, base_hash="0")
    event.base["max_loaded"] += 1

    with pytest.raises(FoldError, match="another base state than the entries before it make"):
        core.decide(lambda draft: draft.emit(event))


# --- numbers ---


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5 * 10**15, "5.0 PB"),
        (5 * 10**18, "5000.0 PB"),
    ],
)
def test_bytes_are_told_in_the_largest_unit_below_a_thousand(amount: int, words: str) -> None:
    assert size(amount) == words


@pytest.mark.parametrize(
    ("amount", "words"), [(0.25, "250 ms"), (1, "1.0 s"), (59.9, "59.9 s"), (61, "1 min 1 s")]
)
def test_durations_are_told_as_finely_as_they_matter(amount: float, words: str) -> None:
    assert seconds(amount) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (3599, "59 min 59 s"),
        (3660, "1 h 1 min"),
        (86_399, "23 h 59 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_ages_are_told_in_their_two_largest_units(amount: float, words: str) -> None:
    assert age(amount) == words
