"""Explore worlds of the gate: `python -m interleaving` in the folder `tests`."""

from __future__ import annotations

import argparse

from interleaving.parties import SCENARIOS
from interleaving.steps import quiet_finalisers
from interleaving.worlds import SMALL, TAKING_PART, WHOLE, world


def main() -> None:
    """Explore the worlds named, or all of them, and say how many states each has."""
    parser = argparse.ArgumentParser(prog="python -m interleaving", description=__doc__)
    parser.add_argument(
        "worlds",
        nargs="*",
        type=_checked,
        help="each in quotes: what the registry is asked for, and who takes part, as in "
        f"'{WHOLE[0]}'; without any, all that are known, which takes hours",
    )
    with quiet_finalisers():
        for named in parser.parse_args().worlds or [*SMALL, *WHOLE]:
            print(f"{named}: {world(named).explore()}", flush=True)


def _checked(named: str) -> str:
    scenario, *names = named.split() or [""]
    if scenario not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"{scenario!r} is none of {', '.join(SCENARIOS)}")
    for name in names:
        if name not in TAKING_PART:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(TAKING_PART)}")
    return named


if __name__ == "__main__":
    main()
