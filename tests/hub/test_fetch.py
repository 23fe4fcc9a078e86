"""The real huggingface_hub client against a hub on loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from moorage.hub import HubAccess, HubFetcher
from moorage.hub.problems import explain
from moorage.protocols import FetchCancelledError, Fetched, FetchFailedError, Progress
from moorage.spec import ModelSpec
from support.hub import Fault, Hub, Repo, serving

REPO = "org/model"
WEIGHTS = bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def plain_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Proxies catch loopback too; the client is one per process and keeps its sockets.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        files = {"model.gguf": WEIGHTS, "config.json": b"{}", "sub/part.bin": b"x" * 100}
        hub.repos[REPO] = Repo(files, revisions=("main", "v1"), large=frozenset({"model.gguf"}))
        yield hub


class Fetching:
    """Fetches into one cache and keeps what was told on the way."""

    def __init__(self, hub: Hub, cache: Path) -> None:
        self.hub = hub
        self.cache = cache
        self.access = HubAccess(endpoint=hub.endpoint, token=False, cache_dir=str(cache))
        self.progress: list[Progress] = []
        self.cancelled = threading.Event()

    def __call__(
        self,
        *,
        repo: str = REPO,
        file: str | None = "model.gguf",
        revision: str | None = None,
        token: str | None = None,
    ) -> Fetched:
        secrets = {"HF_TOKEN": token} if token else {}
        spec = ModelSpec(
            name="m", backend="command", repo=repo, file=file, revision=revision, secrets=secrets
        )
        return HubFetcher(self.access).fetch(spec, self.progress.append, self.cancelled)

    def problem(self, **asked: str | None) -> str:
        with pytest.raises(FetchFailedError) as caught:
            self(**asked)  # type: ignore[arg-type]
        return caught.value.problem


@pytest.fixture
def fetching(hub: Hub, tmp_path: Path) -> Fetching:
    return Fetching(hub, tmp_path / "cache")


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
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=503), Fault(reset_after=0)])
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


def test_an_unknown_repo_is_told_as_such(fetching: Fetching) -> None:
    problem = fetching.problem(repo="org/nothing")

    assert "has no repo 'org/nothing', or it is private" in problem
    assert "hf auth login" in problem


def test_an_unknown_file_is_told_with_the_near_ones(fetching: Fetching) -> None:
    problem = fetching.problem(file="modle.gguf")

    assert "no file 'modle.gguf'; it has model.gguf" in problem


def test_an_unknown_revision_is_told_as_such(fetching: Fetching) -> None:
    assert "has no revision 'v9'" in fetching.problem(revision="v9")


def test_a_repo_name_that_cannot_be_one_is_told_as_such(fetching: Fetching) -> None:
    assert "cannot be a repo of the hub" in fetching.problem(repo="a/b/c")


@pytest.mark.parametrize("kind", ["list", "head"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repo_says_where_to_accept_its_terms(
    fetching: Fetching, kind: str, status: int
) -> None:
    fetching.hub.faults[kind] = Fault(status=status, error_code="GatedRepo")

    problem = fetching.problem()

    assert f"accept its terms at {fetching.hub.endpoint}/{REPO}" in problem


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(status=403), "does not allow org/model to this token (status 403)"),
        (Fault(status=500), "fails (status 500); try again later"),
        (Fault(status=429, headers={"Retry-After": "7"}), "try again in 7 s"),
        (Fault(status=429), "try again later"),
        (Fault(status=410), "refuses org/model (status 410)"),
    ],
)
def test_a_refusal_says_what_to_do(fetching: Fetching, fault: Fault, said: str) -> None:
    fetching.hub.faults["list"] = fault

    assert said in fetching.problem()


def test_an_answer_that_is_none_of_a_hub_is_told_as_such(fetching: Fetching) -> None:
    fetching.hub.faults["list"] = Fault(body=b"<html>a login page</html>")

    assert "does not answer as a hub does" in fetching.problem()


def test_a_listing_that_is_cut_short_is_told_as_such(fetching: Fetching) -> None:
    fetching.hub.faults["list"] = Fault(short_by=10)

    assert "broke off" in fetching.problem()


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


def test_a_hub_that_is_down_is_known_at_once(fetching: Fetching) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        fetching.access = HubAccess(endpoint=endpoint, token=False, cache_dir=str(fetching.cache))
        began = time.monotonic()

        problem = fetching.problem()

    assert time.monotonic() - began < 2
    assert f"{endpoint} cannot be reached" in problem


def test_a_hub_that_accepts_and_never_answers_is_given_up(fetching: Fetching) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        fetching.access = HubAccess(
            endpoint=endpoint, token=False, cache_dir=str(fetching.cache), answer_timeout_s=0.1
        )

        problem = fetching.problem()

    assert "does not answer in time" in problem


def test_a_connection_that_is_reset_leaves_no_file_under_its_final_name(
    fetching: Fetching,
) -> None:
    fetching.hub.faults["get"] = Fault(reset_after=100)

    problem = fetching.problem()

    assert "broke off" in problem
    assert not list(fetching.cache.rglob("model.gguf"))
    del fetching.hub.faults["get"]
    assert Path(fetching().path).read_bytes() == WEIGHTS


def test_a_file_of_another_size_than_listed_is_refused(fetching: Fetching) -> None:
    fetching.hub.faults["head"] = Fault(size_off=5)

    assert "arrived incomplete" in fetching.problem()


def test_a_cache_that_is_not_writable_is_named(fetching: Fetching, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        fetching.cache = Path("/proc/moorage-cache")  # not even root makes folders there
    else:
        tmp_path.chmod(0o500)
    fetching.access = HubAccess(
        endpoint=fetching.hub.endpoint, token=False, cache_dir=str(fetching.cache)
    )

    problem = fetching.problem()

    assert str(fetching.cache) in problem


def test_a_full_disk_says_so() -> None:
    error = OSError(28, "No space left on device", "/cache/blobs/x")

    problem = explain(error, ModelSpec(name="m", backend="command", repo=REPO), "http://hub")

    assert problem == (
        "no space is left for org/model at /cache/blobs/x; free some, or move the cache by HF_HOME"
    )


def test_cancelled_before_it_began_nothing_is_asked(fetching: Fetching) -> None:
    fetching.cancelled.set()

    with pytest.raises(FetchCancelledError):
        fetching()

    assert fetching.hub.asked.total() == 0


def test_cancelled_in_mid_transfer_it_ends_and_leaves_no_final_file(fetching: Fetching) -> None:
    spec = ModelSpec(name="m", backend="command", repo=REPO, file="model.gguf")

    def cancel_at_start(_step: Progress) -> None:
        fetching.cancelled.set()

    with pytest.raises(FetchCancelledError):
        HubFetcher(fetching.access).fetch(spec, cancel_at_start, fetching.cancelled)

    assert not list(fetching.cache.rglob("model.gguf"))


def test_a_listed_name_that_leaves_the_folder_is_refused(fetching: Fetching) -> None:
    fetching.hub.repos[REPO].files["../evil"] = b"x"

    assert "leaves the model's folder" in fetching.problem(file=None)


def test_a_repo_without_files_is_refused(fetching: Fetching) -> None:
    fetching.hub.repos[REPO].files.clear()

    assert "has no files" in fetching.problem(file=None)


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
def test_a_hub_that_fails_with_nothing_cached_is_told_as_such(
    fetching: Fetching, file: str | None
) -> None:
    fetching.hub.faults["list"] = Fault(status=502)

    assert "fails (status 502)" in fetching.problem(file=file)


def test_a_file_that_vanished_after_it_was_listed_is_told_as_such(fetching: Fetching) -> None:
    fetching.hub.faults["head"] = Fault(status=404, error_code="EntryNotFound")

    assert "has no such file" in fetching.problem()


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
    problem = fetching.problem(repo="org/other", file=file)

    assert again.path == first.path
    assert "offline mode forbids" in problem
    assert fetching.hub.asked.total() == asked
