"""`docs/sql.md` describes the views as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moorage.log import canned, views
from moorage.log.view import View

TEXT = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")


def described(view: View) -> str:
    lines = [f"## `{view.name}`", "", view.says, "", "| Column | Says |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{c}` | {says} |" for c, says in view.columns.items()), ""])


@pytest.mark.parametrize("view", views.ALL, ids=lambda view: view.name)
def test_each_view_is_described_column_by_column(view: View) -> None:
    assert described(view) in TEXT


def test_no_other_view_is_described() -> None:
    assert re.findall(r"^## `(\w+)`", TEXT, re.MULTILINE) == [view.name for view in views.ALL]


def test_each_statement_at_hand_is_listed() -> None:
    for one in canned.ALL:
        assert f"| `{one.name}` | {one.says} |" in TEXT
