"""A host that forks: the child may not use the service, and its end is nothing to the parent.

Forking a process with threads is what hosts do, and what Python warns of; the tests do it all the
same, in programs of their own, as a child of pytest would take its state with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from moorage import ModelService
from support.services import LIMIT_S, check_log, gone, ports, settle

PROGRAM = """
import multiprocessing, os, signal, sys, threading, time, warnings
sys.path[:0] = sys.argv[3:]
warnings.simplefilter("ignore")
from moorage import ForkedError, ModelService
from support.services import server
first = int(sys.argv[1])
service = ModelService.open("state", ports=range(first, first + 20), max_loaded=2)
service.define(server("m"), server("n"), server("slow", "--never-bind"))
service.start("m")
print(service.model("m").pid, flush=True)

CALLS = [
    lambda: service.lease("m"), lambda: service.lease("n"), lambda: service.lease_all("m", "n"),
    lambda: service.start("m"), lambda: service.stop("m"), lambda: service.pin("m"),
    lambda: service.remove("m"), lambda: service.define(server("x")),
    lambda: service.subscribe(print), lambda: service.close(), lambda: service.reset("m"),
    lambda: service.set_limits(max_loaded=3), lambda: service.audit(),
]

def refused():
    began = time.monotonic()
    for number, call in enumerate(CALLS):
        try:
            call()
        except ForkedError:
            continue
        raise AssertionError(f"call {number} was not refused")
    service.status(), service.model("m")
    assert time.monotonic() - began < 10  # a lease that is waited for in vain takes longer

def fork(work, how):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        how()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def still_works():
    with service.lease("m") as lease:
        assert not lease.lost
    with service.lease("n"):
        pass
    service.stop("n")

exec(sys.argv[2])
service.close()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    pids: list[int] = []

    def run(body: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        paths = [path for path in sys.path if path]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(ports().start), body, *paths],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        pids.extend(map(int, done.stdout.split()))

        assert done.returncode == code, done.stderr
        assert done.stderr == ""
        return done

    yield run
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


ENDS = {
    "exits": "sys.exit(0)",
    "exits at once": "os._exit(0)",
    "is killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_child_is_refused_and_its_end_does_not_disturb_the_parent(
    end: str, program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    program(
        f"""
def how():
    {ENDS[end]}
for _ in range(3):
    assert fork(refused, how) in (0, -9)
    still_works()
"""
    )

    assert check_log(tmp_path / "state")[-1].event.kind == "service.closed"


def test_a_child_of_multiprocessing_is_refused(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program(
        """
for _ in range(3):
    child = multiprocessing.get_context("fork").Process(target=refused)
    child.start()
    child.join()
    assert child.exitcode == 0
    still_works()
"""
    )


def test_leases_that_a_child_inherits_are_still_the_parents(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program(
        """
lease = service.lease("m")
def work():
    lease.release()
    lease.release()
assert fork(work, lambda: os._exit(0)) == 0
assert service.model("m").leases == 1 and not lease.lost
lease.release()
assert service.model("m").leases == 0
still_works()
"""
    )


def test_a_fork_while_other_threads_use_the_service_harms_neither(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program(
        """
stop = threading.Event()
errors = []
def use(name):
    try:
        while not stop.is_set():
            with service.lease(name, timeout_s=10):
                pass
            if name == "n":
                service.stop("n")
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=use, args=(name,)) for name in "mmn"]
for thread in threads:
    thread.start()
for _ in range(30):
    assert fork(refused, lambda: os._exit(0)) == 0
stop.set()
for thread in threads:
    thread.join()
assert not errors, errors
still_works()
"""
    )


def test_a_child_may_open_a_service_of_its_own(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program(
        """
def work():
    with ModelService.open("other", ports=range(first + 20, first + 30)) as mine:
        mine.define(server("m"))
        with mine.lease("m") as lease:
            assert lease.port == first + 20
assert fork(work, lambda: os._exit(0)) == 0
still_works()
"""
    )


def test_a_child_leaves_the_block_of_its_parents_service_as_it_wants_to(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program(
        """
import asyncio
async def leave():
    async with service:
        raise SystemExit(7)
def blocking():
    with service:
        sys.exit(7)
for work in (blocking, lambda: asyncio.run(leave())):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os._exit(getattr(error, "code", 1))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    still_works()
"""
    )


def test_the_state_of_a_killed_parent_can_be_opened_while_its_child_lives(
    program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = program(
        """
child = os.fork()
if child == 0:
    for fd in (0, 1, 2):
        os.close(fd)
    signal.alarm(30)
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), 9)
""",
        code=-9,
    )
    leader, child = map(int, done.stdout.split())

    assert not gone(child)
    ModelService.open(tmp_path / "state", ports=ports()).close()
    assert not gone(child)
    settle(lambda: gone(leader))
    os.kill(child, signal.SIGKILL)
    assert check_log(tmp_path / "state")[-1].event.kind == "service.closed"
