"""A turn that comes in the moment of a cancel is given back, and begins nothing."""

from __future__ import annotations

import threading

import pytest

from moorage.hub.turns import Turn, Turns
from moorage.protocols import FetchCancelledError


def test_a_turn_that_comes_just_as_its_fetch_is_cancelled_is_given_back() -> None:
    turns = Turns(1)
    first = turns.join()
    cancelled = threading.Event()

    def as_it_begins_to_wait(_what: str) -> None:
        cancelled.set()
        turns.leave(first)

    turn = Turn(turns, cancelled, as_it_begins_to_wait)

    with pytest.raises(FetchCancelledError):
        turn.take()
    assert turns.join().is_set()


def test_a_turn_is_one_however_often_it_is_taken_and_given() -> None:
    turns = Turns(1)
    turn = Turn(turns, threading.Event(), lambda _what: None)
    turn.take()
    turn.take()
    second = turns.join()
    early = second.is_set()
    turn.give()
    turn.give()

    assert not early
    assert second.is_set()
    assert not turns.join().is_set()
