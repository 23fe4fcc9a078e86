from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorage.protocols import Identity, RunProcess, StopSignal
from moorage.world.handles import Handles
from moorage.world.procfs import ProcSystem, PsutilSystem, UnreadableError, local_system
from moorage.world.tree import Tree
from support.servers import misbehave
from world.conftest import (
    LOG_ID,
    TERM,
    Exit,
    World,
    alive,
    descriptors,
    no_descriptor_left,
    pids_in,
)

NOW = StopSignal(signal.SIGTERM, "leader", 0.05)


def leader(run: RunProcess) -> Identity:
    assert run.identity is not None
    return run.identity


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any run."""
    argv = misbehave(0, "--never-bind")
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        yield process
        process.kill()


def test_a_well_behaved_server_ends_by_its_signal_alone(world: World) -> None:
    run = world.start()
    told = Exit()
    world.processes.watch(run, told)
    report = world.stop(run)

    assert report.clean
    assert report.swept == ()
    assert report.peak_bytes is not None
    assert report.peak_bytes > 1_000_000
    assert told.wait().code == 0
    assert world.ports.stranger(run.ports[0]) is None


def test_a_tree_larger_than_the_descriptors_left_is_stopped_all_the_same(world: World) -> None:
    many = 'for i in $(seq 30); do sleep 600 & done; exec "$@"'
    port = world.port()
    run = world.launch(world.order("/bin/sh", "-c", many, "sh", *misbehave(port)), port)
    world.wait_ready(run)
    before = descriptors()
    with no_descriptor_left(but=12):
        report = world.stop(run)

    assert report.clean
    assert len(report.swept) == 30
    assert not any(map(alive, report.swept))
    assert descriptors().items() <= before.items()


def test_a_handle_that_cannot_be_looked_through_is_closed(world: World) -> None:
    run = world.start()
    before = descriptors()
    handles = Handles(local_system())
    with no_descriptor_left(but=1), pytest.raises(OSError, match="Too many open files"):
        handles.open(leader(run).pid, leader(run).start_ticks)

    assert descriptors() == before


def test_nothing_is_left_in_the_process_table_after_a_stop(world: World) -> None:
    run = world.start()
    world.stop(run)

    assert not Path(f"/proc/{leader(run).pid}").exists()


def test_a_deaf_server_is_killed_when_its_time_is_up(world: World) -> None:
    run = world.start("--ignore-term")
    told = Exit()
    world.processes.watch(run, told)
    report = world.stop(run, NOW)

    assert report.clean
    assert report.seconds >= NOW.wait_s
    assert told.wait().signal == signal.SIGKILL


def test_a_server_that_wants_two_signals_gets_two(world: World) -> None:
    run = world.start("--terms", "2")
    told = Exit()
    world.processes.watch(run, told)
    report = world.stop(run, NOW, TERM)

    assert report.clean
    assert told.wait().code == 0


def test_hurry_goes_on_to_the_kill_at_once(world: World) -> None:
    run = world.start("--ignore-term")
    ear = threading.Event()
    hurry = threading.Event()
    told = Exit()
    world.processes.watch(run, told)
    stopping = threading.Thread(
        target=lambda: (world.stop(run, replace(TERM, wait_s=60), hurry=hurry), ear.set())
    )
    stopping.start()
    hurry.set()

    assert ear.wait(10)
    stopping.join()
    assert told.wait().signal == signal.SIGKILL


def test_a_stopped_process_still_ends(world: World) -> None:
    run = world.start("--stop-self", ready=False)
    os.waitid(os.P_PID, leader(run).pid, os.WSTOPPED | os.WNOWAIT)
    told = Exit()
    world.processes.watch(run, told)
    report = world.stop(run)

    assert report.clean
    assert told.wait().code == 0, "it is woken to hear its signal"


def test_a_stopped_and_deaf_process_is_killed(world: World) -> None:
    run = world.start("--stop-self", "--ignore-term", ready=False)
    os.waitid(os.P_PID, leader(run).pid, os.WSTOPPED | os.WNOWAIT)
    report = world.stop(run, NOW)

    assert report.clean
    assert not alive(leader(run).pid)


@pytest.mark.parametrize(
    "flags",
    [
        ("--child",),
        ("--detached",),
        ("--daemon",),
        ("--child-holds-port",),
        # Without a token: known by its session, or by its parent while that lives. A wiped daemon
        # has neither; nothing could know it.
        ("--child", "--wipe"),
        ("--detached", "--wipe"),
        ("--child-holds-port", "--wipe"),
    ],
    ids=" ".join,
)
def test_no_process_of_the_tree_is_left(world: World, flags: tuple[str, ...]) -> None:
    pids = world.folder / "pids"
    run = world.start("--pids", str(pids), *flags)
    report = world.stop(run)
    children = pids_in(pids)

    assert report.clean
    assert report.swept == tuple(children.values())
    assert not any(map(alive, children.values()))


@pytest.mark.parametrize("kind", ["child", "detached", "daemon", "child-holds-port"])
def test_the_tree_is_swept_when_its_leader_has_ended_by_itself(world: World, kind: str) -> None:
    pids = world.folder / "pids"
    run = world.start(f"--{kind}", "--orphan", "--pids", str(pids), ready=False)
    told = Exit()
    world.processes.watch(run, told)
    told.wait()
    report = world.stop(run)

    assert report.clean
    assert report.swept == tuple(pids_in(pids).values())


def test_a_leader_killed_by_somebody_else_does_not_save_its_tree(world: World) -> None:
    pids = world.folder / "pids"
    run = world.start("--child", "--detached", "--daemon", "--pids", str(pids))
    told = Exit()
    world.processes.watch(run, told)
    os.kill(leader(run).pid, signal.SIGKILL)
    told.wait()
    report = world.stop(run)

    assert report.clean
    assert not any(map(alive, pids_in(pids).values()))


def test_what_wiped_its_environment_is_still_known_when_the_leader_ends(world: World) -> None:
    pids = world.folder / "pids"
    flags = ("--wipe", "--child", "--orphan", "--pids", str(pids))
    run = world.start(*flags, ready=False)
    told = Exit()
    world.processes.watch(run, told)
    told.wait()
    report = world.stop(run)

    assert report.swept == (pids_in(pids)["child"],)
    assert report.clean


def test_what_can_neither_be_proved_nor_disproved_is_shown_and_spared(world: World) -> None:
    pids = world.folder / "pids"
    flags = ("--wipe", "--child-holds-port", "--orphan", "--pids", str(pids))
    run = world.start(*flags, ready=False)
    told = Exit()
    world.processes.watch(run, told)
    told.wait()
    holder = pids_in(pids)["holder"]
    report = world.stop(run, by=world.another_manager(), kill_wait_s=0.2)

    assert report.unproven == (holder,)
    assert report.ports_open == run.ports
    assert not report.clean
    assert alive(holder)
    assert world.stop(run).swept == (holder,), "who remembers it may end it"


def test_a_process_that_may_not_be_looked_into_is_shown_and_spared(world: World) -> None:
    class Closed(ProcSystem):
        """A machine on which no environment may be read."""

        def chain(self, pid: int) -> tuple[str, ...]:
            raise UnreadableError

    pids = world.folder / "pids"
    run = world.start("--child", "--orphan", "--pids", str(pids), ready=False)
    told = Exit()
    world.processes.watch(run, told)
    told.wait()
    manager = world.another_manager(system=Closed())
    report = world.stop(run, by=manager, kill_wait_s=0.2)

    assert report.unproven == (pids_in(pids)["child"],)
    assert report.swept == ()
    assert manager.find(LOG_ID) == []


def test_an_adopted_tree_is_stopped_whole(world: World) -> None:
    pids = world.folder / "pids"
    run = world.start("--child", "--detached", "--daemon", "--pids", str(pids))
    manager = world.another_manager()
    told = Exit()
    manager.watch(run, told)
    report = world.stop(run, by=manager)

    assert report.clean
    assert len(report.swept) == 3
    told.wait()


def test_a_tree_is_found_by_its_token_alone(world: World) -> None:
    pids = world.folder / "pids"
    run = world.start("--daemon", "--pids", str(pids))
    unknown = replace(run, identity=None)
    report = world.stop(unknown, by=world.another_manager())

    assert report.clean
    assert not alive(leader(run).pid)
    assert not alive(pids_in(pids)["daemon"])


def test_a_process_of_a_nested_manager_belongs_to_the_outer_run(world: World) -> None:
    outer = world.order("unused").token
    inner = world.start(env={"MOORAGE_RUN": "unused"})
    order = world.order("unused")
    chain = f"{outer},{order.token}"
    port = world.port()
    argv = ("/usr/bin/env", f"MOORAGE_RUN={chain}", *misbehave(port))
    nested = world.launch(world.order(*argv), port)
    world.wait_ready(nested)
    run = RunProcess(run=1, token=outer, identity=None, ports=())
    report = world.stop(run)

    assert report.swept == (leader(nested).pid,)
    assert alive(leader(inner).pid)


@pytest.mark.parametrize("change", ["start_ticks", "boot_id"])
def test_a_recycled_pid_is_never_signalled(
    world: World, innocent: subprocess.Popen[bytes], change: str
) -> None:
    system = local_system()
    stat = system.stat(innocent.pid)
    assert stat is not None
    true = Identity(innocent.pid, stat.group, stat.session, stat.start_ticks, system.boot_id())
    wrong = replace(true, **{change: stat.start_ticks - 1 if change == "start_ticks" else "x"})
    run = RunProcess(run=1, token=f"{LOG_ID}:1:none", identity=wrong, ports=())
    group = StopSignal(signal.SIGTERM, "group", 0.0)
    report = world.stop(run, TERM, group)

    assert report.clean
    assert report.swept == ()
    assert innocent.poll() is None


def test_ourselves_and_our_ancestors_are_never_signalled(world: World) -> None:
    system = local_system()
    for pid in (os.getpid(), os.getppid()):
        stat = system.stat(pid)
        assert stat is not None
        identity = Identity(pid, stat.group, stat.session, stat.start_ticks, system.boot_id())
        run = RunProcess(run=1, token="none", identity=identity, ports=())
        members = Tree(system, run).scan().proved

        assert os.getpid() not in members
        assert os.getppid() not in members


def test_another_runs_processes_are_not_touched(world: World) -> None:
    one, other = world.start("--detached"), world.start("--detached")
    world.stop(one)

    assert alive(leader(other).pid)
    assert world.wait_ready(other).outcome == "ready"


def test_a_stranger_who_has_the_port_does_not_keep_a_stop_from_being_clean(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        run = world.launch(world.order(*misbehave(port, "--never-bind")), port)
        report = world.stop(run)

    assert report.clean


def test_what_outlives_the_time_for_the_kill_is_named(world: World) -> None:
    run = world.start("--ignore-term")
    report = world.stop(run, NOW, kill_wait_s=0.0)

    assert report.remaining in {(leader(run).pid,), ()}


def test_stopping_what_is_gone_is_clean(world: World) -> None:
    run = world.start()
    first, second = world.stop(run), world.stop(run)

    assert first.clean
    assert second.clean
    assert second.swept == ()


NEGLIGENT = """
    import os, subprocess, sys
    server = subprocess.Popen(["/bin/sleep", "60"], env={"MOORAGE_RUN": "x:1:y"},
                              start_new_session=True)
    print(server.pid, flush=True)
    sys.stdin.read()
"""


def test_a_stop_spends_no_time_on_a_zombie(world: World) -> None:
    system = local_system()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", textwrap.dedent(NEGLIGENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        stat = system.stat(pid)
        assert stat is not None
        identity = Identity(pid, pid, pid, stat.start_ticks, system.boot_id())
        run = RunProcess(run=1, token="x:1:y", identity=identity, ports=())
        report = world.stop(run, replace(TERM, wait_s=60.0), kill_wait_s=60.0)
        left = system.stat(pid)

    assert left is not None
    assert left.state == "Z"
    assert report.clean
    assert report.seconds < 10


def test_a_child_that_nobody_watches_is_reaped_by_its_stop(world: World) -> None:
    run = world.start()
    world.processes.close()
    world.processes = world.another_manager()
    world.stop(run)

    assert not Path(f"/proc/{leader(run).pid}").exists()


def test_runs_that_end_at_once_leave_no_trace_of_them(world: World) -> None:
    before, threads = descriptors(), threading.active_count()
    for _ in range(100):
        run = world.launch(world.order("/bin/sh", "-c", "exit 1"))
        told = Exit()
        world.processes.watch(run, told)
        told.wait()
        world.stop(world.runs.pop())

    assert descriptors() == before
    assert threading.active_count() == threads
    assert world.processes._housekeeper._runs == {}
    assert world.processes._watcher._watched == {}


def test_two_stops_at_once_are_both_clean(world: World) -> None:
    run = world.start("--child", "--daemon")
    reports: list[bool] = []
    threads = [
        threading.Thread(target=lambda: reports.append(world.stop(run).clean)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert reports == [True, True]


def test_a_group_signal_reaches_the_group_and_nobody_else(
    world: World, innocent: subprocess.Popen[bytes]
) -> None:
    argv = ("/bin/sh", "-c", 'trap "echo got it; exit 0" USR1; echo up; while :; do wait; done')
    ear = world.ear()
    run = world.launch(world.order("/bin/sh", "-c", f"exec >{ear.path}; {argv[2]}"))
    ear.hear("up")
    report = world.stop(run, StopSignal(signal.SIGUSR1, "group", 10))

    ear.hear("got it")
    assert report.clean
    assert innocent.poll() is None


def test_a_group_is_signalled_one_by_one_without_pidfds(world: World) -> None:
    ear = world.ear()
    shell = 'trap "echo got it; exit 0" USR1; echo up; while :; do wait; done'
    order = world.order("/bin/sh", "-c", f"exec >{ear.path}; {shell}")
    manager = world.another_manager(pidfds=False)
    run = RunProcess(run=1, token=order.token, identity=manager.launch(order), ports=())
    ear.hear("up")
    before = descriptors()
    report = world.stop(run, StopSignal(signal.SIGUSR1, "group", 10), by=manager)

    ear.hear("got it")
    assert report.clean
    assert descriptors() == before


def test_memory_is_the_peak_of_the_tree_and_remembered(world: World) -> None:
    run = world.start("--eat", str(60 << 20), "--child")
    seen = world.processes.memory(run)
    os.kill(leader(run).pid, signal.SIGKILL)
    report = world.stop(run)

    assert seen is not None
    assert seen > 60 << 20
    assert report.peak_bytes is not None
    assert report.peak_bytes >= seen


def test_memory_of_what_is_gone_is_unknown(world: World) -> None:
    run = RunProcess(run=1, token="none", identity=None, ports=())

    assert world.processes.memory(run) is None


def test_every_live_process_of_a_log_is_found(world: World) -> None:
    pids = world.folder / "pids"
    run = world.start("--daemon", "--pids", str(pids))
    found = {process.pid: process for process in world.processes.find(LOG_ID)}

    assert found.keys() >= {leader(run).pid, pids_in(pids)["daemon"]}
    process = found[leader(run).pid]
    assert (process.run, process.token) == (run.run, run.token)
    assert process.nonce == run.token.split(":")[2]
    assert process.start_ticks == leader(run).start_ticks
    assert "misbehave" in process.command
    assert world.processes.find("0" * 16) == []


def test_what_is_no_token_is_not_found(world: World) -> None:
    port = world.port()
    argv = ("/usr/bin/env", f"MOORAGE_RUN={LOG_ID}:x:y,{LOG_ID}", *misbehave(port))
    run = world.launch(world.order(*argv), port)
    world.wait_ready(run)

    assert leader(run).pid not in {found.pid for found in world.processes.find(LOG_ID)}


def test_stopping_works_without_pidfds_and_without_proc(world: World) -> None:
    pids = world.folder / "pids"
    manager = world.another_manager(system=PsutilSystem(), pidfds=False)
    port = world.port()
    order = world.order(*misbehave(port, "--child", "--daemon", "--pids", str(pids)))
    identity = manager.launch(order)
    run = RunProcess(run=order.run, token=order.token, identity=identity, ports=(port,))
    assert world.wait_ready(replace(run, identity=None)).outcome == "ready"
    report = world.stop(run, by=manager)

    assert report.clean
    assert len(report.swept) == 2
    assert report.peak_bytes is not None


def test_a_tiny_server_is_stopped_in_milliseconds(world: World) -> None:
    def stop_once() -> float:
        run = world.start()
        started = time.monotonic()
        world.stop(run)
        return time.monotonic() - started

    assert min(stop_once() for _ in range(5)) < 0.05
