"""Makes a failing history short: fewer steps and quieter ones, as long as it fails alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.choices import Record
from simulation.judge import Judge
from simulation.playing import Judges, Played, replay

FIRST_SIZE = 256
"""Steps that are left out at once, at first."""

Steps = Sequence[Sequence[int]]
Change = Callable[[Steps], Steps]


def shrink(failed: Played, seconds: float, *, new_judge: Judges = Judge) -> Played:
    """Return the shortest history found in this time that fails in the same way."""
    return _Shrinker(failed, time.monotonic() + seconds, new_judge).run()


class _Shrinker:
    def __init__(self, failed: Played, deadline: float, new_judge: Judges) -> None:
        self._new_judge = new_judge
        self._deadline = deadline
        self.best = _ended_early(failed)

    def run(self) -> Played:
        changed = True
        while changed and not self._over():
            before = self.best
            size = FIRST_SIZE
            while size and not self._over():
                self._pass(lambda _: (), size)
                self._pass(lambda steps: [()] * len(steps), size)
                size //= 2
            self._lower()
            changed = self.best is not before
        return replay(self.best.plan, self.best.record, told=True, new_judge=self._new_judge)

    def _over(self) -> bool:
        return time.monotonic() > self._deadline

    def _pass(self, change: Change, size: int) -> None:
        """Change block after block, the last ones first: what they do depends on the others."""
        at = len(self.best.record)
        while at > 0 and not self._over():
            at = max(0, min(at, len(self.best.record)) - size)
            record = self.best.record
            self._try([*record[:at], *change(record[at : at + size]), *record[at + size :]])

    def _lower(self) -> None:
        """Lower choice after choice."""
        for at in range(len(self.best.record) - 1, -1, -1):
            place = 0
            while at < len(self.best.record) and place < len(self.best.record[at]):
                self._lower_one(at, place)
                place += 1
                if self._over():
                    return

    def _lower_one(self, at: int, place: int) -> None:
        record = self.best.record
        step = record[at]
        for less in _less(step[place]):
            lowered = [*step[:place], less, *step[place + 1 :]]
            if self._over() or self._try([*record[:at], lowered, *record[at + 1 :]]):
                return

    def _try(self, candidate: Steps) -> bool:
        if candidate == self.best.record:
            return False
        played = replay(self.best.plan, candidate, new_judge=self._new_judge)
        if not played.wrong or played.kind != self.best.kind:
            return False
        if _size(played) >= _size(self.best):
            return False
        self.best = _ended_early(played)
        return True


def _ended_early(played: Played) -> Played:
    """What fails before the rest needs no rest."""
    steps = min(played.plan.steps, played.tally.steps)
    return replace(played, plan=replace(played.plan, steps=steps))


def _size(played: Played) -> tuple[int, int]:
    record: Record = played.record
    loud = sum(1 for step in record for value in step if value)
    return played.tally.steps + loud, sum(map(sum, record))


def _less(value: int) -> Iterator[int]:
    """Yield smaller values, the most different first."""
    step = value
    while step > 0:
        yield value - step
        step //= 2
