"""Where every choice of a simulation comes from, so that it can be made again."""

from __future__ import annotations

import random
from collections.abc import Sequence

Taken = list[int]


class Choices:
    """`choose` is all that decides. 0 is the quietest choice, so lower ones make it simpler."""

    taken: Taken
    """What was chosen so far."""

    def choose(self, n: int) -> int:
        """Return a number below `n`."""
        raise NotImplementedError

    def happens(self, per_mille: int) -> bool:
        """Tell whether something does that happens so often; without a choice when it cannot."""
        return per_mille > 0 and self.choose(2) == 1


class Seeded(Choices):
    """By chance, from a seed."""

    def __init__(self, seed: object) -> None:
        self.taken = []
        self._random = random.Random(str(seed)).random

    def choose(self, n: int) -> int:
        value = int(self._random() * n)
        self.taken.append(value)
        return value

    def happens(self, per_mille: int) -> bool:
        if per_mille <= 0:
            return False
        value = int(self._random() * 1000 < per_mille)
        self.taken.append(value)
        return value == 1


class Recorded(Choices):
    """As before; where the record ends, or does not fit, the quietest."""

    def __init__(self, record: Sequence[int]) -> None:
        self.taken = []
        self._record = iter(record)

    def choose(self, n: int) -> int:
        value = min(next(self._record, 0), n - 1)
        self.taken.append(value)
        return value
