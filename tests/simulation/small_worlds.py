"""All histories of a small world up to a length: `python -m tests.simulation.small_worlds`.

Two models, one place, two ports, two callers. A step is one of the options there are: a message
the registry handles, a stretch of a worker, an act of a caller, something that is due, a fault.
Histories that meet go on as one. From what is reached at the end, once for each outline of it,
faults cease and the world must come to rest with nothing left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.engine import Looks, WrongError
from simulation.fingerprint import fingerprint, outline
from simulation.judge import Judge, Wrong
from simulation.small import BY_CHOICE, Alphabet, Options, SmallWorld

TOLD = 60
"""So many steps are told of what was wrong."""

ALPHABETS: dict[str, Alphabet] = {
    "load": Alphabet(),
    "refused": Alphabet(refusals=1, full=1, once=()),
    "crash": Alphabet(crashes=1, once=()),
    "use": Alphabet(held=True),
    "nested": Alphabet(held=True, most=2, once=()),
    "exit": Alphabet(held=True, exits=1, once=()),
    "recover": Alphabet(held=True, crashes=1, once=()),
    "remove": Alphabet(held=True, once=("remove a", "give up")),
    "stop": Alphabet(held=True, once=("stop a", "force a")),
    "pin": Alphabet(held=True, once=("pin a", "give up")),
}
"""What can happen beside the service's own steps."""


@dataclass(slots=True, kw_only=True)
class Found:
    """What an enumeration came to."""

    alphabet: str
    depth: int
    histories: int = 0
    """Those that were followed to this length, or to where they met another."""
    states: int = 0
    steps: int = 0
    rests: int = 0
    """Outlines from which the world was brought to rest."""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list[str])


class _Path(Options):
    """Takes the places it was given, then the first everywhere, and keeps how many there were."""

    def __init__(self, places: Sequence[int]) -> None:
        self.taken = []
        self.counts: list[int] = []
        self._given = places

    def pick(self, options: Sequence[str]) -> int:
        at = len(self.taken)
        place = self._given[at] if at < len(self._given) else 0
        self.taken.append(place)
        self.counts.append(len(options))
        return place

    @property
    def new(self) -> bool:
        """Tell whether this is no longer the beginning of a path that was followed before."""
        return len(self.taken) >= len(self._given)

    def next(self) -> list[int] | None:
        """Return the places of the next path, None after the last."""
        for at in range(len(self.taken) - 1, -1, -1):
            if self.taken[at] + 1 < self.counts[at]:
                return [*self.taken[:at], self.taken[at] + 1]
        return None


class Enumeration:
    """Follows one path after another, each from the beginning: a moment cannot be copied."""

    def __init__(
        self,
        alphabet: str,
        depth: int,
        *,
        new_judge: Callable[[], Looks] = Judge,
        merge: bool = True,
    ) -> None:
        self.found = Found(alphabet=alphabet, depth=depth)
        self.reached: dict[bytes, int] = {}
        """What was reached, to the most of the depth that was left then."""
        self._new_judge = new_judge
        self._merge = merge
        self._outlines: set[bytes] = set()

    def run(self, most_wrong: int = 1) -> Found:
        """Follow every path, or as many as it takes to find this much wrong."""
        began = time.monotonic()
        places: list[int] | None = []
        while places is not None and len(self.found.wrong) < most_wrong:
            path = _Path(places)
            self._follow(path)
            self.found.histories += 1
            places = path.next()
        self.found.states = len(self.reached)
        self.found.rests = len(self._outlines)
        self.found.seconds = round(time.monotonic() - began, 1)
        return self.found

    def _follow(self, path: _Path) -> None:
        world = SmallWorld(path, self._new_judge(), ALPHABETS[self.found.alphabet])
        with world.played():
            try:
                world.begin()
                if self._steps(world, path):
                    self._rest(world)
            except (Wrong, WrongError) as error:
                story = world.history[world.history.index(BY_CHOICE) :][:TOLD]
                self.found.wrong.append("\n".join([*story, str(error)]))

    def _steps(self, world: SmallWorld, path: _Path) -> bool:
        """Go to the end; tell whether this path was the first there."""
        left = self.found.depth
        while left:
            before = len(path.taken)
            world.step()
            if len(path.taken) == before:
                continue  # it had to be: a killed service is opened again
            left -= 1
            if path.new:
                self.found.steps += 1
                if not self._enter(fingerprint(world), left):
                    return False
        return True

    def _enter(self, key: bytes, left: int) -> bool:
        if self.reached.get(key, -1) >= left:
            return not self._merge
        self.reached[key] = left
        return True

    def _rest(self, world: SmallWorld) -> None:
        key = outline(world)
        if key not in self._outlines:
            self._outlines.add(key)
            world.come_to_rest()


def enumerate_all(alphabet: str, depth: int) -> Found:
    """Follow every history of this length, up to the first that is wrong."""
    return Enumeration(alphabet, depth).run()


def main(arguments: Sequence[str]) -> int:
    """Return 0 when nothing was wrong, 1 when something was."""
    parser = argparse.ArgumentParser("python -m tests.simulation.small_worlds", description=__doc__)
    parser.add_argument("--depth", type=int, default=16, help="steps of a history (16)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (cores)")
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    parser.add_argument("alphabets", nargs="*", metavar="ALPHABET", help=", ".join(ALPHABETS))
    options = parser.parse_args(arguments)
    wrong = 0
    names = options.alphabets or tuple(ALPHABETS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for found in pool.map(enumerate_all, names, repeat(options.depth)):
            wrong += len(found.wrong)
            print(json.dumps(asdict(found)) if options.json else _told(found), flush=True)
    return 1 if wrong else 0


def _told(found: Found) -> str:
    said = (
        f"{found.alphabet}: {found.histories} histories of {found.depth} steps, "
        f"{found.states} states, {found.rests} brought to rest, "
        f"{found.steps} steps, {found.seconds} s, {len(found.wrong)} wrong"
    )
    return "\n".join([said, *found.wrong])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
