"""Logs to ask, and the command line that asks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moorage.cli import main
from moorage.core.events import Entry
from moorage.log.sqlite import SqliteLog
from offline.acting import Acting


@dataclass(frozen=True)
class Answer:
    """What one command came to."""

    status: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [found for found in self.objects if found["object"] == kind]


Ask = Callable[..., Answer]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run one command and return its answer."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Answer(status, captured.out, captured.err)

    return run


def written(state: Path, entries: Iterable[Entry]) -> Path:
    """Write entries as the log of a state folder."""
    log = SqliteLog.open(state, synchronous="NORMAL")
    log.append(list(entries))
    log.close()
    return state


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def acting() -> Acting:
    made = Acting()
    made.define("a", "b", "c")
    return made
