"""Explore every world, the long ones, too: `python -m interleaving` in the folder `tests`."""

from __future__ import annotations

import sys

from interleaving.steps import quiet_finalisers
from interleaving.worlds import SMALL, WHOLE, world


def main(names: list[str]) -> None:
    """Explore the worlds named, or all of them, and say how many states each has."""
    with quiet_finalisers():
        for named in names or [*SMALL, *WHOLE]:
            print(f"{named}: {world(named).explore()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
