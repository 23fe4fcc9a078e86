from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.pace import STALLED_S, TOLD_EVERY_S, Fetching, Pace


def told(*steps: tuple[float, int], total: int | None = 1000) -> list[Fetching]:
    pace = Pace()
    found = (pace.note(at, done, total) for at, done in steps)
    return [each for each in found if each is not None]


def test_the_first_is_told_at_once_and_knows_no_speed() -> None:
    (first,) = told((5.0, 300))

    assert first == Fetching(at=5.0, done_bytes=300, total_bytes=1000)
    assert first.eta_s is None


def test_what_was_there_before_is_no_speed() -> None:
    _, second = told((0.0, 900), (1.0, 910))

    assert second.bytes_per_s == 10
    assert second.eta_s == 9


def test_small_pieces_are_told_now_and_then() -> None:
    pieces = [(number / 100, number) for number in range(101)]

    found = told(*pieces)

    assert [each.done_bytes for each in found] == [0, 25, 50, 75, 100]
    assert found[-1].bytes_per_s == pytest.approx(100)


def test_the_last_is_told_at_once() -> None:
    *_, last = told((0.0, 0), (TOLD_EVERY_S, 500), (TOLD_EVERY_S + 0.001, 1000))

    assert (last.done_bytes, last.eta_s, last.step) == (1000, 0, 10)


def test_the_last_is_told_once() -> None:
    assert len(told((0.0, 0), (0.1, 1000), (0.2, 1000), (0.3, 1000))) == 2


def test_a_change_of_speed_is_smoothed_and_then_believed() -> None:
    fast = [(float(second), second * 100) for second in range(11)]
    slow = [(10.0 + second, 1000 + second * 10) for second in range(1, 31)]

    found = told(*fast, *slow, total=10_000)

    rates = [each.bytes_per_s for each in found[1:]]
    assert rates[:10] == [pytest.approx(100)] * 10
    assert 75 < rates[10] < 90  # type: ignore[operator]
    assert rates[10:] == sorted(rates[10:], reverse=True)  # type: ignore[type-var]
    assert rates[-1] == pytest.approx(10, abs=1)


def test_a_transfer_that_begins_again_is_no_negative_speed() -> None:
    found = told((0.0, 0), (1.0, 500), (2.0, 0), (3.0, 100))

    assert [each.done_bytes for each in found] == [0, 500, 0, 100]
    assert all((each.bytes_per_s or 0) >= 0 for each in found)


def test_a_silent_transfer_has_stalled() -> None:
    *_, last = told((0.0, 0), (1.0, 100))

    assert last.by(1.0 + STALLED_S) == last
    stalled = last.by(1.1 + STALLED_S)
    assert (stalled.bytes_per_s, stalled.eta_s, stalled.done_bytes) == (0, None, 100)


def test_what_it_waits_for_is_told_at_once_and_when_it_ends() -> None:
    pace = Pace()
    pace.note(0.0, 0, 1000)

    found = [pace.note(0.01, 0, 1000, "its turn"), pace.note(0.02, 0, 1000, "its turn")]
    ended = pace.note(0.03, 0, 1000)

    assert [each and each.waiting for each in found] == ["its turn", None]
    assert ended is not None


def test_what_was_found_in_a_wait_is_no_speed() -> None:
    pace = Pace()
    pace.note(0.0, 0, 1000)
    pace.note(1.0, 10, 1000)
    pace.note(2.0, 10, 1000, "a look")
    pace.note(3.0, 900, 1000, "a look")
    after = pace.note(4.0, 900, 1000)
    later = pace.note(5.0, 910, 1000)

    assert after is not None
    assert later is not None
    assert after.bytes_per_s == later.bytes_per_s == 10


def test_without_a_total_there_is_a_speed_but_no_end() -> None:
    *_, last = told((0.0, 0), (1.0, 100), total=None)

    assert (last.bytes_per_s, last.eta_s, last.step) == (100, None, 0)


def test_an_empty_file_is_no_division_by_nothing() -> None:
    (only,) = told((0.0, 0), total=0)

    assert (only.step, only.eta_s) == (0, None)


@pytest.mark.parametrize(
    ("done", "step"), [(0, 0), (99, 0), (100, 1), (999, 9), (1000, 10), (2000, 10)]
)
def test_ten_steps_lead_to_the_end(done: int, step: int) -> None:
    assert Fetching(at=0, done_bytes=done, total_bytes=1000).step == step


@given(
    steps=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1 << 50)), max_size=30),
    total=st.none() | st.integers(0, 1 << 50),
)
def test_whatever_comes_is_told_with_a_rate_that_can_be_shown(
    steps: list[tuple[float, int]], total: int | None
) -> None:
    for each in told(*steps, total=total):
        assert each.bytes_per_s is None or 0 <= each.bytes_per_s < float("inf")
        assert each.eta_s is None or each.eta_s >= 0
        assert 0 <= each.step <= 10
