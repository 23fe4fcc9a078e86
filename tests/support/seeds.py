"""The seeds of what is random in the suite: all told in the head of a test run, even with `-q`.

A variable such as `MOORAGE_CHAOS_SEED` with the number told repeats what drew from it.
"""

from __future__ import annotations

import os
import random
from typing import Final

_CHANCE = random.SystemRandom()  # pytest-randomly would give the same number to every test
_PARTS = ("CHAOS", "EXAMPLES", "ORDER", "RESTLESS", "SIMULATION", "STRESS")


def _variable(part: str) -> str:
    return f"MOORAGE_{part}_SEED"


SEEDS: Final = {
    part: int(os.environ.get(_variable(part)) or _CHANCE.getrandbits(32)) for part in _PARTS
}
# Also for the processes that share the work of a run: what was told holds for all of it.
os.environ |= {_variable(part): str(number) for part, number in SEEDS.items()}
TOLD: Final = " ".join(f"{_variable(part)}={number}" for part, number in SEEDS.items())


def seed(part: str) -> int:
    """Return a part's seed; a test that fails shows it once more."""
    print(f"{_variable(part)}={SEEDS[part]}")
    return SEEDS[part]
