"""The audit: what is found, since when, and that a fix leaves what lives alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from moorage import ModelService
from moorage.core import decide
from moorage.core import events as ev
from moorage.core.audit import Seen, WorldView, audit, dated
from moorage.core.state import State
from moorage.log.reader import Filter, LogReader
from offline.acting import Acting
from offline.conftest import Ask, written
from support.services import LIMIT_S, ports, server, settle

OWNER = """
import os, signal, sys
from moorage import ModelService
from support.services import server
service = ModelService.open(sys.argv[1], ports=range(int(sys.argv[2]), int(sys.argv[2]) + 20),
                            max_loaded=3)
service.define(server("a"), server("b"))
pids = [service.start(name).pid for name in ("a", "b")]
print(*pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crashed(state: Path) -> list[int]:
    """Let an owner of two servers die, and return their pids."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", OWNER, str(state), str(ports()[0])],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [int(pid) for pid in done.stdout.split()]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    settle(lambda: gone(pid))


@pytest.fixture
def survivors(state: Path) -> Iterator[list[int]]:
    pids = crashed(state)
    yield pids
    for pid in pids:
        if not gone(pid):
            end(pid)


# --- pure ---


def seen(living: tuple[int, ...] = (), owned: bool = False, **more: object) -> WorldView:
    view = {"living": frozenset(living), "processes": (), "strangers": {}, "owned": owned}
    return WorldView(**(view | more))  # type: ignore[arg-type]


def kinds(state: State, world: WorldView) -> list[str]:
    return [finding.kind for finding in audit(state, world)]


def test_nothing_is_found_where_log_and_world_agree(acting: Acting) -> None:
    run = acting.load("a")

    assert kinds(acting.state, seen((run,), owned=True)) == []


def test_servers_kept_at_a_close_are_no_finding(acting: Acting) -> None:
    run = acting.load("a")
    with acting.deciding() as draft:
        draft.emit(ev.ServiceClosed(reason="keep", kept=(run,)))

    assert kinds(acting.state, seen((run,))) == []


def test_a_port_held_by_no_live_process_is_found_in_every_stage(acting: Acting) -> None:
    run = acting.ask("a")
    reserved = audit(acting.state, seen())
    acting.spawn(run)
    dead = audit(acting.state, seen())

    assert [finding.kind for finding in reserved] == ["dead-owner", "ownerless-run"]
    assert "it holds port 18000" in reserved[1].problem
    assert reserved[1].fix == "its port and room are released"
    assert [finding.kind for finding in dead] == ["dead-owner", "dead-run"]
    assert dead[1].since == acting.state.runs[run].launched_at


def test_an_owner_at_work_explains_runs_under_way(acting: Acting) -> None:
    acting.ask("a")

    assert kinds(acting.state, seen(owned=True)) == []


def test_a_stop_that_its_owner_left_half_done_is_found_with_what_lives(acting: Acting) -> None:
    run = acting.load("a")
    with acting.deciding() as draft:
        decide.stop(draft, run, "operator", force=True, leases=0)
    world = seen(processes=(Seen(7, run, f"n{run}", "worker"),))

    found = audit(acting.state, world)[-1]

    assert found.kind == "ownerless-run"
    assert "was stopping when its owner ended, processes 7 of it live" in found.problem


def test_a_stray_is_dated_by_the_run_it_is_of(acting: Acting) -> None:
    class Look:
        def entry(self, seq: int) -> ev.Entry | None:
            return None

        def run(self, number: int) -> list[ev.Entry]:
            return [e for e in acting.entries if getattr(e.event, "run", None) == number]

    run = acting.load("a")
    with acting.deciding() as draft:
        decide.stop(draft, run, "operator", force=True, leases=0)
    acting.end(run)
    world = seen(processes=(Seen(7, run, f"n{run}", "worker"),), owned=True)

    (found,) = dated(audit(acting.state, world), Look())

    last = acting.last("run.released")
    assert (found.kind, found.pid, found.since) == ("stray-process", 7, last.at)
    assert found.events == (acting.entries[found.events[0] - 1].seq, last.seq)
    assert found.fix == "it is killed"


def test_a_stray_that_the_command_itself_runs_in_is_left_alone(acting: Acting) -> None:
    world = seen(processes=(Seen(7, 9, "n", "sh"),), protected=frozenset({7}), owned=True)

    (found,) = audit(acting.state, world)

    assert found.fix == "it is left alone, as this very command runs in it"


def test_cuts_and_broken_rows_are_findings_without_a_world(acting: Acting) -> None:
    cuts = ("2026-03-02T08:00:00Z expected 5 aa found 4 bb",)

    found = audit(acting.state, None, chain=((3, "was changed"),), cuts=cuts)

    assert [finding.kind for finding in found] == ["broken-chain", "cut-log"]
    assert found[1].since == "2026-03-02T08:00:00Z"
    assert all(not finding.fix for finding in found)


# --- the command ---


def test_a_log_of_another_machine_is_held_against_itself_only(
    state: Path, acting: Acting, ask: Ask
) -> None:
    acting.load("a")
    written(state, acting.entries)

    answer = ask("audit", "--state", state, "--json")

    (end,) = answer.of("audit")
    assert answer.status == 0
    assert "ran on there" in end["world_unseen"]


def test_a_dead_owner_and_its_dead_run_are_found_and_fixed_and_the_survivor_goes_on(
    state: Path, survivors: list[int], ask: Ask
) -> None:
    dead, alive = survivors
    os.kill(dead, signal.SIGKILL)
    settle(lambda: gone(dead))

    before = ask("audit", "--state", state, "--json")
    fixed = ask("audit", "--fix", "--state", state, "--json")
    after = ask("audit", "--state", state, "--json")

    found = {finding["kind"]: finding for finding in before.of("finding")}
    assert before.status == 1
    assert set(found) == {"dead-owner", "dead-run"}
    assert found["dead-run"]["pid"] == dead
    assert len(found["dead-run"]["events"]) == 2
    assert (fixed.status, len(fixed.of("fixed"))) == (0, 2)
    assert (after.status, after.of("finding")) == (0, [])
    assert not gone(alive)
    with ModelService.open(state, ports=ports()) as service:
        assert service.model("b").pid == alive


def test_a_process_that_the_log_does_not_know_is_killed_by_a_fix(
    tmp_path: Path, state: Path, ask: Ask
) -> None:
    ModelService.open(state, ports=ports()).close()
    older = shutil.copy(state / "moorage.db", tmp_path / "older.db")
    pids = crashed(state)
    for name in ("moorage.db-wal", "moorage.db-shm"):
        (state / name).unlink(missing_ok=True)
    shutil.copy(older, state / "moorage.db")

    before = ask("audit", "--state", state, "--json")
    fixed = ask("audit", "--fix", "--state", state, "--json")

    kinds = [finding["kind"] for finding in before.of("finding")]
    assert kinds == ["broken-chain", "stray-process", "stray-process"]
    assert fixed.status == 2
    assert "go on from a backup" in fixed.err
    (state / "moorage.head").unlink()
    assert ask("audit", "--fix", "--state", state).status == 0
    assert all(gone(pid) for pid in pids)
    reaped = ask("events", "--state", state, "--kind", "process.reaped", "--json").objects
    assert sorted(event["pid"] for event in reaped) == sorted(pids)
    with LogReader(state) as reader:
        causes = {reader.entry(event["cause"]).event.kind for event in reaped}  # type: ignore[union-attr]
    assert causes == {"service.opened"}


def test_beside_a_live_owner_it_looks_and_fixes_nothing(state: Path, ask: Ask) -> None:
    with ModelService.open(state, ports=ports(), models=[server("a")]) as service:
        service.start("a")
        looked = ask("audit", "--state", state, "--json")
        fixed = ask("audit", "--fix", "--state", state)

        assert (looked.status, looked.of("finding")) == (0, [])
        assert fixed.status == 2
        assert f"process {os.getpid()} on {socket.gethostname()}" in fixed.err
        assert service.model("a").state == "ready"


def test_a_copy_of_a_live_log_is_not_held_against_the_world(
    tmp_path: Path, state: Path, ask: Ask
) -> None:
    with ModelService.open(state, ports=ports(), models=[server("a")]) as service:
        service.backup(tmp_path / "copy.db")
        service.start("a")
        answer = ask("audit", "--state", tmp_path / "copy.db", "--json")
        refused = ask("audit", "--fix", "--state", tmp_path / "copy.db")

    assert answer.status == 0
    assert "this is a copy" in answer.of("audit")[0]["world_unseen"]
    assert refused.status == 2
    assert "needs the state folder" in refused.err


SHELL_IN_A_SERVER = """
import http.server, os, subprocess, sys, threading
port, folder = int(sys.argv[1]), sys.argv[2]
def audit():
    with open(folder + "/go") as go:
        go.read()
    child = subprocess.Popen(["sleep", "600"])
    with open(folder + "/out", "w") as out:
        done = subprocess.run(
            ["sh", "-c", sys.executable + " -m moorage audit --fix --json --state " + folder
             + "/state; echo $?"], stdout=out, stderr=out)
    with open(folder + "/done", "w") as told:
        told.write(str(child.pid) + " " + str(child.poll()))
threading.Thread(target=audit, daemon=True).start()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

OWNER_OF_A_SHELL = """
import os, signal, sys
from moorage import ModelService, ModelSpec
folder, first, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
service = ModelService.open(folder + "/state", ports=range(first, first + 20))
service.define(ModelSpec(name="a", backend="command", executable=sys.executable,
                         args=("-c", script, "{port}", folder), health_path="/"))
print(service.start("a").pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("known", [True, False])
def test_a_fix_from_a_shell_inside_a_server_kills_neither_itself_nor_the_server(
    tmp_path: Path, known: bool
) -> None:
    state = tmp_path / "state"
    ModelService.open(state, ports=ports()).close()
    older = shutil.copy(state / "moorage.db", tmp_path / "older.db")
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "done")
    owner = subprocess.run(
        [sys.executable, "-c", OWNER_OF_A_SHELL, tmp_path, str(ports()[0]), SHELL_IN_A_SERVER],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    pid = int(owner.stdout)
    if not known:  # a log from before the server: nothing says that it may live
        for path in state.glob("moorage.*"):
            path.unlink()
        shutil.copy(older, state / "moorage.db")

    (tmp_path / "go").write_text("")
    child, exit_code = (tmp_path / "done").read_text().split()
    out = (tmp_path / "out").read_text()
    alive = not gone(pid)
    end(pid)
    if exit_code == "None":
        end(int(child))
    assert alive, out
    assert out.splitlines()[-1] in "01", out
    assert exit_code == ("None" if known else "-9"), out
    with LogReader(state) as reader:
        reaped = [entry.event for entry in reader.read(only=Filter(kind="process.reaped"))]
    assert [event.pid for event in reaped] == ([] if known else [int(child)])  # type: ignore[attr-defined]


STOP_OF_A_PARENT = """
import os, signal, threading
from moorage.protocols import Identity, RunProcess, StopSignal
from moorage.world.processes import LocalProcesses
from moorage.world.procfs import local_system
shell = local_system().stat(os.getppid())
processes = LocalProcesses()
leader = Identity(shell.pid, shell.group, shell.session, shell.start_ticks, processes.boot_id())
run = RunProcess(run=1, token="00000000000000aa:1:n", identity=leader, ports=())
signals = [StopSignal(number=signal.SIGTERM, target="group", wait_s=0.1)]
report = processes.stop(run, signals, kill_wait_s=0.3, hurry=threading.Event())
processes.close()
print(report.clean, shell.pid in report.unproven)
"""


def test_a_stop_spares_the_shell_it_is_asked_from_and_does_not_claim_its_end() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -c '{STOP_OF_A_PARENT}'; echo and lives"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        start_new_session=True,  # where it fails, it signals its whole group
    )

    assert done.stdout.split("\n")[:2] == ["False True", "and lives"], done.stderr
