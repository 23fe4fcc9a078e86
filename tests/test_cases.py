"""Every kind of fault in docs/cases.md is shown by tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.named import unknown_tests

CASES = (Path(__file__).parents[1] / "docs" / "cases.md").read_text(encoding="utf-8")
KINDS = 45
"""None is lost by accident; more are welcome."""


def rows() -> list[tuple[str, ...]]:
    """Return the cells of every row but the heads."""
    lines = [line for line in CASES.splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [row for row in cells if row[0] not in ("Elsewhere", "---")]


def named(row: tuple[str, ...]) -> list[str]:
    return re.findall(r"`(tests/[^`]+)`", row[-1])


def test_no_kind_of_fault_is_lost() -> None:
    assert len(rows()) >= KINDS
    assert len({row[0] for row in rows()}) == len(rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_a_kind_of_fault_is_shown_by_tests_that_are_there(row: tuple[str, ...]) -> None:
    assert len(row) == 3
    assert named(row)
    assert all("::" in test for test in named(row))
    assert unknown_tests(named(row)) == []
