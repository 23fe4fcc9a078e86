"""What is told of a fetch while it lasts: in the status when asked, in the log now and then."""

from __future__ import annotations

from typing import Any

import pytest

from actors.bench import Bench
from actors.conftest import Open
from moorage.actors.reports import LONG_FETCH_S
from moorage.core import events as ev
from moorage.core.pace import NOTED_STEPS, STALLED_S

GB = 1_000_000_000


def fetching(bench: Open, **options: Any) -> Bench:
    """Return a bench with a fetch on hold for `a`."""
    b = bench(**options)
    b.define("a", repo="org/a")
    hold = b.fetcher.hold("a")
    b.lease("a", timeout_s=1e5)
    hold.wait_reached()
    return b


def come(b: Bench, done: float, total: int | None = GB) -> None:
    b.fetcher.come("a", int(done), total)
    b.settle_now()


def noted(b: Bench) -> list[Any]:
    return b.events(ev.FetchNoted)


def test_the_status_tells_bytes_total_rate_and_what_is_left(bench: Open) -> None:
    b = fetching(bench)
    come(b, 0)
    b.advance(2)
    come(b, GB / 4)

    status = b.service.model("a")

    assert (status.state, status.fetched_bytes, status.fetch_bytes) == ("fetching", GB // 4, GB)
    assert status.fetch_bytes_per_s == GB / 8
    assert status.fetch_eta_s == 6
    b.fetcher.hold("a").release()
    b.until_state("a", "ready")
    assert b.service.model("a").fetched_bytes is None


def test_a_fetch_in_which_nothing_comes_any_more_has_no_end_in_sight(bench: Open) -> None:
    b = fetching(bench)
    come(b, 0)
    b.advance(1)
    come(b, 1000)
    b.advance(STALLED_S + 1)

    status = b.service.model("a")

    assert (status.fetch_bytes_per_s, status.fetch_eta_s) == (0, None)


def test_the_status_tells_for_what_a_fetch_waits(bench: Open) -> None:
    b = fetching(bench)
    b.fetcher.come("a", 100, waiting="its turn")
    b.settle_now()

    assert b.service.model("a").reason == "waits for its turn"


def test_a_short_fetch_adds_nothing_to_the_log(bench: Open) -> None:
    b = fetching(bench)
    for tenth in range(11):
        come(b, GB * tenth / 10)
        b.advance(LONG_FETCH_S / 12)

    assert noted(b) == []


def test_a_long_fetch_is_noted_at_each_tenth_however_often_it_tells(bench: Open) -> None:
    b = fetching(bench)
    b.advance(LONG_FETCH_S)
    for percent in range(101):
        come(b, GB * percent / 100)
        b.advance(1)

    found = noted(b)
    assert [event.done_bytes for event in found] == [
        GB * n // 10 for n in range(1, NOTED_STEPS + 1)
    ]
    assert {(event.model, event.run, event.total_bytes) for event in found} == {("a", 1, GB)}
    assert found[-1].bytes_per_s == pytest.approx(GB / 100)
    begun = next(e for e in b.entries() if isinstance(e.event, ev.RunFetching))
    assert {e.cause for e in b.entries() if isinstance(e.event, ev.FetchNoted)} == {begun.seq}


def test_a_fetch_that_begins_again_and_again_is_noted_no_more_often(bench: Open) -> None:
    b = fetching(bench)
    b.advance(LONG_FETCH_S)
    for _ in range(3):
        for tenth in (0, 5, 9):
            come(b, GB * tenth / 10)
            b.advance(1)

    assert [event.done_bytes * 10 // GB for event in noted(b)] == [5, 9]


def test_tenths_that_were_here_already_are_one_entry(bench: Open) -> None:
    b = fetching(bench)
    b.advance(LONG_FETCH_S)
    come(b, GB * 0.7)
    b.advance(1)
    come(b, GB * 0.71)

    assert [event.done_bytes for event in noted(b)] == [int(GB * 0.7)]


def test_a_fetch_of_unknown_size_is_not_noted(bench: Open) -> None:
    b = fetching(bench)
    b.advance(LONG_FETCH_S)
    come(b, GB, None)
    b.advance(1)
    come(b, 2 * GB, None)

    assert noted(b) == []
    assert b.service.model("a").fetch_bytes is None


def test_subscribers_hear_of_it(bench: Open) -> None:
    b = fetching(bench)
    heard: list[Any] = []
    b.service.subscribe(heard.append)
    b.advance(LONG_FETCH_S)
    come(b, GB / 2)

    b.until(lambda: any(isinstance(entry.event, ev.FetchNoted) for entry in heard))


def test_while_the_log_cannot_be_written_nothing_piles_up(bench: Open) -> None:
    b = fetching(bench)
    b.advance(LONG_FETCH_S)
    b.log.unavailable = "disk full"
    for tenth in range(9):
        come(b, GB * tenth / 10)
        b.advance(1)

    assert b.service.status().unwritten == 1  # the first one showed that the disk is full
    b.log.unavailable = None
    b.advance(2)
    come(b, GB * 0.95)
    assert [event.done_bytes for event in noted(b)] == [int(GB * 0.1), int(GB * 0.95)]


def test_of_a_run_that_has_ended_nothing_is_kept(bench: Open) -> None:
    b = fetching(bench)
    volatile = b.service._runtime.registry.volatile
    come(b, GB / 2)
    kept = (dict(volatile.fetching), dict(volatile.fetch_steps))
    b.fetcher.hold("a").release()
    b.until_state("a", "ready")
    b.service.stop("a", force=True)

    assert set(kept[0]) == set(kept[1]) == {1}
    assert volatile.fetching == volatile.fetch_steps == {}


def test_a_word_that_comes_after_the_fetch_changes_nothing(bench: Open) -> None:
    b = fetching(bench)
    b.advance(LONG_FETCH_S)
    b.fetcher.hold("a").release()
    b.until_state("a", "ready")
    come(b, GB / 2)

    assert noted(b) == []
    assert b.service.model("a").fetched_bytes is None
