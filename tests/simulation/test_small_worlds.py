"""All histories of small worlds up to a length, and that they are all and lead somewhere."""

from __future__ import annotations

import pytest

from simulation.judge import Judge, Wrong
from simulation.sight import Sight
from simulation.small_worlds import ALPHABETS, Enumeration, enumerate_all

DEPTHS = {
    "load": 7,
    "refused": 7,
    "crash": 8,
    "use": 5,
    "nested": 5,
    "exit": 5,
    "recover": 5,
    "remove": 4,
    "stop": 5,
    "pin": 4,
}
"""Steps that take seconds together; `python -m tests.simulation.small_worlds` goes further."""


@pytest.mark.parametrize("alphabet", sorted(ALPHABETS))
def test_no_history_of_a_small_world_is_wrong(alphabet: str) -> None:
    found = enumerate_all(alphabet, DEPTHS[alphabet])

    assert found.wrong == []
    assert found.histories > 50
    assert found.rests > 10


class Refusing:
    """Finds wrong what is asked for before faults cease, and judges nothing else."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def look(self, sight: Sight) -> None:
        if not sight.calm and any(row.kind == self.kind for row in sight.rows):
            raise Wrong([f"there is a {self.kind}"], sight.step, sight.what)


@pytest.mark.parametrize(
    ("alphabet", "kind"),
    [
        ("refused", "run.released"),
        ("crash", "run.released"),
        ("use", "run.evicting"),
        ("use", "run.reopened"),
        ("exit", "run.exited"),
        ("recover", "run.adopted"),
        ("remove", "run.draining"),
        ("stop", "run.draining"),
        ("pin", "model.pinned"),
    ],
)
def test_what_an_alphabet_is_about_lies_within_its_depth(alphabet: str, kind: str) -> None:
    depth = DEPTHS[alphabet]
    [story] = Enumeration(alphabet, depth, new_judge=lambda: Refusing(kind)).run().wrong

    assert story.splitlines()[-1] == f"  there is a {kind}"
    assert len(story.splitlines()) < 40


@pytest.mark.parametrize(("alphabet", "depth"), [("load", 5), ("use", 3), ("remove", 3)])
def test_histories_that_go_on_as_one_reach_what_all_of_them_reach(
    alphabet: str, depth: int
) -> None:
    merged, all_ = Enumeration(alphabet, depth), Enumeration(alphabet, depth, merge=False)
    some, every = merged.run(), all_.run()

    assert merged.reached == all_.reached
    assert some.histories < every.histories


def test_a_judge_that_finds_nothing_wrong_sees_every_step() -> None:
    steps: list[int] = []

    class Counting(Judge):
        def look(self, sight: Sight) -> None:
            steps.append(sight.step)
            super().look(sight)

    found = Enumeration("load", 3, new_judge=Counting).run()

    assert found.wrong == []
    assert len(steps) > found.steps
