"""What an entry cannot mean is found in the entry itself."""

from __future__ import annotations

from typing import Any

import pytest

from core.making import START
from moorage.core import events as ev
from moorage.core.shape import flaw

SOUND = ev.Entry(seq=2, at=START, cause=1, event=ev.ModelPinned(model="a"))


@pytest.mark.parametrize("cause", [None, 1])
def test_a_sound_entry_has_no_flaw(cause: int | None) -> None:
    assert flaw(SOUND._replace(cause=cause)) == ""


@pytest.mark.parametrize(
    "at",
    [
        "",
        0,
        "2026-01-01",
        "2026-01-01T00:00:00.000000",
        "2026-02-30T00:00:00.000000Z",
        "2026-01-01T24:60:00.000000Z",
    ],
)
def test_a_time_has_to_be_one_of_the_calendar_in_utc(at: Any) -> None:
    assert flaw(SOUND._replace(at=at)) == "has a time that is none"


@pytest.mark.parametrize("cause", [True, "1", 1.0, 1 << 63])
def test_a_cause_has_to_be_a_row(cause: Any) -> None:
    assert flaw(SOUND._replace(cause=cause)) == "has a cause that is no row"


def test_a_field_of_another_type_is_named() -> None:
    event = ev.ModelPinned(model=["a"])  # type: ignore[arg-type]

    assert flaw(SOUND._replace(event=event)) == "has a model of a type that no such event has"
