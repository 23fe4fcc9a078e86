"""Files come into the user's own cache, once, at one commit, with what the user has set."""

from __future__ import annotations

import json
import os
from pathlib import Path

import huggingface_hub
import pytest

from hub.making import REPO, WEIGHTS, Fetching
from moorage.hub import HubFetcher
from moorage.protocols import FetchFailedError, Progress
from moorage.spec import ModelSpec
from support.hub import Fault, Repo
from support.services import settle


def test_one_file_is_fetched_with_its_commit_size_and_hash(fetching: Fetching) -> None:
    fetched = fetching()

    repo = fetching.hub.repos[REPO]
    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert Path(fetched.path).name == "model.gguf"
    assert fetched.commit == repo.commit
    assert fetched.files == (("model.gguf", len(WEIGHTS), f"sha256:{repo.etag('model.gguf')}"),)
    assert fetched.fetched_bytes == len(WEIGHTS)


def test_without_a_file_the_whole_snapshot_is_fetched(fetching: Fetching) -> None:
    fetched = fetching(file=None)

    repo = fetching.hub.repos[REPO]
    folder = Path(fetched.path)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(repo.files) == {name for name, _, _ in fetched.files}
    assert folder.name == repo.commit
    assert {name: digest for name, _, digest in fetched.files}["config.json"] == (
        f"git:{repo.etag('config.json')}"
    )


def test_a_hash_that_is_listed_in_capitals_is_the_same_hash(fetching: Fetching) -> None:
    repo = fetching.hub.repos[REPO]
    hashes = {name: repo.etag(name) for name in repo.files}
    listed = [
        {"rfilename": "model.gguf", "size": len(WEIGHTS)}
        | {"lfs": {"size": len(WEIGHTS), "sha256": hashes["model.gguf"].upper()}},
        {"rfilename": "config.json", "size": 2, "blobId": hashes["config.json"].upper()},
    ]
    answer = json.dumps({"sha": repo.commit, "siblings": listed}).encode()
    fetching.hub.faults["list"] = Fault(body=answer)

    fetched = fetching(file=None)

    assert {name: digest for name, _, digest in fetched.files} == {
        "model.gguf": f"sha256:{hashes['model.gguf']}",
        "config.json": f"git:{hashes['config.json']}",
    }
    huggingface_hub.hf_hub_download(
        REPO, "model.gguf", revision=fetched.commit, cache_dir=fetching.cache, local_files_only=True
    )


def test_many_files_are_looked_at_a_few_times_each(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    files = {f"{number}.bin": str(number).encode() for number in range(count)}
    fetching.hub.repos[REPO].files = files
    looks, stat = list[Path](), Path.stat

    def look(path: Path, **more: bool) -> os.stat_result:
        looks.append(path)
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", look)

    assert len(fetching(file=None).files) == count
    assert len(looks) < 20 * count


def test_a_snapshot_whose_last_file_is_in_a_folder_is_its_root(fetching: Fetching) -> None:
    fetching.hub.repos[REPO].files = {"a/b/c.bin": b"1"}

    fetched = fetching(file=None)

    assert (Path(fetched.path) / "a/b/c.bin").read_bytes() == b"1"


def test_progress_only_grows_and_ends_at_the_total(fetching: Fetching) -> None:
    fetching(file=None)

    total = sum(map(len, fetching.hub.repos[REPO].files.values()))
    done = [step.done_bytes for step in fetching.progress]
    assert done[0] == 0
    assert done == sorted(done)
    assert fetching.progress[-1] == Progress(total, total)
    assert {step.total_bytes for step in fetching.progress} == {total}


def test_all_that_has_come_is_told_also_when_nothing_more_comes(fetching: Fetching) -> None:
    fetching.set(stall_timeout_s=20.0)
    fetching.hub.faults["get"] = Fault(stall_after=5000, times=1)
    fetch = fetching.begin()
    fetching.wait_part(5000)

    settle(lambda: fetching.progress[-1].done_bytes == 5000, limit_s=5.0)
    fetching.hub.go.set()
    assert fetch.get().fetched_bytes == len(WEIGHTS)


def test_what_is_cached_is_not_fetched_again(fetching: Fetching) -> None:
    first = fetching()
    transferred = fetching.hub.asked["get"]

    again = fetching()

    assert fetching.hub.asked["get"] == transferred
    assert again.path == first.path
    assert again.fetched_bytes == 0
    assert fetching.progress[-1] == Progress(len(WEIGHTS), len(WEIGHTS))


def test_a_revision_is_pinned_to_its_commit(fetching: Fetching) -> None:
    fetched = fetching(revision="v1")

    assert fetched.commit == fetching.hub.repos[REPO].commit


@pytest.mark.parametrize("file", ["model.gguf", None])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=503),
        Fault(reset_after=0),
        Fault(body=b"<html>log in</html>"),
        Fault(status=302, headers={"Location": "?again"}),
        Fault(status=407),
    ],
    ids=["fails", "is busy", "resets", "login page", "leads around", "wants a login of a proxy"],
)
def test_a_hub_that_fails_is_no_obstacle_for_what_is_cached(
    fetching: Fetching, file: str | None, fault: Fault
) -> None:
    first = fetching(file=file)
    fetching.hub.faults["list"] = fault

    again = fetching(file=file)

    assert again.path == first.path
    assert again.commit == first.commit
    assert sorted(again.files) == sorted(first.files)
    assert again.fetched_bytes == 0


@pytest.mark.parametrize("revision", ["refs/pr/1", "release-1.0"])
def test_a_revision_is_noted_in_the_cache_for_other_programs(
    fetching: Fetching, revision: str
) -> None:
    fetching.hub.repos[REPO].revisions = (revision,)

    fetched = fetching(revision=revision)

    found = huggingface_hub.hf_hub_download(
        REPO, "model.gguf", revision=revision, cache_dir=fetching.cache, local_files_only=True
    )
    assert found == fetched.path


@pytest.mark.parametrize("revision", [".", "..", "../../evil"])
def test_a_revision_that_is_no_name_is_not_noted(fetching: Fetching, revision: str) -> None:
    fetching.hub.repos[REPO].revisions = (revision, "main")

    fetching(revision=revision)

    assert list(fetching.cache.rglob("refs")) == list(fetching.cache.rglob("evil")) == []


def test_a_token_among_the_secrets_is_used(fetching: Fetching) -> None:
    fetching(token="secret-token")

    assert "Bearer secret-token" in fetching.hub.tokens
    assert None not in fetching.hub.tokens


def test_no_token_is_sent_where_none_is_wanted(fetching: Fetching) -> None:
    fetching()

    assert fetching.hub.tokens == {None}


def test_a_spec_without_a_repo_cannot_be_fetched(fetching: Fetching) -> None:
    spec = ModelSpec(name="m", backend="command", path="/x")

    with pytest.raises(FetchFailedError, match="'m' has no repo"):
        HubFetcher(fetching.access).fetch(spec, fetching.progress.append, fetching.cancelled)


def test_a_commit_may_be_asked_for_by_itself(fetching: Fetching) -> None:
    commit = fetching.hub.repos[REPO].commit

    fetched = fetching(revision=commit)

    assert fetched.commit == commit
    assert not list(fetching.cache.glob("*/refs/*"))


@pytest.mark.parametrize("file", ["model.gguf", None])
def test_offline_mode_serves_from_the_cache_and_else_says_so(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    first = fetching(file=file)
    fetching.hub.repos["org/other"] = Repo({"model.gguf": b"x"})
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    asked = fetching.hub.asked.total()

    again = fetching(file=file)
    failure = fetching.failure(repo="org/other", file=file)

    assert again.path == first.path
    assert failure.reason == "offline"
    assert "offline mode forbids" in failure.problem
    assert fetching.hub.asked.total() == asked
