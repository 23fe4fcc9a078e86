"""A log of many runs, and its views."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from moorage.cli import main
from moorage.core.events import Entry
from moorage.log.files import StateFiles
from moorage.log.sqlite import SqliteLog
from support.history import History


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


def write(state: Path, entries: Iterable[Entry]) -> Path:
    """Make a log of these entries; return its database."""
    with closing(SqliteLog.open(state)) as log:
        log.append(list(entries))
    return StateFiles(state).database


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state that is copied instead of written again; nobody changes it."""
    folder = tmp_path_factory.mktemp("written") / "state"
    write(folder, History(seed=1).entries(200, close=None))
    return folder


@pytest.fixture
def state(written: Path, tmp_path: Path) -> Path:
    """The state of a service that was killed after 200 runs."""
    return shutil.copytree(written, tmp_path / "state")


@pytest.fixture
def database(state: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(StateFiles(state).database)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process."""
    monkeypatch.delenv("MOORAGE_STATE", raising=False)

    def run_it(*arguments: object) -> Ran:
        status = main([str(argument) for argument in arguments])
        return Ran(status, *capsys.readouterr())

    return run_it
