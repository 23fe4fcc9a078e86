"""A log's entries as bars and marks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from moorage.core import events as ev
from moorage.core.continuing import continued
from moorage.core.events import Entry, Event
from moorage.core.fold import apply, replay
from moorage.core.timeline import SHOWN, Bar, Mark, Timeline, build
from support.history import BEGAN, History, text

SECOND = 1_000_000


def drawn(entries: list[Entry], begin: str = "", end: str = "") -> Timeline:
    return build(entries, apply, begin=begin, end=end)


def told(*events: Event) -> list[Entry]:
    """Return the opening of a log and then these events, one a second from 0 on."""
    history = History()
    entries = list(history.opening())
    for number, event in enumerate(events):
        history.wait(1 if number else 0)
        entries.append(history.entry(event))
    return entries


ABOUT: dict[str, Any] = {"model": "model-0", "run": 1}
READY: list[Event] = [
    ev.RunQueued(**ABOUT, requested_by="lease()", place=1),
    ev.RunReserved(**ABOUT, port=18_000, more_ports=(18_001,)),
    ev.RunLaunching(**ABOUT, port=18_000, argv=(), nonce="n", log_file="l"),
    ev.RunLaunched(**ABOUT, port=18_000, pid=9, group=9, session=9, start_ticks=1, boot_id="b"),
    ev.RunReady(**ABOUT, port=18_000, pid=9, seconds=3, load_s=1, leases=1, owner_check=True),
]
EVICTING = ev.RunEvicting(
    **ABOUT,
    reason="room",
    for_run=2,
    for_model="model-1",
    leases=1,
    order=(1,),
    skipped=((3, "pinned"),),
)
STOPPING = ev.RunStopping(**ABOUT, reason="room", stop_timeout_s=1)
EXITED = ev.RunExited(**ABOUT, pid=9, code=0, signal=None, wanted=True)
RELEASED = ev.RunReleased(**ABOUT, port=18_000, outcome="ok")


def spans(bar: Bar) -> list[tuple[str, int, int]]:
    return [(span.shown, span.start // SECOND, span.end // SECOND) for span in bar.spans]


def test_a_run_is_a_bar_of_its_states() -> None:
    (bar,) = drawn(told(*READY, EVICTING, STOPPING, EXITED, RELEASED)).bars

    assert spans(bar) == [
        ("queued", 0, 1),
        ("loading", 1, 4),
        ("ready", 4, 5),
        ("draining", 5, 6),
        ("stopping", 6, 8),
    ]
    assert (bar.run, bar.model, bar.ports, bar.pid) == (1, "model-0", (18_000, 18_001), 9)
    assert (bar.held, bar.ended, bar.outcome) == (SECOND, True, "ok")
    assert (bar.requested_by, bar.first_seq, bar.last_seq) == ("lease()", 9, 17)


def test_a_run_that_is_still_there_at_the_end_is_open_up_to_the_last_event() -> None:
    (bar,) = drawn(told(*READY, ev.ModelPinned(model="model-1"))).bars

    assert spans(bar)[-1] == ("ready", 4, 5)
    assert not bar.ended


def test_a_run_that_cannot_be_stopped_is_stuck() -> None:
    failed = ev.RunStopFailed(**ABOUT, pids=(9,), error="alive")
    picture = drawn(told(*READY, STOPPING, failed, EXITED))

    assert [name for name, _, _ in spans(picture.bars[0])][-3:] == ["stopping", "stuck", "stopping"]
    assert marks(picture)[-1] == ("stuck", 6, "could not be stopped (pids 9): alive")


def marks(picture: Timeline) -> list[tuple[str, int, str]]:
    return [(mark.kind, mark.at // SECOND, mark.text) for mark in picture.marks]


def test_an_eviction_is_marked_with_for_whom_and_who_was_passed_over() -> None:
    reopened = ev.RunReopened(**ABOUT, reason="the requester left")
    picture = drawn(told(*READY, EVICTING, reopened))

    assert marks(picture)[1:] == [
        (
            "eviction",
            5,
            "model-0 had to make room for model-1 (run 2); leases: 1; passed over: run 3 pinned",
        ),
        ("undone", 6, "ready again: the requester left"),
    ]


def test_a_crash_is_marked_once_and_other_failures_too() -> None:
    crash = ev.RunExited(
        **ABOUT, pid=9, code=None, signal=11, wanted=False, stage="exit", error="gone"
    )
    failed = ev.RunReleased(**ABOUT, port=18_000, outcome="failed: exit", error="gone")
    assert marks(drawn(told(*READY, crash, failed)))[1:] == [
        ("crash", 5, "model-0 exited by itself by signal 11: gone")
    ]

    failed = ev.RunReleased(**ABOUT, port=18_000, outcome="failed: prepare", error="no file")
    assert marks(drawn(told(*READY[:2], failed)))[1:] == [("failure", 2, "prepare: no file")]


def test_sessions_adoptions_strays_and_strangers_are_marked() -> None:
    again = History().opened().event
    picture = drawn(
        told(
            *READY,
            again,
            ev.RunAdopted(**ABOUT, port=18_000, pid=9, state="ready"),
            ev.ProcessReaped(run=7, pid=8, command="x", reason="of no run"),
            ev.PortBlocked(port=18_002, pid=3, command="nginx"),
            ev.ServiceClosed(reason="keep", kept=(1,)),
            again,
        )
    )

    assert [mark.kind for mark in picture.marks] == [
        "opened",
        "killed",
        "adopted",
        "reaped",
        "blocked",
        "closed",
        "opened",
    ]
    assert picture.ports == (18_000, 18_001, 18_002)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_of_a_history_is_missing(seed: int) -> None:
    entries = list(History(seed=seed, crashes=0.2).entries(150, close=None))
    picture = drawn(entries)
    kinds = Counter(entry.event.kind for entry in entries)

    assert len(picture.bars) == 150
    assert picture.left_out == 0
    assert picture.events == len(entries)
    assert (picture.start, picture.end) == (entries[0].at, entries[-1].at)
    found = Counter(mark.kind for mark in picture.marks)
    assert found["eviction"] == kinds["run.evicting"]
    assert found["undone"] == kinds["run.reopened"]
    assert found["blocked"] == kinds["port.blocked"]
    assert found["crash"] + found["failure"] == kinds["model.backoff"]
    for bar in picture.bars:
        check(bar, picture)


def check(bar: Bar, picture: Timeline) -> None:
    assert bar.spans
    assert bar.model in picture.models
    assert set(bar.ports) <= set(picture.ports)
    ends = 0
    for before, after in zip(bar.spans, bar.spans[1:], strict=False):
        assert before.end == after.start
        assert before.shown != after.shown
    for span in bar.spans:
        assert 0 <= ends <= span.start <= span.end <= picture.length
        ends = span.end


def test_every_stage_but_the_end_has_a_name_in_the_picture() -> None:
    from moorage.core.lifecycle import Stage  # noqa: PLC0415

    assert set(SHOWN) == set(Stage) - {Stage.ENDED}


def test_a_segment_alone_begins_with_the_runs_it_found_open() -> None:
    before = told(*READY)
    state = replay(before)
    begins = Entry(
        state.seq + 1, at(5), None, continued(state, program="x", segment=2, base_hash="")
    )
    history = History(seq=begins.seq, at=BEGAN.replace(second=6))
    after = [begins, history.entry(STOPPING), history.entry(EXITED), history.entry(RELEASED)]

    (bar,) = drawn(after).bars
    assert spans(bar) == [("ready", 0, 1), ("stopping", 1, 1)]
    assert (bar.held, bar.ports, bar.ended) == (0, (18_000, 18_001), True)
    (bar,) = drawn([*before, *after]).bars
    assert [name for name, _, _ in spans(bar)] == ["queued", "loading", "ready", "stopping"]


# --- windows ---


def at(second: int) -> str:
    return text(BEGAN.replace(second=second))


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    entries = told(*READY, STOPPING, EXITED, RELEASED)
    back = len(entries) - 3
    entries[back:] = [entry._replace(at=at(0)) for entry in entries[back:]]

    picture = drawn(entries)

    (bar,) = picture.bars
    assert (picture.start, picture.end, picture.left_out) == (at(0), at(4), 0)
    assert [shown for shown, *_ in spans(bar)] == ["queued", "loading", "ready", "stopping"]
    assert spans(bar)[1:3] == [("loading", 1, 4), ("ready", 4, 4)]


def test_a_window_cuts_bars_and_counts_the_runs_outside() -> None:
    later = ev.RunQueued(model="model-1", run=2, requested_by="lease()", place=1)
    entries = told(*READY, STOPPING, EXITED, RELEASED, later, ev.ModelPinned(model="model-2"))

    picture = drawn(entries, begin=at(2), end=at(5))
    assert (picture.start, picture.end, picture.length) == (at(2), at(5), 3 * SECOND)
    (bar,) = picture.bars
    assert spans(bar) == [("loading", 0, 2), ("ready", 2, 3), ("stopping", 3, 3)]
    assert (bar.held, bar.ended) == (0, False)
    assert [mark.kind for mark in picture.marks] == []

    picture = drawn(entries, begin=at(8))
    assert [bar.run for bar in picture.bars] == [2]
    assert picture.left_out == 1


def test_a_window_beyond_the_log_is_empty_and_says_how_much_is_outside() -> None:
    picture = drawn(told(*READY, STOPPING, EXITED, RELEASED), begin="2027-01-01T00:00:00.000000Z")

    assert (picture.bars, picture.marks, picture.left_out) == ((), (), 1)


def test_a_window_before_the_log_is_empty() -> None:
    picture = drawn(told(*READY), end="2025-01-01T00:00:00.000000Z")

    assert (picture.bars, picture.marks, picture.length) == ((), (), 0)


def test_an_empty_log_gives_an_empty_picture() -> None:
    picture = drawn([])

    assert (picture.bars, picture.marks, picture.length) == ((), (), 0)
    assert isinstance(picture.marks, tuple)
    assert not any(isinstance(mark, Mark) for mark in picture.marks)
