"""A state folder, a log in it, and helpers that run code in another process."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moorage.log.sqlite import SqliteLog

CHILD_LIMIT_S = 30


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def log(state: Path) -> Iterator[SqliteLog]:
    log = SqliteLog.open(state)
    yield log
    log.close()


@pytest.fixture
def foreign(log: SqliteLog) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(log.path, isolation_level=None)
    yield connection
    connection.close()


@pytest.fixture
def start_python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a script with arguments in a new interpreter; ended and reaped after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=CHILD_LIMIT_S)


CRASH = """
import os, signal, sys
from pathlib import Path
from log.making import some
from moorage.log.sqlite import SqliteLog
log = SqliteLog.open(Path(sys.argv[1]))
log.append(some(3))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def crashed(state: Path, start_python: Callable[..., subprocess.Popen[str]]) -> Path:
    """A state whose events are in the -wal only."""
    assert start_python(CRASH, state).wait(30) == -signal.SIGKILL
    main = sqlite3.connect(f"file:{state}/moorage.db?immutable=1", uri=True)
    with closing(main):
        assert main.execute("SELECT * FROM events").fetchall() == []
    return state


@pytest.fixture
def public(start_python: object) -> Iterator[Path]:
    """A folder that other users can get to, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
