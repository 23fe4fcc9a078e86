"""Where every choice of a simulation comes from, so that it can be made again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

Record = Sequence[Sequence[int]]
"""The choices of every step: what is left out of one does not shift those of the others."""


class Choices:
    """`choose` is all that decides. 0 is the quietest choice, so lower ones make it simpler."""

    taken: list[int]
    """What was chosen so far, where somebody wants to know."""

    def choose(self, n: int) -> int:
        """Return a number below `n`."""
        raise NotImplementedError

    def happens(self, per_mille: int) -> bool:
        """Tell whether something does that happens so often; without a choice when it cannot."""
        return per_mille > 0 and self.choose(2) == 1

    def step(self) -> None:
        """Be told that the next step begins."""


class Seeded(Choices):
    """By chance, from a seed. `record` is what was chosen."""

    def __init__(self, seed: object) -> None:
        self.record: list[list[int]] = [[]]
        self._taken = self.record[0]
        self._random = random.Random(str(seed)).random

    def choose(self, n: int) -> int:
        value = int(self._random() * n)
        self._taken.append(value)
        return value

    def happens(self, per_mille: int) -> bool:
        if per_mille <= 0:
            return False
        value = int(self._random() * 1000 < per_mille)
        self._taken.append(value)
        return value == 1

    def step(self) -> None:
        self._taken = []
        self.record.append(self._taken)


class Recorded(Choices):
    """As before; where the record of a step ends, or does not fit, the quietest.

    `record` is what was really chosen.
    """

    def __init__(self, record: Record) -> None:
        self._steps = iter(record)
        self._values: Iterator[int] = iter(next(self._steps, ()))
        self.record: list[list[int]] = [[]]
        self._taken = self.record[0]

    def choose(self, n: int) -> int:
        value = min(next(self._values, 0), n - 1)
        self._taken.append(value)
        return value

    def step(self) -> None:
        self._values = iter(next(self._steps, ()))
        self._taken = []
        self.record.append(self._taken)
