"""Tests that documents and tables name: are they there?"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def unknown_tests(named: Iterable[str]) -> list[str]:
    """Return those of these that are neither a test file nor `tests/path.py::test_name`."""
    return [name for name in named if not _exists(*name.split("::"))]


def _exists(path: str, *function: str) -> bool:
    if not (ROOT / path).is_file():
        return False
    inherited = tests_of(str(Path(path).with_name("contract.py"))) if len(function) > 1 else ()
    return not function or function[-1].partition("[")[0] in (*tests_of(path), *inherited)


@cache
def tests_of(path: str) -> frozenset[str]:
    """Return the names of the test functions that a file defines, also in classes."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_bytes())
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))
