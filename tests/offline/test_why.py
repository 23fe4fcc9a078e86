"""`moorage why`: what led to an event, or to what a model is now."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorage.core import decide
from moorage.core.events import KINDS, Entry
from moorage.core.story import stages, story
from moorage.core.why import _SAY, Teller
from moorage.spec import ModelSpec
from offline.acting import Acting
from offline.conftest import Ask, written
from support.history import History


class Look:
    """Finds entries in a list."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def entry(self, seq: int) -> Entry | None:
        return self._entries[seq - 1] if seq <= len(self._entries) else None

    def run(self, number: int) -> list[Entry]:
        return [e for e in self._entries if getattr(e.event, "run", None) == number]


def test_every_kind_of_event_has_its_sentence() -> None:
    assert set(_SAY) == set(KINDS.values())


@pytest.mark.parametrize("seed", range(3))
def test_every_entry_of_a_long_history_has_a_story_that_ends_with_it(seed: int) -> None:
    entries = list(History(seed=seed, crashes=0.3).entries(40))
    look = Look(entries)
    teller = Teller(look)

    for entry in entries:
        parts = story(entry, look)
        seqs = [part.entry.seq for part in parts]

        assert parts[-1].entry is entry
        assert seqs == sorted(set(seqs))
        assert all(part.entry.cause in (None, *seqs) for part in parts if part.role != "displaced")
        assert all(teller.say(part.entry).text for part in parts)


def test_an_eviction_is_told_with_who_asked_and_what_the_decision_saw(
    state: Path, acting: Acting, ask: Ask
) -> None:
    for name in "ab":
        acting.load(name)
    with acting.deciding() as draft:
        decide.pin(draft, "a", pinned=True)
    acting.load("c")
    written(state, acting.entries)
    released = acting.last("run.released").seq

    told = ask("why", "--state", state, released).out

    assert "lease('c')" in told
    assert "run 2 of b was chosen to go, to make room for run 3 of c; nobody used it" in told
    assert "least recently used first: run 1 of a, run 2 of b" in told
    assert "run 1 of a was passed over: pinned" in told
    assert "run 2 of b spent: " in told


def test_a_load_is_told_with_those_that_gave_way_for_it(
    state: Path, acting: Acting, ask: Ask
) -> None:
    for name in "abc":
        acting.load(name)
    written(state, acting.entries)
    ready = acting.last("run.ready").seq

    answer = ask("why", "--state", state, ready, "--json")

    roles = {found["kind"]: found["role"] for found in answer.of("entry")}
    assert roles["run.evicting"] == roles["run.released"] == "displaced"
    assert roles["run.queued"] == "history"
    assert roles["run.ready"] == "subject"
    assert set(answer.of("stages")[0]["seconds"]) >= {"queued", "reserved", "launching", "loading"}


def test_a_failure_is_told_with_the_last_lines_of_its_output(
    state: Path, acting: Acting, ask: Ask
) -> None:
    run = acting.ask("a")
    acting.spawn(run)
    acting.end(run, signal=11, log_tail=["loading weights", "out of \x1b[31mmemory"])
    written(state, acting.entries)

    told = ask("why", "--state", state, "a").out

    assert "a is in backoff until" in told
    assert "killed by signal 11, and nobody had asked it to" in told
    assert "| loading weights" in told
    assert "\x1b" not in told


def test_a_crash_long_ago_is_found_by_its_seq_alone(state: Path, ask: Ask) -> None:
    entries = list(History(seed=1, crashes=0.5).entries(40))
    written(state, entries)
    crash = next(e for e in entries if e.event.kind == "run.exited" and not e.event.wanted)  # type: ignore[attr-defined]

    answer = ask("why", "--state", state, crash.seq)

    assert answer.status == 0
    assert "nobody had asked it to" in answer.out


def test_a_model_is_told_as_it_is_now(state: Path, acting: Acting, ask: Ask) -> None:
    acting.define("held", "never")
    acting.leased = {acting.load("a"): 1, acting.load("b"): 1}
    acting.ask("c")
    with acting.deciding() as draft:
        decide.hold(draft, "held", "stopped on purpose")
    written(state, acting.entries)

    first = {
        name: ask("why", "--state", state, name).out.splitlines()[0]
        for name in ("b", "c", "held", "never")
    }

    assert first["b"] == "b has run 2, which is ready (port 18001, pid 5002), 2 of 2 to be evicted."
    assert first["c"] == "c has run 3, which waits at place 1 of 1, with 2 of 2 loaded."
    assert first["held"].startswith("held is held: stopped on purpose")
    assert first["never"] == "never is stopped; the next lease starts it."


def test_a_removed_model_is_told_by_its_end(state: Path, acting: Acting, ask: Ask) -> None:
    with acting.deciding() as draft:
        decide.remove(draft, "a", force=False, leases=0)
    written(state, acting.entries)

    answer = ask("why", "--state", state, "a")

    assert answer.out.startswith("a was removed.")
    assert answer.status == 0


def test_an_alias_is_as_good_as_a_name(state: Path, acting: Acting, ask: Ask) -> None:
    with acting.deciding() as draft:
        spec = ModelSpec(name="long", backend="command", args=("serve",), aliases=("short",))
        decide.define(draft, spec, "")
    acting.load("long")
    written(state, acting.entries)

    assert ask("why", "--state", state, "short").out == ask("why", "--state", state, "long").out


@pytest.mark.parametrize("what", ["nobody", "999", "0", "9" * 30, "9" * 5000])
def test_what_the_log_does_not_have_is_refused_in_one_line(
    state: Path, acting: Acting, ask: Ask, what: str
) -> None:
    written(state, acting.entries)

    answer = ask("why", "--state", state, what)

    assert (answer.status, answer.err.count("\n"), answer.out) == (2, 1, "")


def test_the_stages_of_a_run_add_up_to_its_life() -> None:
    acting = Acting()
    acting.define("a")
    run = acting.load("a")
    with acting.deciding() as draft:
        decide.stop(draft, run, "operator", force=False, leases=0)
    acting.end(run)

    spent = stages(Look(acting.entries).run(run))

    assert [stage.value for stage, _ in spent] == [
        "queued",
        "reserved",
        "launching",
        "loading",
        "ready",
        "draining",
        "stopping",
    ]
    assert sum(seconds for _, seconds in spent) == 6.0
