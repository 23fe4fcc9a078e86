"""Histories by seed: nothing is wrong in any of them, and one that was could be told in short."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulation.choices import Recorded
from simulation.judge import Judge, Wrong
from simulation.playing import Played, play_seed, replay
from simulation.scheduler import Process, Scheduler
from simulation.shrink import shrink
from simulation.sight import Sight
from support import seeds

ROOT = Path(__file__).parents[2]
STEPS = 400
FIXED = [range(first, first + 30) for first in range(0, 120, 30)]
RANDOM_S = 5.0
"""As many random seeds as can be played in so long."""
SHRINK_S = 3.0
"""A tenth of it is enough; it takes all of it."""
LIMIT_S = 60.0


def digest(log: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(log).encode()).hexdigest()


def play(seed: int) -> None:
    played = play_seed(seed, STEPS)
    again = f"python -m tests.simulation --seed {seed} --steps {STEPS} --shrink"
    assert not played.wrong, f"{again}\n{played.wrong}"


@pytest.mark.parametrize("seeds", FIXED, ids=str)
def test_nothing_is_wrong_in_the_histories_of_fixed_seeds(seeds: range) -> None:
    for seed in seeds:
        play(seed)


def test_nothing_is_wrong_in_the_histories_of_random_seeds() -> None:
    first = seeds.seed("SIMULATION")
    end = time.monotonic() + RANDOM_S
    played = 0
    while time.monotonic() < end:
        play(first + played)
        played += 1
    print(f"{played} seeds")

    assert played


def test_a_seed_gives_the_same_log_again_to_the_byte() -> None:
    for seed in (3, 17, 2026):
        first, second = (play_seed(seed, STEPS, told=True) for _ in range(2))

        assert len(first.log) > 20
        assert first.log == second.log
        assert first.story == second.story


SAME = """
import sys
sys.path.insert(0, "tests")
from simulation.playing import play_seed
from simulation.test_simulation import STEPS, digest
print([digest(play_seed(seed, STEPS, told=True).log) for seed in (5, 6)])
"""


def test_a_seed_gives_the_same_log_in_a_process_that_hashes_otherwise() -> None:
    def said(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", SAME]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=LIMIT_S
        ).stdout.decode()

    assert said("1") == said("2")


class NoEvictions(Judge):
    """Takes every eviction for room for wrong, as if the service had that fault."""

    def look(self, sight: Sight) -> None:
        super().look(sight)
        evicted = (row for row in sight.rows if row.kind == "run.evicting")
        if any(row.data["reason"] == "room" for row in evicted):
            raise Wrong(["somebody was evicted"], sight.step, sight.what)


def loud(played: Played) -> int:
    """Return how many choices were not the quietest."""
    return sum(1 for step in played.record for value in step if value)


def failing() -> int:
    """Return a seed whose history has an eviction, late enough to have something to leave out."""
    for seed in range(100):
        played = play_seed(seed, STEPS, new_judge=NoEvictions)
        if played.wrong and 150 < played.tally.steps < STEPS:
            return seed
    raise AssertionError("no seed evicts anybody")


def test_a_fault_is_found_repeated_from_its_record_and_told_in_short() -> None:
    found = play_seed(failing(), STEPS, new_judge=NoEvictions)
    again = replay(found.plan, found.record, new_judge=NoEvictions)
    short = shrink(found, SHRINK_S, new_judge=NoEvictions)
    repeated = replay(short.plan, short.record, told=True, new_judge=NoEvictions)

    assert "somebody was evicted" in found.wrong
    assert again.wrong == found.wrong
    assert again.tally == found.tally
    assert short.tally.steps < found.tally.steps
    assert loud(short) < loud(found) / 3
    assert "run.evicting" in short.story[-1]
    assert (repeated.wrong, repeated.story) == (short.wrong, short.story)


def test_a_task_that_is_killed_runs_no_further_and_lets_others_go_on() -> None:
    scheduler = Scheduler(Recorded(()))
    killed, other = Process(1), Process(2)
    seen: list[str] = []

    def work(name: str) -> None:
        seen.append(f"{name} begins")
        scheduler.sleep(1.0)
        seen.append(f"{name} ends")

    scheduler.spawn("a", lambda: work("a"), killed)
    scheduler.spawn("b", lambda: work("b"), other)
    scheduler.run(0)
    scheduler.run(0)
    scheduler.kill(killed)
    scheduler.pass_time(2.0)
    scheduler.run(0)

    assert seen == ["a begins", "b begins", "b ends"]
    assert scheduler.ready == []


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_command_says_what_it_played(jobs: str) -> None:
    options = ["--start", "7", "--seeds", "2", "--steps", "60", "--jobs", jobs, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=ROOT,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr.decode()
    assert (said["seeds"], said["failed"]) == (2, [])
    assert said["steps"] > 120
