"""The documents say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.cli import parser
from moorage.core.lifecycle import HOLDING, TABLE, Stage
from moorage.gguf import write_tiny

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIFECYCLE = (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8")


def block(text: str, marker: str) -> str:
    """Return the fenced block directly behind a marker."""
    found = re.search(rf"<!-- {marker} -->\n```\w*\n(.*?)```", text, re.DOTALL)
    assert found, f"no block behind <!-- {marker} -->"
    return found[1]


def table_lines() -> Iterator[str]:
    yield "| In stage | the event | leads to |"
    yield "| --- | --- | --- |"
    for (before, kind), after in TABLE.items():
        yield f"| {before or '(no run)'} | `{kind}` | {after} |"


def test_the_printed_lifecycle_is_the_table_in_the_code() -> None:
    printed = [line for line in LIFECYCLE.splitlines() if line.startswith("| ")]

    assert printed == list(table_lines())


def test_the_stages_that_hold_port_and_room_are_printed() -> None:
    said = re.search(r"Port and room are held in: (.*)\.", LIFECYCLE)

    assert said
    assert said[1].split(", ") == [stage for stage in Stage if stage in HOLDING]


@pytest.mark.parametrize("marker", ["demo", "tests"])
def test_each_readme_command_is_one_line(marker: str) -> None:
    assert len(block(README, marker).splitlines()) == 1


@pytest.mark.real
@pytest.mark.timeout(150)  # with the wait for its turn
@pytest.mark.usefixtures("default_ports")
def test_the_readme_example_works(tmp_path: Path) -> None:
    write_tiny(tmp_path / "SmolLM2.gguf", ctx=2048)

    done = subprocess.run(
        [sys.executable, "-c", block(README, "example")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_the_readme_names_every_command() -> None:
    named = re.search(r"COMMAND\n(.*?)\n\n", parser.build().format_help() + "\n\n", re.DOTALL)

    assert named
    for command in re.findall(r"^    (\w+)", named[1], re.MULTILINE):
        assert f"moorage {command}" in README


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), target
