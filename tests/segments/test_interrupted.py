"""Archiving that is killed or fails at any of its steps loses nothing and leaves one live log."""

from __future__ import annotations

import errno
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from moorage.core.fold import replay
from moorage.errors import LogUnavailableError, StateError
from moorage.log import archiving, sqlite
from moorage.log.files import StateFiles
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from moorage.log.verify import flaws
from segments.making import Growing, read

BEFORE = ("made plain", "begun", "identified", "filled", "folder made", "kept")
AFTER = ("replaced", "finished")
COPYING = (*BEFORE[:-1], "copied", "kept", *AFTER)


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    growing = Growing(tmp_path / "state")
    growing.segmented(2, 3)
    return growing


def steps_of(growing: Growing) -> list[str]:
    steps: list[str] = []
    growing.archive(steps.append)
    return steps


def test_these_are_all_steps(growing: Growing) -> None:
    assert steps_of(growing) == [*BEFORE, *AFTER]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
def test_these_are_all_steps_without_links(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", functools.partial(no_links, number))

    assert steps_of(growing) == list(COPYING)
    assert read(growing.folder) == growing.written


def no_links(number: int, *_args: object) -> None:
    raise OSError(number, "no links here")


KILLED = """
import functools, os, signal, sys
from pathlib import Path
from segments.making import Growing, read
from segments.test_interrupted import no_links

growing = Growing(Path(sys.argv[1]))
growing.written = read(growing.folder)
if sys.argv[3] == "copying":
    os.link = functools.partial(no_links, 1)

def reached(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

growing.archive(reached)
"""


@pytest.mark.parametrize(
    ("step", "how"),
    [(step, "linking") for step in (*BEFORE, *AFTER)]
    + [("copied", "copying"), ("kept", "copying")],
)
def test_killed_at_any_step_the_log_is_as_before_or_as_it_is_to_be(
    growing: Growing, step: str, how: str
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(growing.folder), step, how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=30,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL

    whole = read(growing.folder)  # before anybody has cleaned up
    assert whole[: len(growing.written)] == growing.written
    assert len(whole) == len(growing.written) + (step in AFTER)
    with closing(SqliteLog.open(growing.folder)) as log:
        assert (log.segment, log.head) == (3 if step in AFTER else 2, len(whole))
    check_whole(growing.folder, archived=2 if step in AFTER else 1)
    growing.written = whole
    growing.history.seq = len(whole)
    growing.grow(2)
    growing.archive()
    assert read(growing.folder) == growing.written
    check_whole(growing.folder, archived=3 if step in AFTER else 2)


ARCHIVING = """
import sys
from pathlib import Path
from segments.making import Growing, read

growing = Growing(Path(sys.argv[1]))
growing.written = read(growing.folder)
print(flush=True)
while True:
    growing.archive()
    print(len(growing.written), flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_every_acknowledged_entry_is_there_once(
    growing: Growing, seed: int
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ARCHIVING, str(growing.folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    child.stdout.readline()
    killer = threading.Timer(random.Random(seed).uniform(0, 0.3), child.kill)
    killer.start()
    acknowledged = [int(line) for line in child.stdout]
    killer.join()
    child.stdout.close()
    assert child.wait(30) == -signal.SIGKILL

    whole = read(growing.folder)
    SqliteLog.open(growing.folder).close()
    assert read(growing.folder) == whole
    assert whole[: len(growing.written)] == growing.written
    assert len(whole) - max(acknowledged, default=len(growing.written)) in (0, 1)
    archived = 1 + len(whole) - len(growing.written)
    check_whole(growing.folder, archived=archived)


def check_whole(folder: Path, *, archived: int) -> None:
    """Nothing is left of the interruption, and the log is sound from its first row on."""
    names = {path.name for path in folder.iterdir()}
    assert names == {"archive", "moorage.db", "moorage.head", "moorage.lock"}, names
    older = list((folder / "archive").iterdir())
    assert len(older) == archived
    assert all(path.stat().st_nlink == 1 for path in older)
    with LogReader(folder) as reader:
        assert len(reader.chain()) == archived + 1
        assert reader.first == 1
        assert list(flaws(reader, refold=True)) == []


@pytest.mark.parametrize("step", BEFORE)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()])
def test_failing_at_any_step_leaves_the_log_in_use_as_it_was(
    growing: Growing, step: str, error: BaseException
) -> None:
    def reached(now: str) -> None:
        if now == step:
            raise error

    with closing(SqliteLog.open(growing.folder)) as log:
        entry = growing.continuation(log)
        expected = StateError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            log.archive(entry, reached=reached)

        more = list(growing.history.one_run())
        log.append(more)
        growing.written += more
        assert (log.segment, log.head) == (2, len(growing.written))
    check_whole(growing.folder, archived=1)
    assert read(growing.folder) == growing.written
    growing.archive()
    check_whole(growing.folder, archived=2)


@pytest.mark.parametrize("call", ["mkdir", "link", "replace"])
def test_a_refusal_of_the_system_leaves_the_log_in_use_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    growing = Growing(tmp_path / "state")
    growing.grow(2)

    def refused(*_args: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    with closing(SqliteLog.open(growing.folder)) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refused)
            with pytest.raises(StateError, match=r"cannot be archived: .*read-only"):
                log.archive(growing.continuation(log))
        assert (log.segment, log.head) == (1, len(growing.written))
        log.archive(growing.continuation(log))
        assert log.segment == 2


def test_nothing_is_acknowledged_while_the_folder_may_forget_the_new_segment(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsynced(path: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    with closing(SqliteLog.open(growing.folder)) as log:
        entry = growing.continuation(log)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "sync", unsynced)
            log.archive(entry)
            assert log.segment == 3
            growing.history.seq = log.head
            more = list(growing.history.one_run())
            with pytest.raises(LogUnavailableError, match="folder cannot be synced"):
                log.append(more)
            with pytest.raises(LogUnavailableError, match="folder cannot be synced"):
                log.archive(entry.__class__(log.head + 1, entry.at, None, entry.event))
        log.append(more)
    growing.written += [entry, *more]

    assert read(growing.folder) == growing.written
    check_whole(growing.folder, archived=2)


def test_an_older_segment_that_the_live_one_does_not_hold_is_never_removed(
    growing: Growing, tmp_path: Path
) -> None:
    shutil.copytree(growing.folder, tmp_path / "older")
    growing.grow(2)
    place = growing.archive()
    shutil.copy(tmp_path / "older" / "moorage.db", growing.folder)

    SqliteLog.open(growing.folder).close()
    assert place.is_file()
    assert StateFiles(growing.folder).cuts.exists()


def test_what_a_cleaning_cannot_remove_stays_and_keeps_nobody_from_opening(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = StateFiles(growing.folder).part
    part.write_bytes(b"half")

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        SqliteLog.open(growing.folder).close()
    assert "what an archiving left stays" in caplog.text
    SqliteLog.open(growing.folder).close()
    assert not part.exists()


def test_a_file_in_the_way_of_an_older_segment_is_not_written_over(growing: Growing) -> None:
    with closing(SqliteLog.open(growing.folder)) as log:
        entry = growing.continuation(log)
        name = archiving.segments.name(log.first, log.head)
        (growing.folder / "archive" / name).write_bytes(b"mine")
        with pytest.raises(StateError, match=r"cannot be archived: .*File exists"):
            log.archive(entry)
        assert (growing.folder / "archive" / name).read_bytes() == b"mine"
    assert replay(read(growing.folder)) == replay(growing.written)
