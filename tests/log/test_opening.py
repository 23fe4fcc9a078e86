from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from log.making import some
from moorage.errors import NewerSchemaError, NotALogError, StateError
from moorage.log import migrate, revisions
from moorage.log.files import StateFiles
from moorage.log.sqlite import SqliteLog

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
NOBODY = 65_534


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refusal(state: Path, kind: type[StateError] = StateError) -> StateError:
    """Open, be refused, and leave everything as it was."""
    before = tree(state.parent)
    with pytest.raises(kind) as caught:
        SqliteLog.open(state)

    assert tree(state.parent) == before
    return caught.value


def test_the_folder_and_what_is_in_it_are_for_their_user_only(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    with closing(SqliteLog.open(state)) as log:
        log.append(some(1))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}

    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}


def test_each_new_log_has_another_id(tmp_path: Path) -> None:
    ids = set()
    for name in "abc":
        with closing(SqliteLog.open(tmp_path / name)) as log:
            ids.add(log.log_id)

    assert len(ids) == 3


@pytest.mark.parametrize("name", ["st?te", "st#te", "st%20te", "st te", "sté", "file:x?mode=ro"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    with closing(SqliteLog.open(tmp_path / name)) as log:
        log.append(some(1))

    assert (tmp_path / name / "moorage.db").is_file()


def test_a_relative_state_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SqliteLog.open(Path("state"))) as log:
        monkeypatch.chdir("/")
        log.append(some(1))

    assert (tmp_path / "state" / "moorage.db").is_file()


def test_a_state_that_is_a_file_is_refused(state: Path) -> None:
    state.write_text("mine")

    assert "is a file" in str(refusal(state))


def test_a_state_below_a_file_is_refused(state: Path) -> None:
    state.write_text("mine")

    assert "no usable state folder" in str(refusal(state / "a" / "b"))


def test_a_file_that_is_no_database_is_refused(state: Path) -> None:
    state.mkdir()
    StateFiles(state).database.write_text("mine, and long enough to be looked at" * 100)

    assert "is no database" in str(refusal(state, NotALogError))


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_database_of_another_program_is_refused(state: Path, mode: str) -> None:
    state.mkdir()
    with closing(sqlite3.connect(StateFiles(state).database)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("CREATE TABLE mine (x)")
        database.commit()

    assert "another program" in str(refusal(state, NotALogError))


def test_a_database_that_is_a_folder_is_refused(state: Path) -> None:
    StateFiles(state).database.mkdir(parents=True)

    assert "is no file" in str(refusal(state))


def test_a_lock_file_that_is_a_folder_is_refused(state: Path) -> None:
    StateFiles(state).lock.mkdir(parents=True)

    assert "cannot lock" in str(refusal(state))


def test_a_head_file_that_is_a_folder_is_refused(state: Path) -> None:
    StateFiles(state).head.mkdir(parents=True)

    assert "cannot be used" in str(refusal(state))


def test_a_newer_schema_is_refused_and_kept(state: Path) -> None:
    SqliteLog.open(state).close()
    with closing(sqlite3.connect(StateFiles(state).database)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()

    error = refusal(state, NewerSchemaError)
    assert "9999" in str(error)
    assert migrate.current(state) == ("9999", revisions.head())
    with pytest.raises(NewerSchemaError):
        migrate.upgrade(state)


def test_a_damaged_database_is_refused(state: Path) -> None:
    with closing(SqliteLog.open(state)) as log:
        log.append(some(1000))
    database = StateFiles(state).database
    content = database.read_bytes()
    database.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))

    assert "damaged" in str(refusal(state))


def test_an_empty_database_file_becomes_a_log(state: Path) -> None:
    state.mkdir()
    StateFiles(state).database.touch()
    with closing(SqliteLog.open(state)) as log:
        log.append(some(1))

        assert log.head == 1


@AS_ROOT
def test_a_folder_of_another_user_is_refused(state: Path) -> None:
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)

    assert "belongs to user 65534" in str(refusal(state))


@AS_ROOT
def test_a_database_of_another_user_is_refused(state: Path) -> None:
    SqliteLog.open(state).close()
    os.chown(StateFiles(state).database, NOBODY, NOBODY)

    assert "belongs to user 65534" in str(refusal(state))


OPEN_AS_NOBODY = """
import os, sys
from pathlib import Path
from moorage.log import revisions, sqlite
from moorage.errors import StateError
revisions.head()  # what Python has still to read may be closed to that user
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    sqlite.SqliteLog.open(Path(sys.argv[1])).close()
except StateError as error:
    print("refused:", error)
"""


@AS_ROOT
@pytest.mark.parametrize("mode", [0o000, 0o500, 0o300])
def test_a_folder_this_user_may_not_use_is_refused(
    public: Path, mode: int, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    state = public / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    state.chmod(mode)
    output, _ = start_python(OPEN_AS_NOBODY, state).communicate(timeout=30)

    assert output.startswith("refused:")
    assert list(state.iterdir()) == []


def test_opening_and_upgrading_again_changes_nothing(state: Path) -> None:
    with closing(SqliteLog.open(state)) as log:
        log.append(some(3))
    before = tree(state)
    for _ in range(2):
        assert migrate.upgrade(state) == revisions.head()
        SqliteLog.open(state).close()

    assert tree(state) == before
    assert migrate.current(state) == (revisions.head(), revisions.head())


@pytest.mark.parametrize("act", [migrate.upgrade, migrate.current])
def test_the_schema_of_no_log_cannot_be_told_or_upgraded(
    state: Path, act: Callable[[Path], object]
) -> None:
    with pytest.raises(StateError, match="holds no event log"):
        act(state)

    assert not state.exists()


def test_an_upgrade_that_is_killed_in_between_leaves_an_empty_database(
    state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of an upgrade is one transaction: a database without the log's row never shows."""
    scripts = tmp_path / "scripts"
    shutil.copytree(Path(__file__).parents[2] / "migrations", scripts)
    script = scripts / "versions" / "0001_event_log.py"
    script.write_text(script.read_text().replace("    identify()", "    raise OSError('killed')"))
    with monkeypatch.context() as patch:
        patch.setattr("moorage.log.revisions._scripts", lambda: scripts)
        with pytest.raises(StateError, match="killed"):
            SqliteLog.open(state)

    assert not state.exists()
    SqliteLog.open(state).close()
    assert migrate.current(state) == (revisions.head(), revisions.head())
