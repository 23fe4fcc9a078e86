"""Processes that are not what they seem: recycled pids, other logs, strangers, zombies, hosts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from moorage import ModelService, ModelSpec
from moorage.actors import effects
from moorage.log.reader import LogReader
from recovery.leaving import alive, events_of, lease_anew, left_behind, serves
from recovery.owner import answered_by
from support import needed
from support.others import require_code_for_others
from support.servers import misbehave
from support.services import LIMIT_S, ports, settle, state_of

Reopen = Callable[..., ModelService]
Stranger = Callable[..., subprocess.Popen[str]]

ONE_READY = """
service = open_()
service.define(server("a", "--name", "a", *arguments))
print(service.start("a").pid)
"""


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """Start processes of nobody's, which the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command or ("/bin/sleep", "600"),
            stdout=subprocess.PIPE,
            env=os.environ | env,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "ADOPT_S", 1.0)
    monkeypatch.setattr(effects, "RETRY_STOP_S", 0.05)
    monkeypatch.setattr(effects, "RETRY_MAX_S", 0.05)


@pytest.fixture
def heir_of_orphans() -> Iterator[None]:
    """Become the parent of orphans, so that they stay zombies when they end."""
    prctl, subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(subreaper, 1, 0, 0, 0) == 0
    yield
    prctl(subreaper, 0, 0, 0, 0)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kinds_of(service: ModelService) -> list[str]:
    return [finding.kind for finding in service.audit() if finding.kind != "stranger-on-port"]


def test_a_recycled_pid_is_neither_adopted_nor_signalled(
    reopen: Reopen, folder: Path, pool: range, stranger: Stranger
) -> None:
    other = stranger()
    left_behind(
        folder,
        pool,
        """
        import dataclasses
        from moorage.world.processes import LocalProcesses
        class Recycling(LocalProcesses):
            def launch(self, order):
                found, pid = super().launch(order), int(arguments[0])
                os.kill(found.pid, signal.SIGKILL)
                return dataclasses.replace(found, pid=pid, group=pid, session=pid)
        service = open_(parts=Parts(processes=Recycling()))
        service.define(server("a"))
        seen = Seen(service)
        threading.Thread(target=lambda: service.start("a"), daemon=True).start()
        seen.wait("run.launched")
        """,
        other.pid,
    )
    service = reopen()
    settle(lambda: not state_of(service).runs)

    assert not events_of(folder, "run.adopted")
    with service.lease("a"):
        assert service.model("a").pid != other.pid
    assert other.poll() is None


def test_a_process_with_a_token_of_another_log_is_not_ours(
    reopen: Reopen, folder: Path, pool: range, stranger: Stranger
) -> None:
    left_behind(folder, pool, ONE_READY)
    with LogReader(folder) as reader:
        log_id = reader.log_id
    others = [
        stranger(MOORAGE_RUN="00000000000000ff:1:0123456789abcdef"),
        stranger(MOORAGE_RUN=f"{log_id}0:1:0123456789abcdef"),
        stranger(MOORAGE_RUN=f"x{log_id}:1:0123456789abcdef"),
    ]
    ours = stranger(MOORAGE_RUN=f"00000000000000ff:1:0,{log_id}:1:0123456789abcdef")
    service = reopen()
    ours.wait(LIMIT_S)

    settle(serves(service, "a"))
    settle(lambda: bool(events_of(folder, "process.reaped")))  # said once it is gone, not before
    assert kinds_of(service) == []
    assert [e.pid for e in events_of(folder, "process.reaped")] == [ours.pid]
    assert [other.poll() for other in others] == [None, None, None]


@pytest.mark.usefixtures("impatient")
def test_a_stranger_on_the_port_of_a_survivor_is_never_lent(
    reopen: Reopen, folder: Path, pool: range, stranger: Stranger
) -> None:
    pid = int(left_behind(folder, pool, ONE_READY, "--share"))
    port = events_of(folder, "run.reserved")[0].port
    other = stranger(*misbehave(port, "--share", "--name", "stranger"))
    assert other.stdout is not None
    assert other.stdout.readline().startswith("serving")
    service = reopen()
    with lease_anew(service, "a") as lease:
        assert lease.port != port
        assert answered_by(lease.port) == "a"

    assert not alive(pid)
    assert other.poll() is None
    (draining,) = events_of(folder, "run.draining")
    assert draining.reason == "unhealthy"
    assert f"pid {other.pid}" in draining.error


@pytest.mark.usefixtures("heir_of_orphans")
def test_a_zombie_is_dead(reopen: Reopen, folder: Path, pool: range) -> None:
    pid = int(left_behind(folder, pool, ONE_READY))
    os.kill(pid, signal.SIGKILL)
    settle(lambda: not alive(pid))
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    service = reopen()
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"

    assert not events_of(folder, "run.adopted")
    assert [e.outcome for e in events_of(folder, "run.released")] == ["lost"]


def test_workers_that_wiped_their_environment_end_with_the_survivor_they_belong_to(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    pid = int(left_behind(folder, pool, ONE_READY, "--wipe", "--child", "--detached"))
    tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    service = reopen()
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"
    service.stop("a")

    assert len(tree) == 3
    assert not any(map(alive, tree))


@pytest.mark.usefixtures("impatient", "heir_of_orphans")
def test_a_worker_that_can_be_proved_no_more_is_kept_in_quarantine_until_it_ends(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    """Its environment is wiped and its leader has gone: it may be ours, and is not signalled."""
    pid = int(left_behind(folder, pool, ONE_READY, "--wipe", "--child"))
    (worker,) = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # even as a zombie its pid would prove whose the worker is
    service = reopen()
    # Its leader's exit may be told later than the first failed stop, and is followed by another.
    settle(
        lambda: service.model("a").state == "stop_failed" and bool(events_of(folder, "run.exited"))
    )
    settle(lambda: kinds_of(service) == ["quarantine"])

    assert worker.is_running()
    failed = events_of(folder, "run.stop_failed")[-1]
    assert failed.pids == (worker.pid,)
    assert "cannot be proved" in failed.error
    assert failed.run in {run.run for run in state_of(service).holding()}
    worker.kill()
    settle(lambda: not state_of(service).runs)
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"


PYTHON = "/usr/bin/python3"  # every user can run it
SETUID = """
import pathlib, encodings.ascii  # what is imported late, the other user may not be let to read
os.setgroups([]), os.setgid(65534), os.setuid(65534)
import moorage.actors.effects as effects
effects.RETRY_STOP_S = effects.RETRY_MAX_S = 0.05
"""
SETUID_LEAVES = """
python, template = arguments[1], server("a").args[1:]
start = "import subprocess, sys, os; subprocess.Popen([sys.argv[1], '600']);" \
        "os.execv(sys.argv[2], sys.argv[2:])"
service = open_()
service.define(ModelSpec(name="a", backend="command",
                         args=(python, "-c", start, arguments[0], python, *template)))
pid = service.start("a").pid
import psutil
child, = psutil.Process(pid).children()
try:
    pathlib.Path(f"/proc/{child.pid}/environ").read_bytes()
    print("readable", child.pid, pid)
except PermissionError:
    print("unreadable", child.pid, pid)
"""
SETUID_FINDS = """
service = open_()
def stuck():
    # Its leader's exit may be told later than the first failed stop, and is followed by another.
    found = [finding.kind for finding in service.audit() if finding.kind != "stranger-on-port"]
    return service.model("a").state == "stop_failed" and found == ["quarantine"]
settle(stuck)
print("quarantine")
print(service.model("a").state, Path(f"/proc/{arguments[0]}").exists(), flush=True)
os.kill(int(arguments[0]), signal.SIGKILL)
settle(lambda: not state_of(service).runs)
print(service.model("a").state)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("heir_of_orphans")
def test_a_worker_of_another_user_whose_environment_cannot_be_read_is_quarantined(
    pool: range,
) -> None:
    require_code_for_others()
    needed.command(PYTHON, debian="python3")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="moorage-test-") as name:
        public, program = Path(name), Path(name) / "sleep"
        os.chown(public, 65534, 65534)
        shutil.copyfile("/bin/sleep", program)
        os.chown(program, 65533, 65533)
        program.chmod(0o4755)
        said = left_behind(public / "state", pool, SETUID + SETUID_LEAVES, program, PYTHON)
        how, child, pid = said.split()
        try:
            if how == "readable":
                pytest.skip("this file system honours no setuid bit")
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)
            found = left_behind(public / "state", pool, SETUID + SETUID_FINDS, child)
        finally:
            for each in (int(child), int(pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)

    assert found.split() == ["quarantine", "stop_failed", "True", "stopped"]


NESTED = """
import os, sys
from moorage import ModelService
from support.services import server
port, folder, first = sys.argv[1:]
first = int(first)
service = ModelService.open(folder, ports=range(first, first + 10), on_close="keep")
service.define(server("inner", "--name", "inner", "--detached"))
service.start("inner")
from support.servers.misbehave import Options, Server
options = Options(["--port", port, "--name", "outer"])
Server(options).serve()
"""


def nested(inner: Path, first: int) -> ModelSpec:
    """Return the spec of a host that keeps a server of its own with a Moorage inside."""
    tests = str(Path(__file__).parents[1])
    args = (sys.executable, "-c", NESTED, "{port}", str(inner), str(first))
    return ModelSpec(name="host", backend="command", args=args, env={"PYTHONPATH": tests})


def test_the_servers_of_a_moorage_in_a_server_belong_to_the_outer_run(
    reopen: Reopen, folder: Path, pool: range, tmp_path: Path
) -> None:
    inner, inner_pool = tmp_path / "inner", ports()
    said = left_behind(
        folder,
        pool,
        """
        from pathlib import Path
        from recovery.test_strangers import nested
        service = open_()
        service.define(nested(Path(arguments[0]), int(arguments[1])))
        print(service.start("host").pid)
        """,
        inner,
        inner_pool[0],
    )
    (launched,) = events_of(inner, "run.launched")
    chain = psutil.Process(launched.pid).environ()["MOORAGE_RUN"].split(",")
    service = reopen()
    with service.lease("host") as lease:
        assert answered_by(lease.port) == "outer"
        assert service.model("host").pid == int(said)
    with LogReader(folder) as outer_log, LogReader(inner) as inner_log:
        assert [token.partition(":")[0] for token in chain] == [outer_log.log_id, inner_log.log_id]
    assert [e.model for e in events_of(folder, "run.adopted")] == ["host"]
    assert not events_of(folder, "process.reaped")
    assert kinds_of(service) == []
    assert alive(launched.pid)
    service.stop("host", force=True)

    assert not alive(launched.pid)
    assert not alive(int(said))
    with ModelService.open(inner, ports=inner_pool) as again:
        settle(lambda: not state_of(again).runs)
    assert [e.outcome for e in events_of(inner, "run.released")] == ["lost"]


INSIDE = """
import os, subprocess, sys
from pathlib import Path
from moorage import ModelService
from support.services import settle
from recovery.leaving import alive, events_of
folder, first = Path(sys.argv[1]), int(sys.argv[2])
beside = subprocess.Popen(["/bin/sleep", "600"])
with ModelService.open(folder, ports=range(first, first + 10)) as service:
    service.audit(fix=True)
    settle(lambda: beside.poll() is not None)
    settle(lambda: bool(events_of(folder, "process.reaped")))
    service.audit(fix=True)
print("lives", beside.pid, *[event.pid for event in events_of(folder, "process.reaped")])
"""


def test_an_audit_that_fixes_from_inside_a_leaked_server_spares_itself_and_its_parents(
    folder: Path, pool: range, stranger: Stranger
) -> None:
    """A shell in a server of ours whose run is over: the shell is a stray, and so is its child."""
    left_behind(folder, pool, ONE_READY + "\nservice.stop('a')")
    (launching,) = events_of(folder, "run.launching")
    with LogReader(folder) as reader:
        token = f"{reader.log_id}:{launching.run}:{launching.nonce}"
    tests = os.pathsep.join(sys.path)
    shell = stranger(
        "/bin/sh",
        "-c",
        '"$@"; echo shell lives',
        "sh",
        *(sys.executable, "-c", INSIDE, str(folder), str(pool[0])),
        MOORAGE_RUN=token,
        PYTHONPATH=tests,
    )
    said, _ = shell.communicate(timeout=LIMIT_S)
    lives, beside, *reaped = said.splitlines()[0].split()

    assert lives == "lives"
    assert set(reaped) == {beside}
    assert said.splitlines()[1] == "shell lives"
