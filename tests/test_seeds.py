"""What is random in the suite can be repeated from what a run has told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import seeds

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("quiet", [(), ("-q",), ("-qq",)], ids=str)
def test_every_seed_is_told_in_the_head_of_a_run(quiet: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", *quiet]
    done = subprocess.run(
        [*command, str(Path(__file__).relative_to(ROOT))],
        cwd=ROOT,
        env=os.environ | {"MOORAGE_ORDER_SEED": "7"},
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    told = dict(part.split("=") for part in done.stdout.split() if part.startswith("MOORAGE_"))

    assert told.keys() == {f"MOORAGE_{part}_SEED" for part in seeds.SEEDS}
    assert told["MOORAGE_ORDER_SEED"] == "7"


def test_processes_that_share_a_run_draw_from_what_was_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from support import seeds; print(seeds.TOLD)"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )

    assert done.stdout.strip() == seeds.TOLD


def test_how_to_repeat_each_is_documented() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()

    assert [part for part in seeds.SEEDS if f"MOORAGE_{part}_SEED=N" not in text] == []
