"""`moorage fetch` against a hub on loopback, in processes of its own where a terminal matters."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.making import Run
from moorage.cli import fetch as fetch_command
from moorage.cli.console import Console
from moorage.cli.fetch import _bar, _Shown, _words
from moorage.core.pace import Fetching
from moorage.gguf import check_gguf, write_tiny
from moorage.hub import HubAccess, HubFetcher
from moorage.protocols import Progress
from support.hub import Fault, Hub, Repo, serving
from support.services import LIMIT_S, settle
from support.splitting import split

REPO = "org/model"
PROCESS_S = 3 * LIMIT_S
"""For a process of its own, which has to be started on a busy machine."""
BIG = bytes(range(256)) * 8000
PARTS = tuple(f"q4/tiny-0000{n}-of-00002.gguf" for n in (1, 2))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    write_tiny(tmp_path / "tiny.gguf")
    parts = split(tmp_path / "tiny.gguf", tmp_path, parts=2)
    files = dict(zip(PARTS, (part.read_bytes() for part in parts), strict=True))
    files |= {"big.gguf": BIG, "mmproj.gguf": b"GGUF", "README.md": b"#"}
    with serving() as hub:
        hub.repos[REPO] = Repo(files, revisions=("main", "v1"), large=frozenset(files))
        yield hub


@pytest.fixture
def env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return {**kept, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "TERM": "xterm"}


@pytest.fixture
def here(run: Run, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, where huggingface_hub has read its settings already."""
    access = HubAccess(
        endpoint=env["HF_ENDPOINT"], cache_dir=str(Path(env["HF_HOME"], "hub")), token=False
    )
    monkeypatch.setattr(fetch_command, "HubFetcher", lambda: HubFetcher(access))
    return run


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "moorage", "fetch", *map(str, arguments)]


def fetch(env: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=env, capture_output=True, text=True, timeout=PROCESS_S, check=False
    )


def test_a_model_in_parts_is_fetched_with_its_projector_and_its_path_is_all_of_the_output(
    env: dict[str, str],
) -> None:
    found = fetch(env, REPO, "q4/tiny.gguf", "--mmproj", "mmproj.gguf", "--revision", "v1")

    path = Path(found.stdout.removesuffix("\n"))
    assert found.returncode == 0
    assert path.parts[-2:] == ("q4", "tiny-00001-of-00002.gguf")
    assert check_gguf(path).parts == 2
    assert path.with_name("tiny-00002-of-00002.gguf").is_file()
    assert (path.parents[1] / "mmproj.gguf").is_file()
    first, *_, last = found.stderr.splitlines()
    assert first.startswith(f"{REPO} q4/tiny.gguf: 0 %, 0 B of ")
    assert last.startswith("3 files, ")
    assert "came now" in last


def test_json_tells_progress_and_then_what_was_fetched(hub: Hub, here: Run) -> None:
    found = here("fetch", REPO, "big.gguf", "--json")

    *progress, fetched = (json.loads(line) for line in found.lines)
    assert found.status == 0
    assert {each["object"] for each in progress} == {"progress"}
    assert progress[-1]["done_bytes"] == progress[-1]["total_bytes"] == len(BIG)
    assert set(progress[0]) == {
        *("object", "done_bytes", "total_bytes", "bytes_per_s", "waiting", "eta_s")
    }
    digest = f"sha256:{hub.repos[REPO].etag('big.gguf')}"
    assert fetched["object"] == "fetched"
    assert fetched["files"] == [{"name": "big.gguf", "bytes": len(BIG), "hash": digest}]
    assert fetched["fetched_bytes"] == len(BIG)
    assert fetched["commit"] == hub.repos[REPO].commit
    assert Path(fetched["path"]).read_bytes() == BIG
    assert found.err == ""


def test_what_is_there_is_not_fetched_again(hub: Hub, here: Run) -> None:
    first = here("fetch", REPO, "big.gguf")
    transferred = hub.asked["get"]

    again = json.loads(here("fetch", REPO, "big.gguf", "--json").lines[-1])

    assert hub.asked["get"] == transferred
    assert (again["fetched_bytes"], again["path"]) == (0, first.out.strip())


@pytest.mark.parametrize("everything", [True, False])
def test_a_repo_is_fetched_as_its_folder(hub: Hub, here: Run, everything: bool) -> None:
    files = {"model.safetensors": b"w", "sub/config.json": b"{}", "pytorch_model.bin": b"w"}
    hub.repos[REPO].files = files

    found = here("fetch", REPO, *(["--all"] if everything else []))

    folder = Path(found.out.strip())
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == set(files) - (set() if everything else {"pytorch_model.bin"})


def test_what_cannot_be_had_is_a_finding_with_the_reason(here: Run) -> None:
    found = here("fetch", REPO, "bgi.gguf", "--json")

    (failed,) = (json.loads(line) for line in found.lines)
    assert found.status == 1
    assert (failed["object"], failed["reason"]) == ("failed", "unknown-file")
    assert failed["problem"] in found.err
    assert "it has big.gguf" in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the following arguments are required: REPO"),
        ((REPO, "--mmproj", "x"), "fetch: mmproj: is a projector beside a model"),
        (("",), "fetch: repo: is empty"),
    ],
)
def test_what_cannot_be_meant_is_no_fetch(run: Run, arguments: tuple[str, ...], said: str) -> None:
    found = run("fetch", *arguments)

    assert found.status == 2
    assert said in found.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fetch_leaves_cleanly_and_the_next_one_goes_on(
    hub: Hub, env: dict[str, str], number: int
) -> None:
    hub.faults["get"] = Fault(stall_after=1_500_000, times=1)
    process = subprocess.Popen(
        command(REPO, "big.gguf"),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        hub.wait_stalled()
        home = Path(env["HF_HOME"])
        settle(lambda: sum(p.stat().st_size for p in home.rglob("*.part")) >= 1_000_000)
        process.send_signal(number)
        out, err = process.communicate(timeout=PROCESS_S)
    hub.go.set()

    again = fetch(env, REPO, "big.gguf")

    assert process.returncode == 128 + number
    assert out == ""
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert again.returncode == 0
    assert Path(again.stdout.strip()).read_bytes() == BIG
    assert hub.starts[-1][1] >= 1_000_000


def test_a_person_at_a_terminal_sees_a_bar_that_goes_away(hub: Hub, env: dict[str, str]) -> None:
    hub.faults["get"] = Fault(stall_after=0, times=1)
    ours, theirs = pty.openpty()
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as screen:
        process = subprocess.Popen(command(REPO, "big.gguf"), env=env, stdout=theirs, stderr=theirs)
        os.close(theirs)
        output = b""
        while b"] 0 %" not in output:
            output += screen.read(1000)
        hub.go.set()
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while more := screen.read(1000):
                output += more
        process.wait(PROCESS_S)

    shown = output.decode().split("\r\x1b[K")
    bars = [text for text in shown if text.startswith("[")]
    assert process.returncode == 0
    assert bars[0] == f"[{'.' * 30}] 0 %, 0 B of 2.0 MB"
    assert bars[-1].startswith(f"[{'#' * 30}] 100 %, 2.0 MB of 2.0 MB")
    summary, path, _ = shown[-1].split("\r\n")
    assert summary.startswith("1 file, 2.0 MB, of which 2.0 MB came now")
    assert Path(path).read_bytes() == BIG


# --- what is shown, without a hub ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(done: int, total: int | None, **more: Any) -> Fetching:
    return Fetching(at=0.0, done_bytes=done, total_bytes=total, **more)


@pytest.mark.parametrize(
    ("fetching", "words"),
    [
        (seen(0, None), "0 B here"),
        (seen(0, None, waiting="its turn"), "0 B here, waits for its turn"),
        (seen(0, 0), "100 %, 0 B of 0 B"),
        (seen(430, 1000), "43 %, 430 B of 1.0 kB"),
        (seen(0, 10**9, bytes_per_s=10.0**6), "0 %, 0 B of 1.0 GB, 1.0 MB/s, 16 min 40 s left"),
        (seen(5, 10, bytes_per_s=0.0), "50 %, 5 B of 10 B"),
        (seen(10, 10, bytes_per_s=3.0), "100 %, 10 B of 10 B, 3 B/s"),
        (seen(5, 10, bytes_per_s=3.0, waiting="x"), "50 %, 5 B of 10 B, waits for x"),
    ],
)
def test_progress_in_words(fetching: Fetching, words: str) -> None:
    assert _words(fetching) == words


@pytest.mark.parametrize("columns", [1, 10, 24, 25, 40, 80, 500])
@pytest.mark.parametrize("fetching", [seen(0, None), seen(3, 10), seen(20, 10), seen(10, 10)])
def test_a_bar_fits_into_a_terminal(fetching: Fetching, columns: int) -> None:
    assert len(_bar(fetching, columns)) < max(2, columns)


def test_a_bar_fills_up() -> None:
    assert _bar(seen(5, 10), 80).startswith(f"[{'#' * 15}{'.' * 15}] 50 %")
    assert _bar(seen(10, 10), 80).startswith(f"[{'#' * 30}] 100 %")


def test_without_a_person_there_is_a_line_a_tenth_and_one_for_each_wait() -> None:
    err = io.StringIO()
    shown = _Shown(Console(io.StringIO(), err, as_json=False), what="org/m")
    shown._pace.note = lambda _at, done, total, waiting: seen(done, total, waiting=waiting)  # type: ignore[method-assign]
    for done in range(1001):
        shown.note(Progress(done, 1000))
    shown.note(Progress(0, 1000, "its\x1b turn"))
    shown.note(Progress(1, 1000))
    shown.note(Progress(2, 1000))

    lines = err.getvalue().splitlines()
    assert len(lines) == 13
    assert lines[1] == "org/m: 10 %, 100 B of 1.0 kB"
    assert lines[11] == "org/m: 0 %, 0 B of 1.0 kB, waits for its\\x1b turn"
