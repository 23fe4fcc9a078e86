"""Plays one seed, or a record of choices, and says what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.choices import Record, Recorded, Seeded
from simulation.engine import Looks, Simulation, Tally, WrongError
from simulation.judge import Judge, Wrong
from simulation.plan import Plan, plan_of
from simulation.sight import Sight

Judges = Callable[[], Looks]
LAST = 60
"""So many steps are told of a history that was not shrunk."""


@dataclass(slots=True, kw_only=True)
class Played:
    """A history. `wrong` says what was found, "" when nothing was."""

    plan: Plan
    tally: Tally
    wrong: str = ""
    record: Record = ()
    """The choices it was made of."""
    story: tuple[str, ...] = ()
    log: tuple[str, ...] = field(default=(), repr=False)
    """The rows as they are stored."""

    @property
    def kind(self) -> str:
        """What was found, without the numbers and names of this history."""
        lines = self.wrong.splitlines()
        return re.sub(r"\b\w?\d[\d.]*\b|\b[a-d](-alias)?\b", "#", lines[1 if lines[1:] else 0])


class _Narrator:
    """Tells each step in a line or more on its way to the judge."""

    def __init__(self, judge: Looks) -> None:
        self.story: list[str] = []
        self.judge = judge

    def look(self, sight: Sight) -> None:
        self.story.append("\n".join(_told(sight)))
        self.judge.look(sight)


def _told(sight: Sight) -> list[str]:
    lines = [f"{sight.step:5} {sight.now:10.4f} s  {sight.what}"]
    for row in sight.rows:
        data = " ".join(f"{k}={v!r}" for k, v in row.data.items() if v not in ("", None, (), []))
        where = f"{row.model or ''}{row.run or ''}"
        lines.append(f"{'':19}{row.seq} <{row.cause or ''} {row.kind} {where} {data[:150]}")
    for answer in sight.answers:
        asked = f"{answer.verb}({', '.join(answer.names)})"
        got = answer.error or ", ".join(f"run {lease.run}" for lease in answer.leases) or "done"
        lines.append(f"{'':19}caller {answer.caller}: {asked} -> {got}")
    return lines


def play(
    plan: Plan, choices: Seeded | Recorded, *, told: bool = False, new_judge: Judges = Judge
) -> Played:
    """Play to the end or to the first thing that is wrong."""
    judge = new_judge()
    narrator = _Narrator(judge) if told else None
    simulation = Simulation(plan, choices, narrator or judge)
    wrong = ""
    try:
        simulation.run()
    except (Wrong, WrongError) as error:
        wrong = str(error)
    return Played(
        plan=plan,
        tally=simulation.tally,
        wrong=wrong,
        record=tuple(map(tuple, choices.record)) if wrong else (),
        story=tuple(narrator.story) if narrator else (),
        log=tuple(map(str, simulation.world.storage.rows)) if told else (),
    )


def play_seed(seed: int, steps: int, *, told: bool = False, new_judge: Judges = Judge) -> Played:
    """Play what a seed makes."""
    return play(plan_of(seed, steps), Seeded(seed), told=told, new_judge=new_judge)


def replay(plan: Plan, record: Record, *, told: bool = False, new_judge: Judges = Judge) -> Played:
    """Play what was recorded."""
    return play(plan, Recorded(record), told=told, new_judge=new_judge)
