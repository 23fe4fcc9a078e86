from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from cli.making import Filler, Run
from moorage import ModelService
from moorage.cli import values
from moorage.cli.console import Console
from moorage.core import events as ev
from moorage.log.sqlite import SqliteLog
from moorage.world.procfs import local_system


def test_ps_shows_each_model_and_what_is_held(run: Run, filler: Filler) -> None:
    filler.define("wren")
    filler.append(ev.ModelPinned(model="owl"))
    filler.launch("owl", 1)
    filler.ready("owl", 1)

    found = run("ps", "--state", filler.folder)

    assert found.status == 0
    assert found.lines[0].split()[:6] == ["MODEL", "STATE", "RUN", "PORT", "PID", "PINNED"]
    assert found.lines[1].split()[:4] == ["owl", "ready", "1", "18001"]
    assert " yes " in found.lines[1]
    assert found.lines[2].split()[:2] == ["wren", "stopped"]
    assert "1 held (18001 owl), 9 free of 18000-18009" in found.out
    assert "1 of 2 loaded" in found.out
    assert "lru     owl" in found.out


def test_ps_says_that_the_owner_is_gone_and_what_of_its_servers_is(
    run: Run, filler: Filler
) -> None:
    filler.launch("owl", 1)
    filler.ready("owl", 1)

    found = run("ps", "--state", filler.folder)

    assert "gone without closing" in found.out
    assert "999999999 gone" in found.lines[1]
    assert "1 of the processes above have ended" in found.out


def test_ps_knows_a_server_that_outlived_its_owner(run: Run, filler: Filler) -> None:
    system = local_system()
    own = system.stat(os.getpid())
    assert own is not None
    filler.launch("owl", 1)
    filler.append(
        ev.RunLaunched(
            model="owl",
            run=1,
            port=18_001,
            pid=os.getpid(),
            group=1,
            session=1,
            start_ticks=own.start_ticks,
            boot_id=system.boot_id(),
        )
    )

    found = run("ps", "--state", filler.folder, "--json")

    assert json.loads(found.lines[1])["pid_alive"] is True


def test_ps_works_beside_a_live_service(run: Run, tmp_path: Path) -> None:
    with ModelService.open(tmp_path / "state", ports=range(18000, 18010)):
        found = run("ps", "--state", tmp_path / "state")
        beside = SqliteLogIsTaken(tmp_path / "state")

    closed = run("ps", "--state", tmp_path / "state")

    assert found.status == 0
    assert f"process {os.getpid()} on" in found.out
    assert ", alive" in found.out
    assert "no model is defined" in found.out
    assert beside.still_taken
    assert "none: the service was closed" in closed.out


class SqliteLogIsTaken:
    """Looking did not loosen the owner's lock."""

    def __init__(self, folder: Path) -> None:
        with pytest.raises(Exception, match="already owned by"):
            SqliteLog.open(folder)
        self.still_taken = True


def test_ps_reads_a_copied_database_which_nobody_owns(
    run: Run, filler: Filler, tmp_path: Path
) -> None:
    copy = tmp_path / "incident.db"
    shutil.copy(filler.folder / "moorage.db", copy)
    log = SqliteLog.open(filler.folder)
    try:
        found = run("ps", "--state", copy)
        original = run("ps", "--state", filler.folder)
    finally:
        log.close()

    assert found.status == 0
    assert "gone without closing" in found.out
    assert ", alive" in original.out


def test_ps_reads_a_folder_that_cannot_be_written(run: Run, filler: Filler) -> None:
    filler.folder.chmod(0o500)
    try:
        found = run("ps", "--state", filler.folder)
    finally:
        filler.folder.chmod(0o700)

    assert found.status == 0
    assert "owl" in found.out


def test_what_a_server_wrote_cannot_drive_the_terminal(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1)
    filler.end("owl", 1)
    filler.append(
        ev.ModelBackoff(
            model="owl",
            run=1,
            attempts=1,
            until="2026-02-01T00:00:00.000000Z",
            stage="launch",
            error="died\x1b]0;title\x07\nsecond \u202eline",
        )
    )

    found = run("ps", "--state", filler.folder)
    events = run("events", "--state", filler.folder)

    for text in (found.out, events.out):
        assert "died" in text
        assert all(c.isprintable() or c == "\n" for c in text)
    assert found.lines[1].startswith("owl")
    assert not found.lines[2]


def test_ps_prints_one_object_a_line(run: Run, filler: Filler) -> None:
    filler.define("wren")

    found = run("ps", "--state", filler.folder, "--json")

    service, *models = map(json.loads, found.lines)
    assert service["object"] == "service"
    assert service["ports_free"] == 10
    assert service["owner_alive"] is False
    assert [model["name"] for model in models] == ["owl", "wren"]


def test_a_log_that_contradicts_itself_is_told_with_its_place(run: Run, filler: Filler) -> None:
    filler.append(ev.ModelPinned(model="nobody"))

    found = run("ps", "--state", filler.folder)

    assert found.status == 2
    assert "row 4" in found.err
    assert len(found.err.splitlines()) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    console = Console(Terminal(), io.StringIO(), as_json=False)

    assert (console.paint("x", "red") != "x") == coloured
    assert Console(io.StringIO(), io.StringIO(), as_json=False).paint("x", "red") == "x"


def test_progress_is_for_who_watches() -> None:
    watched, unwatched = Terminal(), io.StringIO()
    Console(Terminal(), watched, as_json=False).progress("heron starts")
    Console(Terminal(), Terminal(), as_json=True).progress("heron starts")
    Console(io.StringIO(), unwatched, as_json=False).progress("heron starts")

    assert "heron starts" in watched.getvalue()
    assert not unwatched.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3661, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_an_age_is_told_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert values.age(seconds) == said


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_950, "1.0 MB"), (3 << 40, "3.3 TB")],
)
def test_bytes_are_told_in_decimal_units(amount: int, said: str) -> None:
    assert values.size(amount) == said


def test_ps_tells_how_far_a_fetch_was_when_the_log_last_heard(run: Run, filler: Filler) -> None:
    fetched = {"model": "owl", "run": 1, "total_bytes": 4_000_000_000}
    begun = ev.RunFetching(model="owl", run=1, requested_by="lease", repo="org/owl")
    filler.append(begun)
    before = run("ps", "--state", filler.folder)
    filler.append(
        ev.FetchNoted(**fetched, done_bytes=400_000_000),  # type: ignore[arg-type]
        ev.FetchNoted(**fetched, done_bytes=1_300_000_000, bytes_per_s=12_500_000),  # type: ignore[arg-type]
    )

    after = run("ps", "--state", filler.folder)
    model = json.loads(run("ps", "--state", filler.folder, "--json").lines[1])
    earlier = run("replay", "--state", filler.folder, "--at", "5")

    assert before.lines[1].split()[:3] == ["owl", "fetching", "1"]
    assert "owl    fetching 32 % of 4.0 GB at 12.5 MB/s  1 " in after.lines[1]
    assert (model["fetched_bytes"], model["fetch_bytes"]) == (1_300_000_000, 4_000_000_000)
    assert model["fetch_bytes_per_s"] == 12_500_000
    assert "owl    fetching 10 % of 4.0 GB  1 " in earlier.out
