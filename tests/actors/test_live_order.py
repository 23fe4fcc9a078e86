"""The order of use that a live service tells, from any thread."""

from __future__ import annotations

import pytest

from actors.conftest import Open
from moorage.actors.hall import Hall


def test_a_stamp_that_comes_late_makes_no_run_older_than_it_was_seen_to_be() -> None:
    hall = Hall(lambda: 12.0, lambda _run: None)
    gate = hall.build("a", 1, (18000,))
    seen = hall.observe()[1]
    gate.used_at = 10.0  # by a thread that had read its clock before

    assert hall.leases()[1].used_at == hall.observe()[1].used_at == seen.used_at


def test_a_status_read_while_a_run_goes_does_not_tell_it_as_the_one_used_last(
    bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.define("a", "b")
    for name in "ab":
        b.service.start(name)
        b.clock.advance(1)
    hall = b.service._runtime.hall
    leases = hall.leases

    def after_its_end() -> object:
        b.service.stop("a")
        return leases()

    with monkeypatch.context() as patch:
        patch.setattr(hall, "leases", after_its_end)
        lru = b.service.status().lru

    assert lru == ("b",)
