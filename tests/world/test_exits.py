from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from moorage.protocols import ExitStatus, Identity, RunProcess
from moorage.world.exits import ExitWatcher
from moorage.world.handles import Handles
from moorage.world.processes import LocalProcesses
from moorage.world.procfs import local_system
from world.conftest import Exit, World, alive, descriptors, no_descriptor_left


def leader(run: RunProcess) -> Identity:
    assert run.identity is not None
    return run.identity


def test_an_exit_code_is_told_by_the_watcher(world: World) -> None:
    run = world.launch(world.order("/bin/sh", "-c", "exit 7"))
    told = Exit()
    world.processes.watch(run, told)

    assert told.wait() == ExitStatus(code=7)
    assert told.threads == ["moorage-exits"]


def test_a_signal_is_told_as_a_signal(world: World) -> None:
    run = world.start()
    told = Exit()
    world.processes.watch(run, told)
    os.kill(leader(run).pid, signal.SIGKILL)

    assert told.wait() == ExitStatus(signal=9)


def test_an_ended_server_is_reaped_before_its_end_is_told(world: World) -> None:
    run = world.launch(world.order("/bin/true"))
    gone: list[bool] = []
    told = threading.Event()

    def on_exit(_: ExitStatus) -> None:
        gone.append(not Path(f"/proc/{leader(run).pid}").exists())
        told.set()

    world.processes.watch(run, on_exit)

    assert told.wait(10)
    assert gone == [True]


def test_a_server_that_ended_before_it_was_watched_is_told_with_its_code(world: World) -> None:
    run = world.launch(world.order("/bin/sh", "-c", "exit 5"))
    world.stop(run)
    early = world.launch(world.order("/bin/sh", "-c", "exit 6"))
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, leader(run).pid, os.WEXITED)
    told = Exit()
    world.processes.watch(early, told)

    assert told.wait() == ExitStatus(code=6)


def test_every_watcher_gets_the_end_of_its_own_run_once(world: World) -> None:
    told = [Exit() for _ in range(20)]
    for code, exit_ in enumerate(told):
        world.processes.watch(world.launch(world.order("/bin/sh", "-c", f"exit {code}")), exit_)

    assert [exit_.wait().code for exit_ in told] == list(range(20))
    assert {len(exit_.statuses) for exit_ in told} == {1}


def test_a_callback_that_raises_does_not_end_the_watch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = Exit()

    def raises(status: ExitStatus) -> None:
        first(status)
        raise RuntimeError("on purpose")

    world.processes.watch(world.launch(world.order("/bin/true")), raises)
    first.wait()  # the next is told only once the thread has dealt with what this one raised
    told = Exit()
    world.processes.watch(world.launch(world.order("/bin/sh", "-c", "exit 3")), told)

    assert told.wait() == ExitStatus(code=3)
    assert "on purpose" in caplog.text


def test_an_exit_is_told_though_no_descriptor_is_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run = world.start()
    told = Exit()
    world.processes.watch(run, told)
    with no_descriptor_left():
        os.kill(leader(run).pid, signal.SIGKILL)
        status = told.wait()

    assert status == ExitStatus(signal=9)
    assert "Too many open files" in caplog.text, "who else was there could not be remembered"


def test_the_end_of_an_adopted_server_is_told(world: World) -> None:
    run = world.start()
    told = Exit()
    world.another_manager().watch(run, told)
    os.kill(leader(run).pid, signal.SIGKILL)

    told.wait()
    assert not alive(leader(run).pid)
    assert told.threads == ["moorage-exits"]


@pytest.mark.parametrize("change", ["start_ticks", "boot_id"])
def test_a_leader_that_is_another_process_now_is_told_as_ended(world: World, change: str) -> None:
    run = world.start()
    wrong = replace(leader(run), **{change: 1 if change == "start_ticks" else "other"})
    told = Exit()
    world.another_manager().watch(replace(run, identity=wrong), told)

    assert told.wait() == ExitStatus()
    assert alive(leader(run).pid)


def test_a_run_without_a_leader_cannot_be_watched(world: World) -> None:
    run = RunProcess(run=1, token="a:1:b", identity=None, ports=())

    with pytest.raises(ValueError, match="no leader"):
        world.processes.watch(run, Exit())


def test_how_a_server_of_a_dead_manager_ended_is_told_or_unknown(
    tmp_path: Path, world: World
) -> None:
    program = """
        import os
        from pathlib import Path
        from moorage.protocols import LaunchOrder
        from moorage.world.processes import LocalProcesses
        order = LaunchOrder(model="m", run=1, token="x:1:y", argv=("/bin/sleep", "60"),
                            log_file=Path("run-1.log"))
        print(LocalProcesses().launch(order))
        os._exit(0)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    identity = eval(said, {"Identity": Identity})
    run = RunProcess(run=1, token="x:1:y", identity=identity, ports=())
    told = Exit()
    world.processes.watch(run, told)
    report = world.stop(run)

    assert report.clean
    assert told.wait() in {ExitStatus(signal=15), ExitStatus()}


HOST = """
    import os, signal, sys, threading
    from contextlib import suppress
    from pathlib import Path
    from moorage.protocols import LaunchOrder, RunProcess
    from moorage.world.processes import LocalProcesses
    {before}
    processes = LocalProcesses()
    order = LaunchOrder(model="m", run=1, token="x:1:y", argv=("/bin/sh", "-c", "exit 7"),
                        log_file=Path("run-1.log"))
    identity = processes.launch(order)
    {after}
    told = threading.Event()
    def on_exit(status):
        print(status.code, status.signal)
        told.set()
    processes.watch(RunProcess(run=1, token="x:1:y", identity=identity, ports=()), on_exit)
    if not told.wait(10):
        print("nothing was told")
    processes.close()
"""


def host(tmp_path: Path, before: str = "", after: str = "") -> str:
    program = textwrap.dedent(HOST).format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


def test_a_host_that_ignores_its_children_gets_no_wrong_code(tmp_path: Path) -> None:
    said = host(tmp_path, before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)")

    assert said in {"None None", "7 None"}


def test_a_host_that_reaps_everything_gets_no_wrong_code(tmp_path: Path) -> None:
    # It may come too late: the watcher reaps as well.
    reap = "with suppress(ChildProcessError): os.waitid(os.P_ALL, 0, os.WEXITED)"
    said = host(tmp_path, after=reap)

    assert said in {"None None", "7 None"}


def test_a_forked_copy_of_the_host_changes_nothing(tmp_path: Path) -> None:
    lines = (
        "import warnings",
        "warnings.simplefilter('ignore')  # forking with threads is the point",
        "pid = os.fork()",
        "if pid == 0:",
        "    processes.close()",
        "    os._exit(0)",
        "os.waitpid(pid, 0)",
    )

    assert host(tmp_path, after="\n".join(lines)) == "7 None"


def test_watching_what_has_ended_and_was_stopped_remembers_nothing(world: World) -> None:
    run = world.start()
    world.stop(run)
    told = Exit()
    world.processes.watch(run, told)

    assert told.wait() == ExitStatus()
    assert world.processes._housekeeper._runs == {}


def test_closing_twice_ends_the_threads_and_closes_every_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    processes = LocalProcesses()
    names = {thread.name for thread in threading.enumerate()}
    processes.close()
    processes.close()

    assert {"moorage-exits", "moorage-housekeeper"} <= names
    assert not any(t.name.startswith("moorage-") for t in threading.enumerate())
    assert descriptors() == before


def test_the_watch_can_be_closed_from_a_callback() -> None:
    system = local_system()
    watcher = ExitWatcher()
    child = subprocess.Popen(["/bin/true"])
    child.returncode = 0
    stat = system.stat(child.pid)
    assert stat is not None
    handle = Handles(system).open(child.pid, stat.start_ticks)
    assert handle is not None
    watcher.add("run", handle)
    closed = threading.Event()
    watcher.tell("run", lambda _: (watcher.close(), closed.set())[0])

    assert closed.wait(10)
    watcher.close()


def test_servers_are_left_alone_by_close(world: World) -> None:
    run = world.start()
    world.processes.close()
    world.processes = world.another_manager()

    assert world.wait_ready(run).outcome == "ready"
    assert alive(leader(run).pid)


def test_exits_are_told_without_pidfds_too(world: World) -> None:
    manager = world.another_manager(pidfds=False)
    order = world.order("/bin/sh", "-c", "exit 4")
    run = RunProcess(run=order.run, token=order.token, identity=manager.launch(order), ports=())
    told = Exit()
    manager.watch(run, told)

    assert told.wait() == ExitStatus(code=4)
