"""Reading as a user that may look and not write, which takes root to arrange."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from log.making import some
from moorage.log.sqlite import SqliteLog

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def state(public: Path) -> Path:
    return public / "state"


def closed_log(state: Path, count: int = 3) -> None:
    with closing(SqliteLog.open(state)) as log:
        log.append(some(count))


def names(state: Path) -> set[str]:
    return {path.name for path in state.iterdir()}


READ_AS_NOBODY = """
import os, sys, tempfile
from moorage.log import reader, revisions
revisions.head()
tempfile.tempdir = sys.argv[2]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with reader.LogReader(sys.argv[1]) as log:
        print([entry.seq for entry in log.read()], log.head, len(os.listdir(sys.argv[2])))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def read_as_nobody(
    public: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> Callable[[Path], str]:
    """Read a state, made readable and not writable for it, as another user."""

    def read(state: Path) -> str:
        scratch = public / "scratch"
        scratch.mkdir(exist_ok=True)
        scratch.chmod(0o777)
        for path in state.iterdir():
            path.chmod(0o644)
        state.chmod(0o755)
        output, _ = start_python(READ_AS_NOBODY, state, scratch).communicate(timeout=30)
        assert list(scratch.iterdir()) == []
        return output.strip()

    return read


def test_a_closed_log_is_read_in_a_folder_that_cannot_be_written(
    state: Path, read_as_nobody: Callable[[Path], str]
) -> None:
    closed_log(state)
    before = names(state)

    assert read_as_nobody(state) == "[1, 2, 3] 3 0"
    assert names(state) == before


def test_a_live_log_is_read_in_a_folder_that_cannot_be_written(
    log: SqliteLog, state: Path, read_as_nobody: Callable[[Path], str]
) -> None:
    log.append(some(3))

    assert read_as_nobody(state) == "[1, 2, 3] 3 0"


@pytest.mark.parametrize(("lost", "copies"), [([], 0), (["moorage.db-shm"], 1)])
def test_a_crashed_log_is_read_in_a_folder_that_cannot_be_written(
    crashed: Path, read_as_nobody: Callable[[Path], str], lost: list[str], copies: int
) -> None:
    """Without its -shm, SQLite cannot do it where it is: then by way of a copy that is removed."""
    for name in lost:
        (crashed / name).unlink()
    before = names(crashed)

    assert read_as_nobody(crashed) == f"[1, 2, 3] 3 {copies}"
    assert names(crashed) == before
