"""Makes a failing history short: quieter choices and fewer of them, as long as it fails alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.judge import Judge
from simulation.playing import Judges, Played, replay

FIRST_SIZE = 256
LOWERED_SIZE = 16
"""Where the search goes on once single choices were lowered."""

Record = list[int]
Change = Callable[[int, int], Record | None]


def shrink(failed: Played, seconds: float, *, new_judge: Judges = Judge) -> Played:
    """Return the shortest history found in this time that fails in the same way."""
    return _Shrinker(failed, time.monotonic() + seconds, new_judge).run()


class _Shrinker:
    def __init__(self, failed: Played, deadline: float, new_judge: Judges) -> None:
        self.new_judge = new_judge
        self.best = failed
        self.record = list(failed.record)
        self.deadline = deadline
        self._end_early()

    def _end_early(self) -> None:
        """What fails before the rest needs no rest."""
        steps = min(self.best.plan.steps, self.best.tally.steps)
        self.best = replace(self.best, plan=replace(self.best.plan, steps=steps))

    def run(self) -> Played:
        size = FIRST_SIZE
        while size and not self._over():
            size = min(size, len(self.record))
            self._pass(self._cut, size)
            self._pass(self._quieten, size)
            size //= 2
            if not size and self._lower():
                size = LOWERED_SIZE
        return replay(self.best.plan, self.record, told=True, new_judge=self.new_judge)

    def _over(self) -> bool:
        return time.monotonic() > self.deadline

    def _pass(self, change: Change, size: int) -> None:
        """Change block after block, the last ones first: what they do depends on the others."""
        at = len(self.record) - size
        while at > -size and not self._over():
            candidate = change(max(at, 0), size)
            if candidate is not None and self._try(candidate):
                at = min(at, len(self.record))
            at -= size

    def _quieten(self, at: int, size: int) -> Record | None:
        if not any(self.record[at : at + size]):
            return None
        block = [0] * len(self.record[at : at + size])
        return [*self.record[:at], *block, *self.record[at + size :]]

    def _cut(self, at: int, size: int) -> Record | None:
        return [*self.record[:at], *self.record[at + size :]]

    def _lower(self) -> bool:
        lowered = False
        for at, value in enumerate(tuple(self.record)):
            for less in _less(value):
                if at >= len(self.record) or self._over():
                    break
                candidate = [*self.record[:at], less, *self.record[at + 1 :]]
                if self._try(candidate):
                    lowered = True
                    break
        return lowered

    def _try(self, candidate: Record) -> bool:
        played = replay(self.best.plan, candidate, new_judge=self.new_judge)
        if not played.wrong or played.kind != self.best.kind:
            return False
        shorter = played.tally.steps < self.best.tally.steps
        if not shorter and _size(played.record) >= _size(self.record):
            return False
        steps = min(played.tally.steps, played.plan.steps)
        self.best = replace(played, plan=replace(played.plan, steps=steps))
        self.record = list(played.record)
        while self.record and self.record[-1] == 0:
            self.record.pop()
        return True


def _size(record: Sequence[int]) -> tuple[int, int]:
    return sum(1 for value in record if value), sum(record) + len(record)


def _less(value: int) -> Iterator[int]:
    """Yield smaller values, the most different first."""
    step = value
    while step > 0:
        yield value - step
        step //= 2
