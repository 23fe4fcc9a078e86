"""The command: many seeds on all cores, what they found, and one of them in short."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice

from simulation.engine import Tally
from simulation.playing import LAST, Played, play_seed
from simulation.shrink import shrink

SHRINK_S = 60.0
AHEAD = 3
"""Seeds given to each process before it asks for more."""


@dataclass(slots=True)
class Sum:
    """What all seeds came to."""

    tally: Tally = field(default_factory=Tally)
    failed: list[Played] = field(default_factory=list[Played])
    seeds: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, played: Played) -> None:
        self.seeds += 1
        self.tally.add(played.tally)
        if played.wrong:
            self.failed.append(played)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def to_data(self) -> dict[str, object]:
        """Return JSON-ready data."""
        return {
            "seeds": self.seeds,
            "failed": [played.plan.seed for played in self.failed],
            "steps": self.tally.steps,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(self.tally.steps / self.seconds),
            "counts": dict(sorted(self.tally.counts.items())),
            "faults": dict(sorted(self.tally.faults.items())),
        }


def main(arguments: Sequence[str]) -> int:
    """Return 0 when nothing was wrong, 1 when something was."""
    options = _parse(arguments)
    if options.seed is not None:
        total = Sum()
        total.add(play_seed(options.seed, options.steps))
    else:
        seeds: Iterator[int] = count(options.start)
        if options.minutes is None:
            seeds = islice(seeds, options.seeds)
        total = _play_all(seeds, options)
    _tell(total, options)
    return 1 if total.failed else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (100)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--steps", type=int, default=1000, help="of each, before its rest (1000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (cores)")
    parser.add_argument("--minutes", type=float, help="go on so long, in place of --seeds")
    parser.add_argument("--shrink", action="store_true", help="make the first failure short")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def _play_all(seeds: Iterator[int], options: argparse.Namespace) -> Sum:
    total = Sum()
    until = None if options.minutes is None else total.began + 60.0 * options.minutes

    def more() -> bool:
        return until is None or time.monotonic() < until

    if options.jobs == 1:
        for seed in seeds:
            _take(play_seed(seed, options.steps), total, options)
            if not more():
                break
        return total
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        play = partial(pool.submit, play_seed, steps=options.steps)
        running = {play(seed) for seed in islice(seeds, AHEAD * options.jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                _take(future.result(), total, options)
                if more():
                    running |= {play(seed) for seed in islice(seeds, 1)}
    return total


def _take(played: Played, total: Sum, options: argparse.Namespace) -> None:
    total.add(played)
    if played.wrong and not options.json:
        print(f"\nseed {played.plan.seed}: {played.wrong}", flush=True)
    if sys.stderr.isatty():
        rate = total.tally.steps / total.seconds
        line = f"{total.seeds} seeds, {total.tally.steps} steps, {rate:.0f} a second"
        print(f"\r{line}, {len(total.failed)} failed ", end="", file=sys.stderr, flush=True)


def _tell(total: Sum, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(total.to_data()))
    else:
        for name, value in total.to_data().items():
            print(f"{name}: {_words(value)}")
    if not total.failed or not (options.shrink or options.seed is not None):
        return
    first = min(total.failed, key=lambda played: played.tally.steps)
    if options.shrink:
        short = shrink(first, SHRINK_S)
    else:
        short = play_seed(first.plan.seed, first.plan.steps, told=True)
        short.story = short.story[-LAST:]
    print("\n".join(short.story if len(short.story) <= LAST else _loud(short.story)))
    print(f"seed {short.plan.seed}: {short.wrong}\n{_again(first)}")


def _loud(story: Sequence[str]) -> Iterator[str]:
    """Leave out the steps of which nobody was told anything."""
    return (step for step in story if "\n" in step or ": " in step)


def _again(played: Played) -> str:
    plan = played.plan
    return f"again: python -m tests.simulation --seed {plan.seed} --steps {plan.steps} --shrink"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items())
    return str(value)
