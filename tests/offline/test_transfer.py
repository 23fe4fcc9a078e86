"""Export, import and backup: the same log elsewhere, or none."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moorage import ModelService
from moorage.core.events import Entry, PortBlocked
from moorage.errors import StateError
from moorage.log import transfer
from moorage.log.backup import backup
from moorage.log.reader import LogReader
from moorage.log.transfer import imported
from offline.acting import Acting
from offline.conftest import Ask, written
from support.history import History


def rows(state: Path) -> list[object]:
    with LogReader(state) as reader:
        return [reader.log_id, *reader.rows()]


@pytest.fixture
def export(state: Path, ask: Ask) -> str:
    written(state, list(History(seed=6).entries(6))[:60])
    return ask("export", "--state", state).out


def test_a_log_comes_back_row_for_row(tmp_path: Path, state: Path, export: str, ask: Ask) -> None:
    (tmp_path / "log.jsonl").write_text(export)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 0
    assert "60 events" in answer.out
    assert rows(back) == rows(state)
    assert ask("verify", "--state", back).status == 0
    assert ask("export", "--state", back).out == export


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_rows_that_come_in_several_batches_are_all_there(
    tmp_path: Path,
    state: Path,
    export: str,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    *,
    batch: int,
) -> None:
    monkeypatch.setattr(transfer, "_BATCH_ROWS", batch)
    (tmp_path / "log.jsonl").write_text(export)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 0
    assert rows(back) == rows(state)


@pytest.mark.parametrize(
    "text", ["", "naïve ☃ 🦊", "\udc80\ud800", "line\nbreak\x00\x1b\u2028", '"\\/', "x" * 100_000]
)
def test_any_text_comes_back(tmp_path: Path, state: Path, ask: Ask, text: str) -> None:
    acting = Acting()
    entries = [
        *acting.entries,
        Entry(3, acting.state.at, None, PortBlocked(port=18_000, pid=None, command=text)),
    ]
    written(state, entries)
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)

    imported_ = ask("import", tmp_path / "log.jsonl", "--state", tmp_path / "back")

    assert imported_.status == 0
    assert rows(tmp_path / "back") == rows(state)


def test_a_service_goes_on_with_an_imported_log(tmp_path: Path, state: Path, ask: Ask) -> None:
    ModelService.open(state, ports=range(27_900, 27_903)).close()
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)
    back = tmp_path / "back"
    ask("import", tmp_path / "log.jsonl", "--state", back)

    ModelService.open(back, ports=range(27_900, 27_903)).close()

    assert rows(back)[: len(rows(state))] == rows(state)
    assert ask("verify", "--state", back).status == 0


def test_a_log_of_several_segments_comes_back_as_one(tmp_path: Path, state: Path, ask: Ask) -> None:
    ModelService.open(state, ports=range(27_900, 27_903)).close()
    ask("archive", "--state", state)
    ModelService.open(state, ports=range(27_900, 27_903)).close()
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 0
    assert rows(back) == rows(state)
    assert ask("verify", "--state", back).status == 0
    assert ask("replay", "--state", back).out == ask("replay", "--state", state).out
    ModelService.open(back, ports=range(27_900, 27_903)).close()


def test_a_segment_whose_elders_are_missing_comes_back_with_its_gap(
    tmp_path: Path, state: Path, ask: Ask
) -> None:
    written(state, list(History(seed=6).entries(6))[:60])
    ask("archive", "--state", state)
    shutil.rmtree(state / "archive")
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    verified = ask("verify", "--state", back, "--json")
    assert answer.status == 0
    assert rows(back) == rows(state)
    assert [flaw["seq"] for flaw in verified.of("flaw")] == [1]
    assert ask("replay", "--state", back).out == ask("replay", "--state", state).out


def damaged(lines: list[str], chance: random.Random) -> list[str]:
    """Damage an export in one place, as disks, editors and networks do."""
    lines = list(lines)
    at = chance.randrange(len(lines))
    line = lines[at]
    cut = chance.randrange(len(line)) if line else 0
    match chance.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, line)
        case 2:
            lines = lines[:at]
        case 3:
            lines[at] = line[:cut]
        case 4:
            lines[at] = line[:cut] + chr(chance.randrange(32, 127)) + line[cut + 1 :]
        case 5:
            lines[at] = chance.choice(
                ["", "null", "[]", "{}", '{"end": 1}', "[" * 5000, "9" * 5000]
            )
        case 6:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = line.replace(chance.choice(list('"0123456789:,{}ae')), "\udc80", 1)
    return lines


@pytest.mark.parametrize("seed", range(150))
def test_a_damaged_export_is_refused_and_leaves_nothing(
    tmp_path: Path, export: str, seed: int
) -> None:
    lines = export.splitlines()
    worse = damaged(lines, random.Random(seed))
    if worse == lines:
        return

    with pytest.raises(StateError) as refused:
        imported(iter(worse), "the export", tmp_path / "back")

    assert "the export: " in str(refused.value)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{}\n", b"SQLite format 3\x00"])
def test_a_file_that_is_no_export_is_refused_in_one_line(
    tmp_path: Path, ask: Ask, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)

    answer = ask("import", tmp_path / "file", "--state", tmp_path / "back")

    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert not (tmp_path / "back").exists()


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, ask: Ask) -> None:
    for file in (tmp_path / "none", tmp_path):
        answer = ask("import", file, "--state", tmp_path / "back")

        assert (answer.status, answer.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", ["moorage.db", "moorage.db-wal", "moorage.head"])
def test_a_folder_that_holds_anything_of_a_log_is_left_as_it_is(
    tmp_path: Path, export: str, ask: Ask, name: str
) -> None:
    (tmp_path / "log.jsonl").write_text(export)
    back = tmp_path / "back"
    back.mkdir(mode=0o700)
    (back / name).write_bytes(b"kept")

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 2
    assert [path.name for path in back.iterdir()] == [name]
    assert (back / name).read_bytes() == b"kept"


def test_the_log_of_a_live_service_is_exported_and_backed_up_without_holding_it_up(
    tmp_path: Path, state: Path, ask: Ask
) -> None:
    with ModelService.open(state, ports=range(27_900, 27_903)) as service:
        backup = ask("backup", tmp_path / "copy.db", "--state", state, "--json")
        export = ask("export", "--state", state)
        seq = service.status().seq

    assert (backup.status, backup.of("backup")[0]["head"]) == (0, seq)
    assert export.objects[-1]["end"] == seq
    assert rows(tmp_path / "copy.db") == rows(state)[: seq + 1]
    assert ask("verify", "--state", tmp_path / "copy.db").status == 0


def test_a_backup_writes_over_nothing(tmp_path: Path, state: Path, export: str, ask: Ask) -> None:
    target = tmp_path / "copy.db"
    target.write_text("kept")

    answer = ask("backup", target, "--state", state)

    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert target.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["copy.db"]


Make = Callable[[Path], object]
WAIT_S = 30.0


@pytest.fixture(params=["backup", "import"])
def make(request: pytest.FixtureRequest, state: Path, export: str) -> Make:
    """Make a database with that path, of a log."""
    if request.param == "backup":
        return lambda target: backup(state, target)
    return lambda target: imported(iter(export.splitlines()), "the export", target.parent)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a database is to come, in a folder of its own."""
    (tmp_path / "place").mkdir(mode=0o700)
    return tmp_path / "place" / "moorage.db"


def test_the_file_and_then_its_name_are_on_the_disk_before_success_is_told(
    make: Make, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        of = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append((of, place.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    make(place)

    assert synced == [("file", False), ("folder", True)]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_new_state_folder_is_on_the_disk_before_success_is_told(
    tmp_path: Path, export: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    imported(iter(export.splitlines()), "the export", tmp_path / "new" / "back")

    folders = (tmp_path, tmp_path / "new", tmp_path / "new" / "back")
    assert {path.stat().st_ino for path in folders} <= set(synced)


@pytest.mark.parametrize("broken", [stat.S_ISREG, stat.S_ISDIR])
def test_what_cannot_be_synced_is_not_kept(
    make: Make, place: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[int], bool]
) -> None:
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if broken(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StateError, match="cannot be written: input/output error"):
        make(place)

    assert list(place.parent.iterdir()) == []


def test_what_came_meanwhile_is_not_replaced(
    make: Make, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def overtaken(descriptor: int) -> None:
        fsync(descriptor)
        place.write_text("kept")

    monkeypatch.setattr(os, "fsync", overtaken)
    with pytest.raises(StateError, match="File exists"):
        make(place)

    assert place.read_text() == "kept"
    assert [path.name for path in place.parent.iterdir()] == [place.name]


KILLED = """
import os, signal, sys
from pathlib import Path
from moorage.log.backup import backup
os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
backup(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_backup_that_was_killed_keeps_nobody_from_trying_again(
    state: Path, export: str, place: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(state), str(place)]
    assert subprocess.run(command, check=False, timeout=WAIT_S).returncode == -signal.SIGKILL
    assert not place.exists()

    backup(state, place)

    assert rows(place) == rows(state)


def test_a_backup_is_whole_whoever_begins_another_to_the_same_path_meanwhile(
    state: Path, export: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, fsync = sqlite3.connect, os.fsync
    begun, go_on = threading.Event(), threading.Event()
    refused: list[StateError] = []

    def second() -> None:
        try:
            backup(state, place)
        except StateError as error:
            refused.append(error)

    thread = threading.Thread(target=second)

    def connect_slowly(database: Any, **options: Any) -> sqlite3.Connection:
        if threading.current_thread() is thread and isinstance(database, Path):
            begun.set()
            go_on.wait(WAIT_S)
        return connect(database, **options)

    def begin_the_second(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        thread.start()
        assert begun.wait(WAIT_S)
        fsync(descriptor)

    monkeypatch.setattr(sqlite3, "connect", connect_slowly)
    monkeypatch.setattr(os, "fsync", begin_the_second)
    with ExitStack() as ending:
        ending.callback(thread.join, WAIT_S)
        ending.callback(go_on.set)
        backup(state, place)

    assert len(refused) == 1
    assert rows(place) == rows(state)
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_of_two_imports_at_once_into_one_folder_one_is_refused(
    state: Path, export: str, place: Path
) -> None:
    lines = export.splitlines()

    def overtaken() -> Iterator[str]:
        yield from lines[:-1]
        imported(iter(lines), "the other", place.parent)
        yield lines[-1]

    with pytest.raises(StateError, match="File exists"):
        imported(overtaken(), "the export", place.parent)

    assert rows(place) == rows(state)
    assert [path.name for path in place.parent.iterdir()] == [place.name]
