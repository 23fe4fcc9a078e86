"""Whatever keeps a fetch from its files is told with what to do next, and a reason for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import get_args

import pytest

from hub.making import REPO, WEIGHTS, Fetching
from moorage.errors import ConfigurationError
from moorage.hub import HubAccess
from moorage.hub.problems import told_to_wait_s
from moorage.protocols import FetchReason
from support import needed
from support.hub import Fault, Hub, Repo
from support.services import Outcome

MIB = 1 << 20
DOCS = Path(__file__).parents[2] / "docs" / "hub.md"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    needed.command("mount", debian="mount")
    mount = ("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder)
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this root may not mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(("umount", folder), check=True)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while out.write(b"x" * 4096):
            pass


# --- what was asked for ---


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (None, "unknown-repo"),
        (Fault(status=404, error_code="RepoNotFound"), "unknown-repo"),
        (Fault(status=401, error_code="RepoNotFound"), "private"),
    ],
)
def test_an_unknown_repo_or_a_private_one_is_told_as_such(
    fetching: Fetching, fault: Fault | None, reason: str
) -> None:
    if fault is not None:
        fetching.hub.faults["list"] = fault

    failure = fetching.failure(repo="org/nothing")

    assert failure.reason == reason
    assert "has no repo 'org/nothing', or it is private" in failure.problem
    assert "hf auth login" in failure.problem


@pytest.mark.parametrize("kind", ["list", "get"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repo_says_where_to_accept_its_terms(
    fetching: Fetching, kind: str, status: int
) -> None:
    fetching.hub.faults[kind] = Fault(status=status, error_code="GatedRepo")

    failure = fetching.failure()

    assert failure.reason == "gated"
    assert f"accept its terms at {fetching.hub.endpoint}/{REPO}" in failure.problem
    assert fetching.parts() == []


def test_an_unknown_file_is_told_with_the_near_ones(fetching: Fetching) -> None:
    failure = fetching.failure(file="modle.gguf")

    assert failure.reason == "unknown-file"
    assert "org/model at revision 'main' has no file 'modle.gguf'; it has model.gguf" in (
        failure.problem
    )


def test_a_file_that_vanished_after_it_was_listed_is_told_as_such(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(status=404, error_code="EntryNotFound")

    failure = fetching.failure()

    assert failure.reason == "unknown-file"
    assert "has no such file" in failure.problem


def test_a_repo_without_files_is_refused(fetching: Fetching) -> None:
    fetching.hub.repos[REPO].files.clear()

    failure = fetching.failure(file=None)

    assert failure.reason == "unknown-file"
    assert "has no files" in failure.problem


def test_an_unknown_revision_is_told_as_such(fetching: Fetching) -> None:
    failure = fetching.failure(revision="v9")

    assert failure.reason == "unknown-revision"
    assert "has no revision 'v9'" in failure.problem


@pytest.mark.parametrize("repo", ["a/b/c", "../evil", "org/mo del", "org/--x"])
def test_a_repo_name_that_cannot_be_one_is_told_as_such(fetching: Fetching, repo: str) -> None:
    failure = fetching.failure(repo=repo)

    assert failure.reason == "unknown-repo"
    assert "cannot be a repo of the hub" in failure.problem
    assert fetching.hub.asked.total() == 0


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", ".."])
def test_a_listed_name_that_leaves_the_folder_is_refused(fetching: Fetching, name: str) -> None:
    fetching.hub.repos[REPO].files[name] = b"x"

    failure = fetching.failure(file=None)

    assert failure.reason == "unsafe-name"
    assert "leaves the model's folder" in failure.problem
    assert not fetching.cache.exists()


@pytest.mark.parametrize(
    "lie",
    [
        b"<html>a login page</html>",
        b"{}",
        b"[]",
        b'{"sha": "../../x", "siblings": []}',
        b'{"sha": "%s", "siblings": [{"rfilename": "model.gguf", "size": 1, "blobId": "../x"}]}',
        b'{"sha": "%s", "siblings": [{"rfilename": "model.gguf", "size": -1, "blobId": "%s"}]}',
        b'{"sha": "%s", "siblings": [{"rfilename": 7, "size": 1, "blobId": "%s"}]}',
        b'{"sha": "%s", "siblings": [{"rfilename": "m", "size": 1, "lfs": {"size": 1}}]}',
        b'{"sha": "%s", "siblings": [null]}',
        b"[" * 100_000,
        b'{"sha": "%s", "siblings": [{"rfilename": "m", "size": 1%s, "blobId": "%s"}]}',
        b'{"sha": "%s", "siblings": [{"rfilename": "\\ud800", "size": 1, "blobId": "%s"}]}',
    ],
)
def test_an_answer_that_is_none_of_a_hub_is_told_as_such(fetching: Fetching, lie: bytes) -> None:
    fetching.hub.faults["list"] = Fault(body=lie.replace(b"%s", b"0" * 40))

    failure = fetching.failure()

    assert failure.reason == "not-a-hub"
    assert "does not answer as a hub does" in failure.problem
    assert not fetching.cache.exists()


def test_a_listing_without_an_end_is_told_as_such(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.hub.listing._MOST_BYTES", 10)

    assert fetching.failure().reason == "not-a-hub"


# --- the token ---


@pytest.mark.parametrize("token", ["two words", "n\u00f6", "line\nbreak"])
def test_a_token_that_is_none_is_told_and_not_shown(fetching: Fetching, token: str) -> None:
    failure = fetching.failure(token=token)

    assert failure.reason == "denied"
    assert token not in failure.problem
    assert fetching.hub.asked.total() == 0


def test_a_token_that_is_wanted_and_not_stored_is_told(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    fetching.set(token=True)

    failure = fetching.failure()

    assert failure.reason == "denied"
    assert "is not stored" in failure.problem


# --- the hub and the way to it ---


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        (Fault(status=401), "denied", "does not allow org/model (status 401) to this token"),
        (Fault(status=403), "denied", "does not allow org/model (status 403) to this token"),
        (
            Fault(status=403, headers={"X-Error-Message": "Access to this resource is disabled."}),
            "disabled",
            "was disabled by the hub",
        ),
        (Fault(status=500), "hub-down", "fails (status 500); try again later"),
        (Fault(status=502), "hub-down", "fails (status 502); try again later"),
        (Fault(status=410), "refused", "refuses org/model (status 410)"),
        (Fault(short_by=10), "broken-off", "broke off"),
        (Fault(reset_after=0), "broken-off", "broke off"),
    ],
)
@pytest.mark.parametrize("kind", ["list", "get"])
def test_a_refusal_says_what_to_do(
    fetching: Fetching, kind: str, fault: Fault, reason: str, said: str
) -> None:
    fetching.set(retries=1)
    fetching.hub.faults[kind] = fault

    failure = fetching.failure()

    assert failure.reason == reason
    assert said in failure.problem


@pytest.mark.parametrize("kind", ["list", "get"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503, times=2),
        Fault(status=500, times=2),
        Fault(status=429, times=2),
        Fault(status=429, times=1, headers={"Retry-After": "0"}),
        Fault(reset_after=0, times=2),
    ],
)
def test_what_passes_is_waited_for(fetching: Fetching, kind: str, fault: Fault) -> None:
    fetching.hub.faults[kind] = fault

    assert Path(fetching().path).read_bytes() == WEIGHTS
    assert fetching.hub.asked[kind] == 1 + (fault.times or 0)


@pytest.mark.parametrize("kind", ["list", "get"])
def test_a_short_pause_that_the_hub_asks_for_is_kept(fetching: Fetching, kind: str) -> None:
    fetching.hub.faults[kind] = Fault(status=429, headers={"Retry-After": "1"}, times=1)
    began = time.monotonic()

    fetching()

    assert time.monotonic() - began >= 1
    assert "the hub, which is asked again in 1.0 s" in {s.waiting for s in fetching.progress}


@pytest.mark.parametrize("kind", ["list", "get"])
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Retry-After": "3600"}, "try again in 1 h 0 min, or with a token"),
        ({"RateLimit": '"api";r=0;t=240'}, "try again in 4 min 0 s"),
    ],
)
def test_a_long_pause_that_the_hub_asks_for_is_told(
    fetching: Fetching, kind: str, headers: dict[str, str], said: str
) -> None:
    fetching.hub.faults[kind] = Fault(status=429, headers=headers)

    failure = fetching.failure()

    assert failure.reason == "rate-limited"
    assert said in failure.problem
    assert fetching.hub.asked[kind] == 1


@pytest.mark.parametrize(("name", "before"), [("Retry-After", ""), ("RateLimit", "r=0;t=")])
def test_a_pause_without_end_is_not_believed(fetching: Fetching, name: str, before: str) -> None:
    fetching.hub.faults["list"] = Fault(status=429, headers={name: before + "9" * 400})
    fetching.set(retries=1)

    failure = fetching.failure()

    assert failure.reason == "rate-limited"
    assert "try again later" in failure.problem


def test_a_pause_until_a_date_is_understood(fetching: Fetching) -> None:
    later = datetime.now(UTC) + timedelta(hours=2)
    fetching.hub.faults["list"] = Fault(
        status=429, headers={"Retry-After": format_datetime(later, usegmt=True)}
    )

    failure = fetching.failure()

    assert "try again in 1 h 59 min" in failure.problem
    assert told_to_wait_s(ValueError()) is None


def test_a_hub_that_is_down_is_known_at_once(fetching: Fetching) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        fetching.set(endpoint=endpoint)
        began = time.monotonic()

        failure = fetching.failure()

    assert time.monotonic() - began < 5
    assert failure.reason == "hub-down"
    assert f"{endpoint} cannot be reached" in failure.problem


def test_a_host_that_nobody_knows_is_told_as_no_network(fetching: Fetching) -> None:
    fetching.set(endpoint="http://hub.invalid", proxy_loopback=True)

    failure = fetching.failure()

    assert failure.reason in ("no-network", "hub-down")  # some resolvers answer for any name
    assert "check the network" in failure.problem


@pytest.mark.parametrize("kind", ["list", "get"])
def test_a_hub_that_accepts_and_never_answers_is_given_up(fetching: Fetching, kind: str) -> None:
    fetching.set(answer_timeout_s=0.2, stall_timeout_s=30.0, retries=1)
    fetching.hub.faults[kind] = Fault(silent=True)
    began = time.monotonic()

    failure = fetching.failure()

    assert time.monotonic() - began < 5
    assert failure.reason == "hub-down"
    assert "does not answer in time" in failure.problem


def test_a_hub_that_fails_with_nothing_cached_is_given_up_within_its_time(
    fetching: Fetching,
) -> None:
    fetching.set(answer_timeout_s=1.0, retry_wait_s=0.6)
    fetching.hub.faults["list"] = Fault(status=502)
    began = time.monotonic()

    failure = fetching.failure(file=None)

    assert time.monotonic() - began < 5
    assert failure.reason == "hub-down"
    assert 1 <= fetching.hub.asked["list"] <= 2


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1", "http://127.0.0.1:port", "http://[::1"])
def test_an_endpoint_that_is_none_is_told_as_such(fetching: Fetching, endpoint: str) -> None:
    fetching.set(endpoint=endpoint)

    failure = fetching.failure()

    assert failure.reason == "no-network"
    assert "HF_ENDPOINT" in failure.problem


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "no-such-kind://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_told_and_what_is_cached_serves(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    fetching.set()

    failure = fetching.failure()

    assert failure.reason == "no-network"
    assert "the proxy settings" in failure.problem
    monkeypatch.delenv("ALL_PROXY")
    fetching.set()
    fetched = fetching()
    monkeypatch.setenv("ALL_PROXY", proxy)
    fetching.set()
    assert fetching().path == fetched.path


# --- the cache and its disk ---


def test_a_cache_that_is_not_writable_is_named(fetching: Fetching, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        fetching.cache = Path("/proc/moorage-cache")  # not even root makes folders there
    else:
        tmp_path.chmod(0o500)
    fetching.set()

    failure = fetching.failure()

    assert failure.reason in ("not-writable", "not-stored")  # /proc says that it is not there
    assert str(fetching.cache) in failure.problem


def test_what_stands_in_the_way_of_a_name_is_named_and_nothing_of_ours_is_left_beside_it(
    fetching: Fetching,
) -> None:
    commit = fetching.hub.repos[REPO].commit
    path = fetching.cache / "models--org--model" / "snapshots" / commit / "model.gguf"
    path.mkdir(parents=True)

    failure = fetching.failure()

    assert failure.reason == "not-stored"
    assert f"cannot be stored at {path}: Is a directory" in failure.problem
    assert fetching.shown() == ["model.gguf"]


def test_a_disk_that_is_only_read_serves_what_it_has_and_is_else_named(
    hub: Hub, small_disk: Path
) -> None:
    fetching = Fetching(hub, small_disk / "cache")
    path = fetching().path
    for note in fetching.cache.rglob("moorage/*.json"):
        note.unlink()  # as after a fetch by huggingface_hub
    subprocess.run(("mount", "-o", "remount,ro", small_disk), check=True)

    again = fetching()
    failure = fetching.failure(file="config.json")

    assert (again.path, again.fetched_bytes) == (path, 0)
    assert failure.reason == "not-writable"
    assert str(fetching.cache) in failure.problem


def test_a_file_that_the_disk_has_no_room_for_is_not_begun(hub: Hub, small_disk: Path) -> None:
    fetching = Fetching(hub, small_disk / "cache")
    hub.repos[REPO] = Repo({"a.bin": b"a" * MIB, "b.bin": b"b" * MIB, "c.bin": b"c" * MIB})

    failure = fetching.failure(file=None)

    assert failure.reason == "disk-full"
    assert str(small_disk / "cache" / "models--org--model" / "blobs") in failure.problem
    assert "3.1 MB are needed, 2.1 MB are free" in failure.problem
    assert hub.asked["get"] == 0
    assert fetching.parts() == []


def test_a_disk_that_is_full_already_is_told_the_same_way(hub: Hub, small_disk: Path) -> None:
    fetching = Fetching(hub, small_disk / "cache")
    fill(small_disk / "filler")

    failure = fetching.failure()

    assert failure.reason == "disk-full"
    assert str(small_disk / "cache" / "models--org--model" / "blobs") in failure.problem
    assert "16.4 kB are needed, 0 B are free" in failure.problem


def test_a_disk_that_fills_meanwhile_is_the_same_error_and_gets_room_back(
    hub: Hub, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.hub.part.GIVEN_BACK", 64 << 10)
    content = os.urandom(MIB)
    hub.repos[REPO] = Repo({"a.bin": content})
    hub.faults["get"] = Fault(stall_after=MIB // 2, times=1)
    fetching = Fetching(hub, small_disk / "cache", stall_timeout_s=20.0)
    fetch = Outcome(lambda: fetching.failure(file="a.bin"))
    fetching.wait_part(MIB // 2)
    filler = small_disk / "filler"
    fill(filler)

    hub.go.set()
    failure = fetch.get()

    disk = os.statvfs(small_disk)
    assert failure.reason == "disk-full"
    assert "needed" in failure.problem
    assert "0 B are free" not in failure.problem
    assert disk.f_bavail * disk.f_frsize >= 64 << 10
    filler.unlink()
    assert Path(fetching(file="a.bin").path).read_bytes() == content
    assert hub.starts[-1][1] > MIB // 4  # it went on from there


def test_a_system_that_starts_no_more_threads_is_told_as_such(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    failure = fetching.failure()

    assert failure.reason == "no-thread"
    assert "can't start new thread" in failure.problem


# --- the table itself ---


def test_every_reason_is_explained_and_no_other() -> None:
    explained = re.findall(
        r"^\| `([a-z-]+)` \| .+ \| .+ \|$", DOCS.read_text("utf-8"), re.MULTILINE
    )

    reasons = [reason for reason in explained if "_" not in reason]
    assert sorted(reasons) == sorted(filter(None, get_args(FetchReason)))


def test_every_option_is_explained() -> None:
    text = DOCS.read_text("utf-8")

    for field in dataclasses.fields(HubAccess):
        assert f"`{field.name}`" in text


def test_every_reason_is_tried_here_or_beside() -> None:
    tried = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    assert [each for each in get_args(FetchReason) if each and f'"{each}"' not in tried] == []


@pytest.mark.parametrize(
    "option",
    [
        {"endpoint": ""},
        {"endpoint": 7},
        {"cache_dir": ""},
        {"token": 7},
        {"proxy_loopback": 1},
        {"max_parallel": 0},
        {"max_parallel": True},
        {"retries": -1},
        {"min_bytes_per_s": 1.5},
        {"answer_timeout_s": float("nan")},
        {"stall_timeout_s": -1},
        {"retry_wait_s": "1"},
    ],
)
def test_access_that_cannot_be_meant_is_refused(option: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=f"HubAccess.{next(iter(option))}"):
        HubAccess(**option)  # type: ignore[arg-type]
