from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cli.making import Filler, Run
from moorage.core.events import ModelPinned
from moorage.log.sqlite import SqliteLog

LIMIT_S = 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["pss"], "invalid choice: 'pss'"),
        (["ps", "extra"], "unrecognized arguments: extra"),
        (["ps", "--sta", "x"], "unrecognized arguments"),
        (["events", "--after", "-1"], "'-1' is no whole number from 0 on"),
        (["events", "--after", "9" * 30], "is no whole number"),
        (["events", "--limit", "0"], "'0' is no whole number from 1 on"),
        (["events", "--run", "x"], "'x' is no whole number"),
        (["logs"], "MODEL"),
        (["logs", "m", "--lines", "1.5"], "'1.5' is no whole number"),
        (["db"], "ACTION"),
        (["ps"], "--state DIR, or set MOORAGE_STATE"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(run: Run, arguments: list[str], said: str) -> None:
    found = run(*arguments)

    assert (found.status, found.out) == (2, "")
    assert said in found.err
    assert found.err.startswith("moorage")
    assert len(found.err.splitlines()) == 1


COMMANDS = (["ps"], ["events"], ["logs", "m"], ["db", "current"], ["db", "upgrade"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_no_log_is_refused_and_left_as_it_is(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    text = tmp_path / "text"
    text.write_text("no database")

    for place in (tmp_path / "nothing", folder, text, Path("/dev/null")):
        found = run(*command, "--state", place)

        assert found.status == 2, place
        assert str(place) in found.err
        assert len(found.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "text"]
    assert not list(folder.iterdir())


def test_the_state_can_be_named_in_the_environment(
    run: Run, filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORAGE_STATE", str(filler.folder))

    assert run("ps").status == 0

    monkeypatch.setenv("MOORAGE_STATE", "")

    assert run("ps").status == 2


def test_version_and_help_are_fine(run: Run) -> None:
    assert run("--version").out == f"moorage {version('moorage')}\n"
    assert "Exit status" in run("--help").out
    assert "--state DIR" in run("events", "--help").out


def test_db_tells_and_keeps_the_revision(run: Run, filler: Filler) -> None:
    current = run("db", "current", "--state", filler.folder, "--json")
    upgrade = run("db", "upgrade", "--state", filler.folder / "moorage.db")

    told = json.loads(current.out)
    assert (current.status, told["is_head"]) == (0, True)
    assert (upgrade.status, upgrade.out) == (0, f"{told['head']}, as before\n")


def test_an_empty_database_is_a_finding_until_it_is_upgraded(run: Run, tmp_path: Path) -> None:
    (tmp_path / "moorage.db").touch()

    before = run("db", "current", "--state", tmp_path)
    upgrade = run("db", "upgrade", "--state", tmp_path)
    after = run("db", "current", "--state", tmp_path)

    assert [before.status, upgrade.status, after.status] == [1, 0, 0]
    assert "moorage db upgrade" in before.out


def test_a_log_in_use_is_not_upgraded(run: Run, filler: Filler) -> None:
    log = SqliteLog.open(filler.folder)
    try:
        found = run("db", "upgrade", "--state", filler.folder)
    finally:
        log.close()

    assert found.status == 2
    assert "already owned by" in found.err


def test_a_copied_database_alone_is_not_upgraded(run: Run, filler: Filler) -> None:
    copy = (filler.folder / "moorage.db").rename(filler.folder.parent / "copy.db")

    found = run("db", "upgrade", "--state", copy)

    assert found.status == 2
    assert "needs the state folder" in found.err


# --- as a program ---


def start(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "moorage", *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_while_following_ends_quietly(filler: Filler) -> None:
    with start("events", "-f", "--state", filler.folder) as process:
        assert process.stdout is not None
        assert "log.created" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, err) == (130, "")


def test_a_closed_pipe_ends_quietly(filler: Filler) -> None:
    for _ in range(40):  # more than a pipe's buffer takes
        filler.append(*[ModelPinned(model="owl")] * 50)

    with start("events", "--state", filler.folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(LIMIT_S)

    assert (process.returncode, err) == (0, "")


def test_a_full_disk_under_the_output_is_an_error(filler: Filler) -> None:
    with (
        Path("/dev/full").open("w") as full,
        start("ps", "--state", filler.folder, stdout=full.fileno()) as process,
    ):
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 2
    assert "No space left" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("closed", [(1,), (1, 2)])
def test_without_an_output_the_status_is_all_that_is_said(
    filler: Filler, closed: tuple[int, ...]
) -> None:
    redirections = " ".join(f"{descriptor}>&-" for descriptor in closed)
    for arguments, status in ((["ps"], 0), (["logs", "nobody"], 2)):
        command = (sys.executable, "-m", "moorage", *arguments, "--state", str(filler.folder))
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirections}', "sh", *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

        assert done.returncode == status
        assert "Traceback" not in done.stderr


def test_characters_the_terminal_has_not_are_spelled_out(filler: Filler) -> None:
    filler.launch("owl", 1, "grüße 漢\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "moorage", "logs", "owl", "--state", str(filler.folder)],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )

    assert done.stdout == "gr\\xfc\\xdfe \\u6f22\n"
