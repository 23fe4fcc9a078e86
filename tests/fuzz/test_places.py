"""Things of another kind where a file should be: directories, pipes, devices, links to nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import bounds
from fuzz.seeds import seeds
from fuzz.test_databases import READS, ask, digest, opened


def directory(path: Path) -> None:
    path.mkdir()


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def null(path: Path) -> None:
    path.symlink_to("/dev/null")


def nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("gone") / "away")


def itself(path: Path) -> None:
    path.symlink_to(path)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


THINGS = (directory, full_directory, pipe, endless, null, nowhere, itself, large)
BESIDE = ("head", "cuts", "lock", "key", "db-wal", "db-shm", "db-journal")


@pytest.mark.parametrize("make", THINGS)
def test_whatever_is_named_as_a_log_is_refused_if_it_is_none(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "thing")

    for command in READS:
        assert ask(command, tmp_path / "thing").status == 2, command
    for command in (("archive",), ("db", "upgrade")):
        assert bounds.run(*command, "--state", tmp_path / "thing").status == 2


# A pipe may well carry an export, and its writer may come late.
@pytest.mark.parametrize("make", [make for make in THINGS if make is not pipe])
def test_whatever_is_named_as_an_export_is_refused_and_leaves_nothing(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "thing")

    answer = bounds.run("import", tmp_path / "thing", "--state", tmp_path / "back")

    assert answer.status == 2
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", ["db", *BESIDE])
@pytest.mark.parametrize("make", THINGS)
def test_whatever_is_in_a_state_folder_under_the_name_of_a_file_of_ours_hangs_nothing(
    make: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    state = seeds()[2].put(tmp_path / "state")
    (state / f"moorage.{name}").unlink(missing_ok=True)
    make(state / f"moorage.{name}")
    before = digest(state) if name != "db" else {}

    for command in (("ps",), ("verify",), ("audit",), ("events",), ("export",)):
        ask(command, state)
    opened(state)

    if name != "db":
        assert set(digest(state)) == set(before)
