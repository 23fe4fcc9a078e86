"""Makes a failing history short: quieter choices and fewer of them, as long as it fails alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from simulation.playing import Played, replay


def shrink(failed: Played, seconds: float) -> Played:
    """Return the shortest history found in this time that fails in the same way."""
    return _Shrinker(failed, time.monotonic() + seconds).run()


class _Shrinker:
    def __init__(self, failed: Played, deadline: float) -> None:
        self.best = failed
        self.record = list(failed.record)
        self.deadline = deadline
        self._end_early()

    def _end_early(self) -> None:
        """What fails before the rest needs no rest."""
        steps = min(self.best.plan.steps, self.best.tally.steps)
        self.best = replace(self.best, plan=replace(self.best.plan, steps=steps))

    def run(self) -> Played:
        size = len(self.record) + 1
        while (size := min(size, len(self.record) + 1) // 2) > 0:
            for work in (self._quieten, self._cut):
                self._pass(work, size)
            if self._over():
                break
            if size == 1 and self._lower():
                size = 16
        self.best = replay(self.best.plan, self.record, told=True)
        return self.best

    def _over(self) -> bool:
        return time.monotonic() > self.deadline

    def _pass(self, work: object, size: int) -> None:
        at = 0
        while at < len(self.record) and not self._over():
            candidate = work(at, size)  # type: ignore[operator]
            if candidate is None or not self._try(candidate):
                at += size

    def _quieten(self, at: int, size: int) -> list[int] | None:
        if not any(self.record[at : at + size]):
            return None
        block = [0] * len(self.record[at : at + size])
        return [*self.record[:at], *block, *self.record[at + size :]]

    def _cut(self, at: int, size: int) -> list[int] | None:
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

    def _try(self, candidate: list[int]) -> bool:
        played = replay(self.best.plan, candidate)
        if not played.wrong or played.kind != self.best.kind:
            return False
        if _size(played.record) >= _size(self.record):
            return False
        self.best, self.record = played, list(played.record)
        while self.record and self.record[-1] == 0:
            self.record.pop()
        return True


def _size(record: object) -> tuple[int, int]:
    values = [value for value in record if value]  # type: ignore[attr-defined]
    return (len(values), sum(values) + len(record))  # type: ignore[arg-type]


def _less(value: int) -> Iterator[int]:
    """Yield smaller values, the most different first."""
    step = value
    while step > 0:
        yield value - step
        step //= 2
