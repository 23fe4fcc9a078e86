"""How many examples a generated test tries: some that are always the same, and some at random.

`MOORAGE_EXAMPLES=20` tries twenty times as many of both, and makes what fails smaller. The seed of
the random ones is printed in the head of a test run and with a failure; `MOORAGE_EXAMPLES_SEED`
with that number repeats them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import hypothesis
from hypothesis import HealthCheck, Phase

from support import seeds

TIMES: Final = float(os.environ.get("MOORAGE_EXAMPLES") or 1)
SEED: Final = seeds.SEEDS["EXAMPLES"]
PHASES: Final = (Phase.explicit, Phase.generate, *((Phase.shrink,) if TIMES > 1 else ()))
"""To make a slow example smaller takes longer than a test may: only a longer run does."""


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a generated test's examples; its seed is None where it is always the same."""

    name: str
    seed: int | None

    def settings(self, examples: int, **more: Any) -> hypothesis.settings:
        """Return the settings for so many examples."""
        return hypothesis.settings(
            max_examples=max(1, round(examples * TIMES)),
            derandomize=self.seed is None,
            database=None,  # what is printed repeats a failure, and nothing is left in the checkout
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
            **more,
        )

    def seeded(self, test: Any) -> Any:
        """Let a test or a machine draw from this share."""
        if self.seed is None:
            return test
        seeds.seed("EXAMPLES")
        return hypothesis.seed(self.seed)(test)

    def of(self, examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Run a test of `hypothesis.given` at once, with so many examples of this share."""

        def run(test: Callable[..., None]) -> Callable[..., None]:
            self.seeded(self.settings(examples)(test))()
            return test

        return run


SHARES: Final = (Share("fixed", None), Share("random", SEED))
NAMES: Final = tuple(share.name for share in SHARES)
