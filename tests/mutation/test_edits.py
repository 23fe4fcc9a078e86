"""Every wrong edit still fits the code, is a program, and names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mutation.check import ROOT
from mutation.edit import Change, Edit, RottenEditError, edits
from support.named import unknown_tests

EDITS = edits()
TESTING = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_fits_the_code_once_and_gives_another_program(edit: Edit) -> None:
    for path, text in edit.texts(ROOT).items():
        before = ast.dump(ast.parse(path.read_bytes()))

        assert ast.dump(ast.parse(text)) != before


def test_what_finds_an_edit_is_there() -> None:
    assert unknown_tests(test for edit in EDITS for test in edit.tests) == []


def test_the_page_on_testing_lists_every_edit_with_what_finds_it() -> None:
    rows = re.findall(r"^\| (.+) \| `(tests/.+)` \| .+ \|$", TESTING, re.MULTILINE)

    assert [name for name, _ in rows] == [edit.name for edit in EDITS]
    assert unknown_tests(test for _, test in rows) == []


def test_no_two_edits_have_one_name() -> None:
    assert len({edit.name for edit in EDITS}) == len(EDITS)


@pytest.mark.parametrize("text", ["a = 1\n", "b = 2\nb = 2\n"])
def test_an_edit_that_does_not_fit_any_more_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "service" / "moorage" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    edit = Edit(name="x", changes=(Change("x.py", "b = 2", "b = 3"),), tests=())

    with pytest.raises(RottenEditError), edit.made(tmp_path):
        pass
    assert file.read_text() == text


def test_an_edit_is_undone(tmp_path: Path) -> None:
    file = tmp_path / "service" / "moorage" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\nb = 2\n")
    changes = (Change("x.py", "a = 1", "a = 2"), Change("x.py", "b = 2", "b = 3"))
    with Edit(name="x", changes=changes, tests=()).made(tmp_path):
        edited = file.read_text()

    assert edited == "a = 2\nb = 3\n"
    assert file.read_text() == "a = 1\nb = 2\n"
