"""The cache is huggingface_hub's own: each side finds what the other has stored."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from hub.making import REPO, WEIGHTS, Fetching
from moorage.hub import HubAccess
from support.hub import Fault, Hub, serving

SIZE = len(WEIGHTS)
PLAIN_FETCH = """
import threading
from moorage.hub import HubFetcher
from moorage.spec import ModelSpec
spec = ModelSpec(name="m", backend="command", repo="org/model", file="model.gguf")
print(HubFetcher().fetch(spec, lambda _: None, threading.Event()).path, end="")
"""


def blob(fetching: Fetching, name: str = "model.gguf") -> Path:
    etag = fetching.hub.repos[REPO].etag(name)
    return fetching.cache / "models--org--model" / "blobs" / etag


def test_what_we_fetch_is_there_for_huggingface_hub(fetching: Fetching) -> None:
    fetched = fetching(file=None)
    asked = fetching.hub.asked["get"]
    common = {"cache_dir": fetching.cache, "endpoint": fetching.hub.endpoint, "token": False}

    one = huggingface_hub.hf_hub_download(REPO, "model.gguf", **common)
    offline = huggingface_hub.hf_hub_download(REPO, "model.gguf", local_files_only=True, **common)
    whole = huggingface_hub.snapshot_download(REPO, local_files_only=True, **common)

    assert one == offline == str(Path(fetched.path) / "model.gguf")
    assert whole == fetched.path
    assert fetching.hub.asked["get"] == asked


def test_what_huggingface_hub_fetched_is_there_for_us(fetching: Fetching) -> None:
    theirs = huggingface_hub.hf_hub_download(
        REPO,
        "model.gguf",
        cache_dir=fetching.cache,
        endpoint=fetching.hub.endpoint,
        token=False,
    )
    asked = fetching.hub.asked["get"]

    fetched = fetching()

    assert fetched.path == theirs
    assert fetched.fetched_bytes == 0
    assert fetching.hub.asked["get"] == asked


def test_its_own_scan_finds_our_repo_whole_and_no_fault(fetching: Fetching) -> None:
    fetched = fetching(file=None)
    (blob(fetching).with_name("0" * 64 + ".moorage.part")).write_bytes(b"some")

    found = huggingface_hub.scan_cache_dir(fetching.cache)

    (repo,) = found.repos
    (revision,) = repo.revisions
    assert not found.warnings
    assert (repo.repo_id, revision.commit_hash) == (REPO, fetched.commit)
    assert revision.refs == {"main"}
    assert {file.file_name: file.size_on_disk for file in revision.files} == {
        Path(name).name: size for name, size, _ in fetched.files
    }


def test_the_client_that_this_relies_upon_is_pinned_to_one_major_version() -> None:
    (wanted,) = (each for each in requires("moorage") or () if "huggingface" in each)

    assert "<3" in wanted
    assert version("huggingface_hub").split(".")[0] == "2"
    assert {"get_session", "get_token", "hf_hub_url", "hf_raise_for_status", "is_offline_mode"} <= (
        set(huggingface_hub.__all__)
    )


@pytest.mark.parametrize("content", [b"", b"short", WEIGHTS + b"more"])
def test_a_cached_file_of_a_wrong_size_is_fetched_again(fetching: Fetching, content: bytes) -> None:
    path = fetching().path
    blob(fetching).write_bytes(content)

    fetched = fetching()

    assert fetched.path == path
    assert fetched.fetched_bytes == SIZE
    assert Path(path).read_bytes() == WEIGHTS


def test_a_link_to_nothing_is_mended(fetching: Fetching) -> None:
    path = fetching().path
    blob(fetching).unlink()

    assert fetching().path == path
    assert Path(path).read_bytes() == WEIGHTS


def test_a_file_that_stands_under_its_name_is_taken_as_it_is(fetching: Fetching) -> None:
    path = Path(fetching().path)
    path.unlink()
    blob(fetching).rename(path)  # as in a cache on a disk without links

    fetched = fetching()

    assert fetched.fetched_bytes == 0
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_on_a_disk_without_links_files_stand_under_their_names(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, _target: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)

    first, second = fetching(), fetching()

    assert Path(first.path).read_bytes() == WEIGHTS
    assert not Path(first.path).is_symlink()
    assert (second.path, second.fetched_bytes) == (first.path, 0)


@pytest.mark.parametrize("links", [True, False])
def test_what_somebody_else_has_shown_just_before_is_left_as_it_is(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    make, shown = Path.mkdir, list[int]()

    def be_quicker(folder: Path, *options: Any, **more: Any) -> None:
        make(folder, *options, **more)
        if folder.parent.name == "snapshots" and not shown:
            shown.append(0)  # the fetch below comes by here, too
            shown.append(os.lstat(fetching().path).st_mtime_ns)

    def refuse(_path: Path, _target: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "mkdir", be_quicker)
    if not links:
        monkeypatch.setattr(Path, "symlink_to", refuse)

    path = fetching().path

    assert shown == [0, os.lstat(path).st_mtime_ns]
    assert Path(path).read_bytes() == WEIGHTS


@pytest.mark.parametrize("damage", ["a link to nothing", "a file that was cut"])
@pytest.mark.parametrize("at", [("symlink_to", 2), ("replace", 1)])
@pytest.mark.parametrize("first", [True, False])
def test_a_name_is_mended_by_several_at_once(
    fetching: Fetching,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    at: tuple[str, int],
    first: bool,
) -> None:
    path = Path(fetching().path)
    path.unlink()
    if damage == "a link to nothing":
        path.symlink_to("nothing")
    else:
        path.write_bytes(WEIGHTS[:100])
    step, nth = at
    real, steps = getattr(Path, step), list[Path]()

    def meet_another(made: Path, *options: Any, **more: Any) -> Any:
        steps.append(made)
        another = len(steps) == nth
        if another and first:
            fetching()
        try:
            return real(made, *options, **more)
        finally:
            if another and not first:
                fetching()

    monkeypatch.setattr(Path, step, meet_another)

    fetched = fetching()

    assert fetched.path == str(path)
    assert path.read_bytes() == WEIGHTS
    assert path.is_symlink()
    assert [each.name for each in path.parent.iterdir()] == ["model.gguf"]


# --- without the hub ---


def by_snapshot(fetching: Fetching) -> str:
    return huggingface_hub.snapshot_download(
        REPO, cache_dir=fetching.cache, endpoint=fetching.hub.endpoint, token=False
    )


def test_one_file_of_a_repo_is_not_taken_for_all_of_it_when_the_hub_is_down(
    fetching: Fetching,
) -> None:
    fetching(file="config.json")
    fetching.hub.faults["list"] = Fault(status=502)

    assert fetching.failure(file=None).reason == "hub-down"
    assert fetching(file="config.json").fetched_bytes == 0


@pytest.mark.parametrize("file", ["model.gguf", None])
def test_what_is_not_whole_is_not_taken_when_the_hub_is_down(
    fetching: Fetching, file: str | None
) -> None:
    fetching(file=file)
    blob(fetching).write_bytes(b"short")
    fetching.hub.faults["list"] = Fault(status=502)

    assert fetching.failure(file=file).reason == "hub-down"


def test_what_a_killed_program_did_not_show_to_its_end_is_not_taken_when_the_hub_is_down(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, linked = Path.symlink_to, list[Path]()

    def be_killed(path: Path, target: str) -> None:
        if linked:
            raise KeyboardInterrupt
        link(path, target)
        linked.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", be_killed)
        with pytest.raises(KeyboardInterrupt):
            fetching(file=None)
    commit = fetching.hub.repos[REPO].commit
    fetching.hub.faults["list"] = Fault(status=502)

    assert len(linked) == 1
    assert fetching.failure(file=None, revision=commit).reason == "hub-down"


@pytest.mark.parametrize("damage", [None, "config.json"])
def test_what_huggingface_hub_fetched_is_taken_when_it_is_whole_and_the_hub_is_down(
    fetching: Fetching, damage: str | None
) -> None:
    theirs = by_snapshot(fetching)
    if damage is not None:
        (Path(theirs) / damage).unlink()
    fetching.hub.faults["list"] = Fault(status=502)

    if damage is None:
        assert fetching(file=None).path == theirs
    else:
        assert fetching.failure(file=None).reason == "hub-down"


def test_a_note_that_was_cut_is_as_good_as_none(fetching: Fetching) -> None:
    fetched = fetching()
    (note,) = fetching.cache.rglob("moorage/*.json")
    note.write_bytes(note.read_bytes()[:10])
    fetching.hub.faults["list"] = Fault(status=502)

    assert fetching().path == fetched.path


def test_a_cache_that_is_only_read_serves_what_it_has(fetching: Fetching) -> None:
    fetched = fetching()
    (note,) = fetching.cache.rglob("moorage/*.json")
    note.unlink()
    note.parent.rmdir()
    note.parent.write_bytes(b"in the way")

    assert fetching().path == fetched.path


# --- another commit ---


def test_a_new_commit_shares_what_has_not_changed(fetching: Fetching) -> None:
    before = fetching(file=None)
    fetching.hub.repos[REPO].files["config.json"] = b'{"new": 1}'

    after = fetching(file=None)

    assert after.commit != before.commit
    assert after.fetched_bytes == len(b'{"new": 1}')
    assert (Path(before.path) / "config.json").read_bytes() == b"{}"
    assert (Path(after.path) / "config.json").read_bytes() == b'{"new": 1}'


def test_a_branch_that_moves_during_a_fetch_mixes_nothing(fetching: Fetching) -> None:
    fetching.set(stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=100, times=1)
    repo = fetching.hub.repos[REPO]
    fetch = fetching.begin()
    fetching.hub.wait_stalled()
    pinned = repo.commit
    fetching.hub.go.set()

    fetched = fetch.get()
    repo.files["model.gguf"] = WEIGHTS[::-1]

    assert fetched.commit == pinned
    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert Path(fetching().path).read_bytes() == WEIGHTS[::-1]
    assert Path(fetched.path).read_bytes() == WEIGHTS


# --- where the hub keeps its files ---


@pytest.fixture
def store(hub: Hub) -> Iterator[Hub]:
    """Another host, which the hub sends everybody to."""
    with serving() as store:
        store.repos = hub.repos
        hub.store = store
        yield store


@pytest.mark.parametrize("by_session", [False, True])
def test_files_are_had_from_where_the_hub_keeps_them_and_the_token_is_not(
    fetching: Fetching, store: Hub, by_session: bool
) -> None:
    fetching.set(proxy_loopback=by_session)
    store.faults["get"] = Fault(short_by=SIZE - 5000, times=1)

    fetched = fetching(token="users-token")

    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert store.starts == [("model.gguf", 0), ("model.gguf", 5000)]
    assert fetching.hub.tokens == {"Bearer users-token"}
    assert store.tokens == {None}
    assert fetching.hub.asked["get"] == 2  # each time with a new signature


def test_what_signs_an_address_or_is_a_login_in_it_is_not_told(
    fetching: Fetching, store: Hub
) -> None:
    fetching.set(endpoint=fetching.hub.endpoint.replace("//", "//user:word@"))
    store.faults["get"] = Fault(status=410)

    problem = fetching.problem()

    assert "status 410" in problem
    assert store.endpoint in problem
    assert "signed" not in problem
    assert "word" not in problem


def test_a_token_is_not_shown_with_the_options() -> None:
    assert "secret" not in repr(HubAccess(token="secret"))


# --- what the user has set ---


def test_a_token_that_must_not_be_sent_unasked_is_not(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "users-token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    fetching.set(token=None)

    fetching()

    assert fetching.hub.tokens == {None}


def test_a_hub_on_this_machine_is_not_spoken_to_by_a_proxy_unless_asked(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    fetching.set()
    assert fetching().fetched_bytes == SIZE

    fetching.set(proxy_loopback=True)
    failure = fetching.failure(file="config.json")

    assert failure.reason in ("no-network", "hub-down")
    assert "proxy settings" in failure.problem


def test_a_proxy_of_the_environment_is_used(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", fetching.hub.endpoint)  # it takes full addresses, too
    fetching.set(endpoint="http://hub.invalid")

    assert Path(fetching().path).read_bytes() == WEIGHTS


def test_what_a_host_has_set_up_for_huggingface_hub_is_used(fetching: Fetching) -> None:
    asked: list[str] = []
    client = huggingface_hub.get_session()
    client.event_hooks["request"].append(lambda request: asked.append(request.url.path))
    fetching.set(proxy_loopback=True)

    fetching()

    assert asked[0] == "/api/models/org/model"
    assert asked[1].endswith("/model.gguf")


def test_the_users_settings_are_read_from_the_environment(
    fetching: Fetching, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    user = {"HF_HOME": str(home), "HF_ENDPOINT": fetching.hub.endpoint, "HF_TOKEN": "users-token"}
    online = {name: value for name, value in os.environ.items() if name != "HF_HUB_CACHE"} | user
    offline = online | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}

    first, second = (
        subprocess.check_output((sys.executable, "-c", PLAIN_FETCH), env=env, text=True)
        for env in (online, offline)
    )

    assert first == second
    assert Path(first).is_relative_to(home / "hub" / "models--org--model")
    assert (home / "hub" / "CACHEDIR.TAG").is_file()
    assert fetching.hub.tokens == {"Bearer users-token"}
