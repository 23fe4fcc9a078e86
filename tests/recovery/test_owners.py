"""One state, several who want to own it, and a log that was set back."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from moorage import ModelService, StateInUseError
from recovery.leaving import alive, events_of, left_behind, serves
from recovery.owner import answered_by
from support.services import Outcome, check_log, server, settle, state_of

Reopen = Callable[..., ModelService]


@pytest.fixture
def owned(reopen: Reopen) -> ModelService:
    """A service that owns the folder and serves a model."""
    service = reopen()
    service.define(server("a", "--name", "a"))
    service.start("a")
    return service


def refused(folder: Path, pool: range) -> str:
    """Return what one that comes second is told."""
    with pytest.raises(StateInUseError) as told:
        ModelService.open(folder, ports=pool)
    return str(told.value)


def test_a_second_service_in_the_same_process_is_told_who_is_first(
    owned: ModelService, folder: Path, pool: range
) -> None:
    told = refused(folder, pool)

    assert f"process {os.getpid()}" in told
    with owned.lease("a") as lease:
        assert answered_by(lease.port) == "a"


@pytest.mark.parametrize("way", ["symlink", "hard way", "relative"])
def test_another_path_to_the_same_state_is_the_same_state(
    owned: ModelService, folder: Path, pool: range, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {
        "symlink": folder.with_name("link"),
        "hard way": folder / ".." / folder.name,
        "relative": Path(folder.name),
    }
    if way == "symlink":
        paths[way].symlink_to(folder)
    monkeypatch.chdir(folder.parent)

    assert f"process {os.getpid()}" in refused(paths[way], pool)
    assert owned.status().open


def test_a_copy_of_the_folder_is_refused_and_takes_no_server(
    owned: ModelService, folder: Path, pool: range
) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.lock"))
    pid = owned.model("a").pid
    told = refused(copy, pool)

    assert f"process {os.getpid()}" in told
    assert "another copy" in told
    assert alive(pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hard links and locks of Linux")
def test_another_folder_with_a_link_to_the_same_database_is_refused(
    owned: ModelService, folder: Path, pool: range
) -> None:
    other = folder.with_name("other")
    other.mkdir(mode=0o700)
    for name in ("moorage.db", "moorage.key"):
        (other / name).hardlink_to(folder / name)

    assert f"process {os.getpid()}" in refused(other, pool)
    owned.pin("a")
    assert not owned.status().log_problem


def test_of_many_services_opened_at_once_one_wins(folder: Path, pool: range) -> None:
    start = threading.Barrier(4)

    def contend() -> ModelService | None:
        start.wait()
        try:
            return ModelService.open(folder, ports=pool)
        except StateInUseError:
            return None

    services = [outcome.get() for outcome in [Outcome(contend) for _ in range(4)]]
    winners = [service for service in services if service is not None]
    for service in winners:
        service.close()

    assert len(winners) == 1


def test_one_that_waits_gets_the_state_and_the_servers_that_were_kept(
    owned: ModelService, folder: Path, pool: range
) -> None:
    pid = owned.model("a").pid
    waiting = Outcome(lambda: ModelService.open(folder, ports=pool, wait_s=20))
    owned.close("keep")
    with waiting.get() as service, service.lease("a") as lease:
        assert service.model("a").pid == pid
        assert answered_by(lease.port) == "a"


def test_a_host_that_forked_and_was_killed_keeps_no_lock(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    said = left_behind(
        folder,
        pool,
        """
        service = open_()
        service.define(server("a", "--name", "a"))
        pid = service.start("a").pid
        child = os.fork()
        if child == 0:
            os.close(1)
            signal.alarm(60)
            signal.pause()
        print(pid, child, flush=True)
        """,
    )
    pid, child = map(int, said.split())
    try:
        service = reopen()
        with service.lease("a") as lease:
            assert answered_by(lease.port) == "a"
            assert service.model("a").pid == pid
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


# --- a log that was set back to an older copy ---

SET_BACK = """
import shutil, sqlite3
def copy():
    source = sqlite3.connect(folder / "moorage.db")
    target = sqlite3.connect(folder.parent / "older.db")
    source.backup(target)
    source.close(), target.close()
service = open_(max_loaded=4)
service.define(server("a", "--name", "a"), server("b", "--name", "b"))
print(service.start("a").pid)
copy()
print(service.start("b").pid)
service.stop("a")
service.define(server("c", "--name", "c", "--detached"))
print(service.start("c").pid)
print(service.start("a").pid)
"""


@pytest.fixture
def set_back(folder: Path, pool: range) -> list[int]:
    """A killed owner's state whose log is replaced by a copy made before most of its runs.

    Returns the pids of a's first run, which has ended, of b, of c and of a's second run.
    """
    pids = [int(pid) for pid in left_behind(folder, pool, SET_BACK).split()]
    for suffix in ("", "-wal", "-shm"):
        (folder / f"moorage.db{suffix}").unlink()
    shutil.copyfile(folder.parent / "older.db", folder / "moorage.db")
    return pids


def test_a_log_that_was_set_back_reaps_what_it_does_not_know_and_adopts_nothing_of_it(
    reopen: Reopen, folder: Path, set_back: list[int]
) -> None:
    assert [alive(pid) for pid in set_back] == [False, True, True, True]
    service = reopen()
    settle(lambda: not any(map(alive, set_back)))
    settle(lambda: len(events_of(folder, "process.reaped")) >= 3)
    settle(lambda: not state_of(service).runs)

    assert not events_of(folder, "run.adopted")
    assert [e.outcome for e in events_of(folder, "run.released")] == ["lost"]
    for name in "ab":
        with service.lease(name) as lease:
            assert answered_by(lease.port) == name
    assert {m.name for m in service.status().models} == {"a", "b"}
    service.close()
    check_log(folder)


def test_a_log_that_was_set_back_says_so(
    reopen: Reopen, folder: Path, set_back: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    service = reopen()

    assert "replaced by an older copy" in caplog.text
    assert [f.kind for f in service.audit() if f.kind == "cut-log"] == ["cut-log"]
    settle(lambda: not any(map(alive, set_back)))


def test_a_set_back_log_goes_on_with_a_survivor_that_it_knows(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    said = left_behind(folder, pool, SET_BACK.replace('service.stop("a")', ""))
    pids = [int(pid) for pid in said.split()]
    with closing(sqlite3.connect(folder.parent / "older.db")) as older:
        (known,) = older.execute("SELECT max(run) FROM events").fetchone()
    for suffix in ("", "-wal", "-shm"):
        (folder / f"moorage.db{suffix}").unlink()
    shutil.copyfile(folder.parent / "older.db", folder / "moorage.db")
    service = reopen()
    settle(serves(service, "a"))
    settle(lambda: not alive(pids[1]) and not alive(pids[2]))

    assert known == 1
    assert service.model("a").pid == pids[0]
    with service.lease("a") as lease, service.lease("b"):
        assert answered_by(lease.port) == "a"
