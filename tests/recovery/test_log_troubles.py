"""What a running service does while its log cannot be written, and what it does afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moorage import LogUnavailableError, ModelService, StateError
from moorage.actors import deadlines
from moorage.core.events import Entry
from moorage.log import writer
from moorage.log.reader import LogReader
from recovery.leaving import alive, events_of, left_behind, serves
from recovery.owner import answered_by
from support import needed
from support.services import Seen, check_log, server, settle, state_of


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the disk and beside the database as often as a test needs it."""
    monkeypatch.setattr(deadlines, "DISK_RETRY_S", 0.02)
    monkeypatch.setattr(writer, "_LOOK_BESIDE_S", 0.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    needed.command("mount", debian="mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "moorage-test", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    if mounted.returncode:
        pytest.skip(f"this user ({os.geteuid()}) may not mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=10)


def database_of(service: ModelService) -> sqlite3.Connection:
    return service._runtime.log._writer.database()


def work_in(service: ModelService, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Hold a service to what it promises before, during and after a trouble with its log.

    Ready models are lent and served, stops and exits work, new loads are refused, nothing is
    told to subscribers or readers that is not in the log, and all of it is there afterwards.
    """
    service.define(server("a", "--name", "a"), server("b"), server("c"), server("d"))
    for name in "abc":
        service.start(name)
    pids = {name: service.model(name).pid for name in "abc"}
    seen = Seen(service)
    begin()
    head = service.status().seq
    with pytest.raises(LogUnavailableError):
        service.lease("d", 5)
    with pytest.raises(LogUnavailableError):
        service.define(server("e"))
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"
    service.stop("b")
    os.kill(pids["c"] or 0, signal.SIGKILL)
    settle(lambda: service.model("c").run is None)

    assert not alive(pids["b"])
    status = service.status()
    assert status.log_problem
    assert status.unwritten > 0
    assert [m.name for m in status.models if m.run] == ["a"]
    assert not [entry for entry in seen.entries if entry.seq > head]
    end()
    settle(lambda: not service.status().log_problem)
    assert service.status().unwritten == 0
    seen.wait("run.released", model="b")
    seen.wait("run.released", model="c")
    with service.lease("d") as lease, service.lease("a"):
        assert service.model("a").pid == pids["a"]


def finish(service: ModelService, folder: Path) -> None:
    service.close()
    check_log(folder, state_of(service))
    outcomes = {e.model: e.outcome for e in events_of(folder, "run.released")}
    assert outcomes == {"a": "ok", "b": "ok", "c": "failed: exit", "d": "ok"}


def test_a_disk_that_fills_and_frees_again(disk: Path, pool: range) -> None:
    ballast = disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass

    service = ModelService.open(disk / "state", ports=pool, max_loaded=4)
    try:
        work_in(service, fill, ballast.unlink)
    finally:
        service.close(drain_s=0)
    finish(service, disk / "state")


def use_up(service: ModelService) -> None:
    for _ in range(200):
        service.pin("a")
        service.unpin("a")


def test_a_database_that_may_not_grow_as_on_a_full_disk(
    reopen: Callable[..., ModelService], folder: Path
) -> None:
    service = reopen()

    def fill() -> None:
        """Allow no further page, then use up what is left of the last ones."""
        database_of(service).execute("PRAGMA max_page_count = 1").close()
        with pytest.raises(LogUnavailableError, match="full"):
            use_up(service)

    def free() -> None:
        database_of(service).execute("PRAGMA max_page_count = 1000000").close()

    work_in(service, fill, free)
    finish(service, folder)


def test_a_file_that_turns_read_only(reopen: Callable[..., ModelService], folder: Path) -> None:
    service = reopen()
    work_in(
        service,
        lambda: database_of(service).execute("PRAGMA query_only = ON").close(),
        lambda: database_of(service).execute("PRAGMA query_only = OFF").close(),
    )
    finish(service, folder)


def test_a_foreign_lock_on_the_database(reopen: Callable[..., ModelService], folder: Path) -> None:
    service = reopen()
    with closing(
        sqlite3.connect(folder / "moorage.db", isolation_level=None, check_same_thread=False)
    ) as foreign:
        work_in(
            service,
            lambda: foreign.execute("BEGIN IMMEDIATE").close(),
            lambda: foreign.execute("ROLLBACK").close(),
        )
    finish(service, folder)


def test_a_database_moved_away_and_back(
    reopen: Callable[..., ModelService], folder: Path, tmp_path: Path
) -> None:
    service, path = reopen(), folder / "moorage.db"
    work_in(
        service,
        lambda: path.rename(tmp_path / "away") and None,
        lambda: (tmp_path / "away").rename(path) and None,
    )
    finish(service, folder)


def test_a_deleted_database_stays_refused_and_the_servers_are_stopped_at_close(
    reopen: Callable[..., ModelService], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no log to go on with: it says so until it is closed, and claims nothing."""
    service = reopen()
    service.define(server("a", "--name", "a"), server("b"))
    pid = service.start("a").pid
    (folder / "moorage.db").unlink()
    with pytest.raises(LogUnavailableError, match="deleted"):
        service.lease("b", 5)
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"
    with pytest.raises(StateError):
        list(service.events())
    service.close()

    assert not alive(pid)
    assert not (folder / "moorage.db").exists()
    assert "that could not be written" in caplog.text


@pytest.mark.parametrize("lost", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids="".join)
def test_a_deleted_wal_or_shm_costs_nothing(
    reopen: Callable[..., ModelService], folder: Path, lost: list[str]
) -> None:
    service = reopen()
    service.define(server("a", "--name", "a"), server("b"))
    service.start("a")
    for suffix in lost:
        (folder / f"moorage.db{suffix}").unlink()
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"
    service.start("b")

    with LogReader(folder) as reader:
        assert reader.head == state_of(service).seq
    service.close()
    check_log(folder, state_of(service))


def test_a_torn_or_damaged_wal_is_read_up_to_its_last_whole_commit(
    folder: Path, pool: range, tmp_path: Path
) -> None:
    left_behind(
        folder,
        pool,
        """
        service = open_()
        service.define(server("a"), server("b"))
        service.start("a")
        service.start("b")
        """,
    )
    wal = (folder / "moorage.db-wal").read_bytes()
    with LogReader(folder) as reader:
        whole = list(reader.read())
    heads: set[int] = set()
    for cut in range(len(wal) - 1, 0, -len(wal) // 12):
        damaged = wal[:cut] + bytes([wal[cut] ^ 0xFF]) + wal[cut + 1 :]
        for content in (wal[:cut], damaged):
            torn = tmp_path / f"torn-{cut}-{len(content)}"
            torn.mkdir(mode=0o700)
            for name in ("moorage.db", "moorage.head", "moorage.key"):
                (torn / name).write_bytes((folder / name).read_bytes())
            (torn / "moorage.db-wal").write_bytes(content)
            heads.add(opens_as_a_beginning(torn, pool, whole))

    assert len(heads) > 3


def opens_as_a_beginning(torn: Path, pool: range, whole: list[Entry]) -> int:
    """Open a log whose end is gone; return how many entries of it were left."""
    with ModelService.open(torn, ports=pool, max_loaded=4) as service:
        entries = list(service.events())
        left = sum(mine == before for mine, before in zip(entries, whole, strict=False))
        assert entries[:left] == whole[:left]
        assert entries[left].event.kind == ("service.opened" if left else "log.created")
        settle(lambda: all(serves(service, r.model)() for r in state_of(service).runs.values()))
    check_log(torn)
    return left


READY = """
service = open_(max_loaded=4)
service.define(server("a", "--name", "a"), server("b", "--name", "b"))
for name in "ab":
    print(service.start(name).pid)
"""


def test_what_waited_for_a_disk_when_the_owner_was_killed_is_found_out_from_the_world(
    reopen: Callable[..., ModelService], folder: Path, pool: range
) -> None:
    script = f"""{READY}
service._runtime.log._writer.database().execute("PRAGMA query_only = ON")
service.stop("b")
"""
    pids = [int(pid) for pid in left_behind(folder, pool, script).split()]
    service = reopen()
    with service.lease("a"), service.lease("b") as lease:
        assert answered_by(lease.port) == "b"
        assert service.model("a").pid == pids[0]

    assert not alive(pids[1])
    assert [e.outcome for e in events_of(folder, "run.released", model="b")] == ["lost"]


def test_a_log_that_lost_its_first_wal_keeps_its_id_and_finds_its_servers(
    reopen: Callable[..., ModelService], folder: Path, pool: range
) -> None:
    pids = [int(pid) for pid in left_behind(folder, pool, READY).split()]
    with LogReader(folder) as reader:
        log_id = reader.log_id
    for suffix in ("-wal", "-shm"):
        (folder / f"moorage.db{suffix}").unlink()
    service = reopen()
    settle(lambda: not any(map(alive, pids)))
    settle(lambda: len(events_of(folder, "process.reaped")) == 2)

    assert state_of(service).log_id == log_id
    assert "cut-log" in [finding.kind for finding in service.audit()]


def test_an_open_on_a_full_disk_is_refused_and_leaves_the_servers(disk: Path, pool: range) -> None:
    folder, ballast = disk / "state", disk / "ballast"
    pids = [int(pid) for pid in left_behind(folder, pool, READY).split()]
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(LogUnavailableError):
        ModelService.open(folder, ports=pool)
    assert all(map(alive, pids))

    ballast.unlink()
    with ModelService.open(folder, ports=pool, max_loaded=4) as service:
        for name, pid in zip("ab", pids, strict=True):
            with service.lease(name) as lease:
                assert answered_by(lease.port) == name
                assert service.model(name).pid == pid
