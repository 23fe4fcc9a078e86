"""Whoever shares the cache fetches a file once, and not more are fetched at once than allowed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from hub.making import REPO, WEIGHTS, Fetching
from moorage.hub.cache import PART, STALE_S
from moorage.hub.listing import HubFile
from moorage.hub.part import Part
from moorage.protocols import FetchCancelledError
from support.hub import Fault, Repo
from support.services import Outcome, settle

OTHER = Path(__file__).with_name("other.py")
SIZE = len(WEIGHTS)


def waiting(fetching: Fetching, what: str, count: int = 1) -> bool:
    return sum(what in step.waiting for step in fetching.progress) >= count


def by_client(fetching: Fetching) -> Outcome:
    """Fetch as any other user of huggingface_hub does."""
    return Outcome(
        lambda: huggingface_hub.hf_hub_download(
            REPO,
            "model.gguf",
            cache_dir=fetching.cache,
            endpoint=fetching.hub.endpoint,
            token=False,
        )
    )


# --- the same file ---


def test_a_part_whose_folder_goes_wrong_is_unlocked_all_the_same(tmp_path: Path) -> None:
    folder, away = tmp_path / "blobs", tmp_path / "away"
    folder.mkdir()
    file = HubFile("model.gguf", 10, "0" * 64)
    part = Part.open(folder / "part", file)
    assert part is not None
    folder.rename(away)
    folder.symlink_to(folder)
    with pytest.raises(OSError, match="symbolic links"), part:
        pass
    folder.unlink()
    away.rename(folder)

    again = Part.open(folder / "part", file)

    assert again is not None
    with again:
        pass


def test_two_models_that_share_a_file_fetch_it_once(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    fetching.set(stall_timeout_s=20.0)
    first = fetching.begin()
    fetching.hub.wait_stalled()
    second = fetching.begin()
    settle(lambda: waiting(fetching, "another fetch of the same file"))
    fetching.hub.go.set()

    paths = {first.get().path, second.get().path}

    assert len(paths) == 1
    assert fetching.hub.starts == [("model.gguf", 0)]
    assert sorted([first.get().fetched_bytes, second.get().fetched_bytes]) == [0, SIZE]


def test_two_programs_at_once_fetch_it_once(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    argv = (sys.executable, OTHER, fetching.cache, fetching.hub.endpoint, "model.gguf")
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(argv, stdout=pipe, text=True) as one,
        subprocess.Popen(argv, stdout=pipe, text=True) as two,
    ):
        fetching.hub.wait_stalled()
        settle(lambda: fetching.hub.asked["list"] == 2)
        fetching.hub.go.set()
        brought = sorted(int(other.communicate()[0]) for other in (one, two))

    assert brought == [0, SIZE]
    assert fetching.hub.starts == [("model.gguf", 0)]
    assert fetching.hub.most_at_once == 1


def test_another_user_of_huggingface_hub_waits_for_us_and_has_ours(fetching: Fetching) -> None:
    fetching.set(stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    ours = fetching.begin()
    fetching.hub.wait_stalled()
    theirs = by_client(fetching)
    settle(lambda: fetching.hub.asked["head"] == 1)
    fetching.hub.go.set()

    assert theirs.get() == ours.get().path
    assert fetching.hub.starts == [("model.gguf", 0)]


def test_we_wait_for_another_user_of_huggingface_hub_and_have_theirs(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    theirs = by_client(fetching)
    fetching.hub.wait_stalled()
    ours = fetching.begin()
    settle(lambda: waiting(fetching, "another fetch"))
    fetching.hub.go.set()

    fetched = ours.get()

    assert fetched.path == theirs.get()
    assert fetched.fetched_bytes == 0
    assert fetching.hub.starts == [("model.gguf", 0)]
    assert fetching.parts() == []


def test_a_wait_for_another_program_can_be_cancelled_at_once(fetching: Fetching) -> None:
    fetching.set(stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    first = fetching.begin(cancelled=threading.Event())
    fetching.hub.wait_stalled()
    second = fetching.begin()
    settle(lambda: waiting(fetching, "another fetch"))
    began = time.monotonic()
    fetching.cancelled.set()
    with pytest.raises(FetchCancelledError):
        second.get()

    assert time.monotonic() - began < 10  # in vain, 20
    fetching.hub.go.set()
    assert first.get().fetched_bytes == SIZE


def test_who_waits_takes_over_from_one_that_is_cancelled(fetching: Fetching) -> None:
    fetching.set(stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    leaving = threading.Event()
    first = fetching.begin(cancelled=leaving)
    fetching.wait_part(100)
    second = fetching.begin()
    settle(lambda: waiting(fetching, "another fetch"))
    leaving.set()
    with pytest.raises(FetchCancelledError):
        first.get()

    assert second.get().fetched_bytes == SIZE - 100
    assert fetching.hub.starts == [("model.gguf", 0), ("model.gguf", 100)]


def test_names_with_the_same_content_are_fetched_once(fetching: Fetching) -> None:
    fetching.hub.repos[REPO] = Repo({"a.bin": b"same", "b.bin": b"same", "c.bin": b"other"})

    fetched = fetching(file=None)

    assert fetching.hub.asked["get"] == 2
    assert (Path(fetched.path) / "b.bin").read_bytes() == b"same"
    assert fetching.progress[-1].done_bytes == fetching.progress[-1].total_bytes == 13


# --- the same file, on a disk without links ---


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _target: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)


def check_alone(fetching: Fetching, *paths: Path) -> None:
    """Fail unless they are all there is, each by itself."""
    files = {path for path in fetching.cache.glob("models--*/[bs]*/**/*") if path.is_file()}
    assert files == set(paths)
    assert not any(path.is_symlink() for path in paths)


@pytest.mark.usefixtures("no_links")
def test_names_with_the_same_content_are_fetched_once_on_a_disk_without_links(
    fetching: Fetching,
) -> None:
    same = dict.fromkeys(("a.bin", "b.bin", "sub/c.bin"), b"same")
    fetching.hub.repos[REPO] = Repo({**same, "d.bin": b"other"})

    fetched = fetching(file=None)

    paths = {name: Path(fetched.path) / name for name in fetching.hub.repos[REPO].files}
    assert {name: path.read_bytes() for name, path in paths.items()} == {**same, "d.bin": b"other"}
    check_alone(fetching, *paths.values())
    assert fetching.hub.asked["get"] == 2
    assert fetched.fetched_bytes == len(b"same") + len(b"other")
    assert fetching.progress[-1].done_bytes == fetching.progress[-1].total_bytes == 17


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("same_name", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_two_models_that_share_a_file_fetch_it_once_on_a_disk_without_links(
    fetching: Fetching, same_name: bool, at_once: bool
) -> None:
    fetching.hub.repos[REPO].files["other.gguf"] = WEIGHTS
    fetching.hub.repos[REPO].large |= {"other.gguf"}
    fetching.set(stall_timeout_s=20.0)
    if at_once:
        fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    first = fetching.begin()
    if at_once:
        fetching.hub.wait_stalled()
    else:
        first.get()
    second = fetching.begin(file="model.gguf" if same_name else "other.gguf")
    if at_once:
        settle(lambda: waiting(fetching, "another fetch of the same file"))
    fetching.hub.go.set()

    paths = {Path(each.get().path) for each in (first, second)}

    assert {path.read_bytes() for path in paths} == {WEIGHTS}
    check_alone(fetching, *paths)
    assert fetching.hub.starts == [("model.gguf", 0)]


@pytest.mark.usefixtures("no_links")
def test_a_copy_that_is_wrong_is_fetched_on_a_disk_without_links(fetching: Fetching) -> None:
    fetching.hub.repos[REPO] = Repo({"a.bin": b"same", "b.bin": b"same"})
    Path(fetching(file="a.bin").path).write_bytes(b"none")

    assert Path(fetching(file="b.bin").path).read_bytes() == b"same"


@pytest.mark.usefixtures("no_links")
def test_no_other_file_is_read_for_a_listed_name_that_leaves_the_folder(
    fetching: Fetching,
) -> None:
    files = {"a.bin": b"same", "../../../../stranger": b"same", "b.bin": b"other"}
    fetching.hub.repos[REPO] = Repo(files)
    fetching.cache.with_name("stranger").write_bytes(b"same")
    fetching(file="b.bin")

    assert fetching(file="a.bin").fetched_bytes == len(b"same")


@pytest.mark.usefixtures("no_links")
def test_a_content_that_another_commit_took_just_before_it_was_shown_is_brought_again(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, taken = Path.mkdir, list[Path]()

    def be_quicker(folder: Path, *options: Any, **more: Any) -> None:
        make(folder, *options, **more)
        blobs = [path for path in fetching.cache.glob("*/blobs/*") if path.suffix == ""]
        if folder.parent.name == "snapshots" and not taken:
            taken.extend(blobs)
            blobs[0].rename(fetching.cache / "taken")

    monkeypatch.setattr(Path, "mkdir", be_quicker)

    fetched = fetching()

    assert len(taken) == 1
    assert Path(fetched.path).read_bytes() == WEIGHTS


# --- how many at once ---


def test_no_more_are_fetched_at_once_than_allowed_first_come_first_served(
    fetching: Fetching,
) -> None:
    for name in "abcde":
        fetching.hub.repos[f"org/{name}"] = Repo({f"{name}.bin": name.encode() * 1000})
    fetching.set(max_parallel=2, stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=10)
    fetches = [fetching.begin(repo=f"org/{name}", file=None) for name in "ab"]
    fetching.hub.wait_stalled(2)
    for count, name in enumerate("cde", 1):
        fetches.append(fetching.begin(repo=f"org/{name}", file=None))
        settle(lambda count=count: waiting(fetching, "its turn: 2 others", count))  # type: ignore[misc]
    assert fetching.hub.asked["get"] == 2
    fetching.hub.let_go()
    settle(lambda: len(fetching.hub.starts) == 4)
    second = {name for name, _ in fetching.hub.starts[2:]}
    fetching.hub.go.set()

    for fetch in fetches:
        fetch.get()

    assert fetching.hub.most_at_once == 2
    assert {name for name, _ in fetching.hub.starts[:2]} == {"a.bin", "b.bin"}
    assert second == {"c.bin", "d.bin"}


def test_whoever_waits_for_a_turn_can_be_cancelled_at_once_and_takes_none(
    fetching: Fetching,
) -> None:
    for name in "abc":
        fetching.hub.repos[f"org/{name}"] = Repo({"model.bin": name.encode() * 1000})
    fetching.set(max_parallel=1, stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=10, times=1)
    first = fetching.begin(repo="org/a", file=None, cancelled=threading.Event())
    fetching.hub.wait_stalled()
    second = fetching.begin(repo="org/b", file=None)
    settle(lambda: waiting(fetching, "its turn"))
    third = fetching.begin(repo="org/c", file=None, cancelled=threading.Event())
    settle(lambda: waiting(fetching, "its turn", 2))
    began = time.monotonic()
    fetching.cancelled.set()
    with pytest.raises(FetchCancelledError):
        second.get()
    took = time.monotonic() - began
    fetching.hub.go.set()

    assert first.get().fetched_bytes == third.get().fetched_bytes == 1000
    assert took < 10  # in vain, 20
    assert [name for name, _ in fetching.hub.starts] == ["model.bin"] * 2


def test_who_waits_for_another_program_leaves_its_turn_to_others(fetching: Fetching) -> None:
    fetching.hub.repos["org/b"] = Repo({"model.bin": b"b" * 1000})
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    theirs = by_client(fetching)
    fetching.hub.wait_stalled()
    fetching.set(max_parallel=1)
    held_up = fetching.begin()
    settle(lambda: waiting(fetching, "another fetch"))

    other = fetching.begin(repo="org/b", file=None).get()

    assert other.fetched_bytes == 1000
    assert fetching.hub.asked["get"] == 2  # theirs still stands
    fetching.hub.go.set()
    assert held_up.get().path == theirs.get()


def test_what_is_cached_needs_no_turn(fetching: Fetching) -> None:
    fetching.hub.repos["org/b"] = Repo({"model.bin": b"b" * 1000})
    fetching.set(max_parallel=1, stall_timeout_s=20.0)
    cached = fetching()
    fetching.hub.faults["get"] = Fault(stall_after=10, times=1)
    slow = fetching.begin(repo="org/b", file=None)
    fetching.hub.wait_stalled()

    assert fetching().path == cached.path
    fetching.hub.go.set()
    slow.get()


# --- what is left behind ---


def leave(fetching: Fetching, repo: str, name: str, age_s: float) -> Path:
    path = fetching.cache / f"models--{repo.replace('/', '--')}" / "blobs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"some")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_nobody_goes_on_with_is_removed_and_nothing_of_anybody_else(
    fetching: Fetching,
) -> None:
    old, young = STALE_S + 60, STALE_S - 60
    abandoned = leave(fetching, "org/gone", f"{'a' * 64}{PART}", old)
    whole = leave(fetching, "org/other", f"{'b' * 64}{PART}", young)
    blob = leave(fetching, "org/other", "b" * 64, old)
    kept = [
        blob,
        leave(fetching, "org/gone", f"{'c' * 64}{PART}", young),
        leave(fetching, "org/gone", f"{'d' * 64}.1234abcd.incomplete", old),
        leave(fetching, "org/gone", "notes.part", old),
    ]

    fetching()

    assert not abandoned.exists()
    assert not whole.exists()
    assert all(path.exists() for path in kept)


def test_an_old_part_that_somebody_holds_is_not_removed(fetching: Fetching) -> None:
    fetching.hub.repos["org/b"] = Repo({"model.bin": b"b" * 1000})
    fetching.set(stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=10, times=1)
    slow = fetching.begin(repo="org/b", file=None)
    part = fetching.wait_part(10)
    os.utime(part, (1, 1))

    fetching()

    assert part.exists()
    fetching.hub.go.set()
    assert slow.get().fetched_bytes == 1000
