"""A disk that is really full, which takes a small one: a tmpfs, which takes root to mount."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from log.making import entries, released, some
from moorage.errors import LogUnavailableError, StateError
from moorage.log.backup import backup
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from support import needed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = "size=1m,mode=0700"
    needed.command("mount", debian="mount")
    command = ["mount", "-t", "tmpfs", "-o", size, "moorage-test", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    if mounted.returncode:
        pytest.skip(f"this user ({os.geteuid()}) may not mount a tmpfs: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True, timeout=10)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return ballast


def test_a_full_disk_refuses_appends_and_frees_without_loss(small_disk: Path) -> None:
    with closing(SqliteLog.open(small_disk / "state")) as log:
        log.append(some(2))
        ballast = fill(small_disk)
        for _ in range(3):
            with pytest.raises(LogUnavailableError):
                log.append(entries([released(9, error="x" * 400_000)], after=2))
        assert [entry.seq for entry in log.read()] == [1, 2]
        with LogReader(log.path) as reader:
            assert reader.head == 2

        ballast.unlink()
        log.append(some(2, after=2))
        assert [entry.seq for entry in log.read()] == [1, 2, 3, 4]
    with closing(SqliteLog.open(small_disk / "state")) as log:
        assert log.head == 4


@pytest.mark.parametrize("shm", [False, True])
def test_what_a_crash_left_on_a_full_disk_is_read(
    small_disk: Path, tmp_path: Path, shm: bool
) -> None:
    left = small_disk / "left"
    left.mkdir()
    with closing(SqliteLog.open(tmp_path / "state")) as log:
        log.append(some(3))
        for name in ("moorage.db", "moorage.db-wal"):
            shutil.copyfile(tmp_path / "state" / name, left / name)
    if shm:  # begun and without a place on the disk
        (left / "moorage.db-shm").touch()
    fill(small_disk)

    with LogReader(left) as reader:
        assert [entry.seq for entry in reader.read()] == [1, 2, 3]


def test_a_new_log_on_a_full_disk_is_refused_and_leaves_nothing(small_disk: Path) -> None:
    state = small_disk / "state"
    state.mkdir(mode=0o700)
    ballast = fill(small_disk)
    with pytest.raises(LogUnavailableError):
        SqliteLog.open(state)
    assert list(state.iterdir()) == []

    ballast.unlink()
    SqliteLog.open(state).close()


def test_a_log_can_be_closed_on_a_full_disk_and_opened_again(small_disk: Path) -> None:
    state = small_disk / "state"
    with closing(SqliteLog.open(state)) as log:
        log.append(some(50))
        ballast = fill(small_disk)
    with closing(SqliteLog.open(state)) as log:
        assert log.head == 50
    ballast.unlink()
    with closing(SqliteLog.open(state)) as log:
        log.append(some(1, after=50))

        assert [entry.seq for entry in log.read()] == list(range(1, 52))


def test_a_backup_to_a_full_disk_names_the_target_and_leaves_nothing(
    small_disk: Path, tmp_path: Path
) -> None:
    target = small_disk / "copy.db"
    with closing(SqliteLog.open(tmp_path / "state")) as log:
        log.append(entries([released(1, error="x" * 400_000)]))
        ballast = fill(small_disk)
        with pytest.raises(StateError, match=r"cannot be written: .*disk is full") as refused:
            backup(tmp_path / "state", target)

        assert refused.value.path == str(target)
        assert [path.name for path in small_disk.iterdir()] == ["ballast"]
        ballast.unlink()
        assert backup(tmp_path / "state", target) == target.stat().st_size
