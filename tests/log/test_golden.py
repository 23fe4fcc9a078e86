"""One database file for each revision there ever was: read as it is, and upgraded."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moorage.core.fold import replay
from moorage.log import migrate, revisions
from moorage.log.files import StateFiles
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from support.history import History

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.db"))
WRITTEN = list(History(seed=3).entries(40, close=None))


def test_there_is_one_for_each_revision() -> None:
    assert [file.stem for file in FILES] == sorted(revisions.KNOWN)


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A state folder with nothing but a database of that revision."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    shutil.copyfile(request.param, StateFiles(state).database)
    assert migrate.current(state)[0] == request.param.stem
    return state


def test_it_is_read_without_an_upgrade(golden: Path) -> None:
    before = StateFiles(golden).database.read_bytes()
    with LogReader(golden) as reader:
        assert list(reader.read()) == WRITTEN

    assert StateFiles(golden).database.read_bytes() == before
    assert [path.name for path in golden.iterdir()] == ["moorage.db"]


def test_a_service_upgrades_it_and_goes_on(golden: Path) -> None:
    more = History(seed=4, seq=WRITTEN[-1].seq).opened()
    with closing(SqliteLog.open(golden)) as log:
        log.append([more])
        state = replay(log.read())

    assert state == replay([*WRITTEN, more])
    assert migrate.current(golden) == (revisions.head(), revisions.head())


def test_an_upgraded_one_has_the_schema_of_a_new_one(golden: Path, tmp_path: Path) -> None:
    migrate.upgrade(golden)
    SqliteLog.open(tmp_path / "new").close()

    assert schema(golden) == schema(tmp_path / "new")


def schema(state: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(StateFiles(state).database)) as database:
        return set(database.execute("SELECT name, sql FROM sqlite_master"))
