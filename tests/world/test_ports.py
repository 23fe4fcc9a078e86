from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from moorage import LoadError, ModelService, ModelSpec
from moorage.protocols import Listener, Readiness, RunProcess
from moorage.testing import FakeProcesses, Script, fake_parts
from moorage.world import sockets
from moorage.world.ports import LocalPorts, pool_overlaps_ephemeral, unbindable
from support.servers import HeldPort, misbehave
from support.services import LIMIT_S, gone, settle
from world.conftest import World, descriptors, no_descriptor_left, pids_in


@pytest.fixture
def port() -> Iterator[int]:
    held = HeldPort()
    yield held.number
    held.close()


def listen(host: str, port: int, *, v6only: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6only))
    s.bind((host, port))
    s.listen()
    return s


# --- strangers ---


def test_without_a_descriptor_ports_count_as_free_and_the_registry_lives(tmp_path: Path) -> None:
    processes = FakeProcesses()
    parts = fake_parts(processes=processes, ports=LocalPorts())
    with ModelService.open(tmp_path / "state", parts=parts) as service:
        service.define(ModelSpec(name="a", backend="fake"))
        processes.will("a", Script(refuse="too many open files"))
        with no_descriptor_left(), pytest.raises(LoadError, match="too many open files"):
            service.lease("a")

        assert service.model("a").state == "backoff"


def test_without_a_descriptor_nobody_is_blamed_for_an_exit(port: int) -> None:
    process = RunProcess(run=1, token="t", identity=None, ports=(port,))
    ports = LocalPorts()
    with closing(listen("127.0.0.1", port)):
        with no_descriptor_left():
            unknown = ports.lost(process)
        found = ports.lost(process)

    assert unknown is None
    assert found is not None


def test_a_free_port_has_no_stranger(port: int) -> None:
    assert LocalPorts().stranger(port) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_whoever_listens_is_named(port: int, host: str) -> None:
    with closing(listen(host, port)):
        found = LocalPorts().stranger(port)

    assert found is not None
    assert (found.port, found.pid) == (port, os.getpid())
    assert "python" in found.command or "pytest" in found.command


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_a_listener_on_another_address_is_no_obstacle(port: int, host: str) -> None:
    with closing(listen(host, port, v6only=True)):
        assert LocalPorts().stranger(port) is None


def test_a_server_that_just_ended_is_no_obstacle(port: int) -> None:
    with closing(listen("127.0.0.1", port)) as server:
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # closes first, so TIME_WAIT is on the server's side
        client.close()

    assert LocalPorts().stranger(port) is None


def test_a_port_that_is_bound_without_listening_is_taken() -> None:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]

        assert LocalPorts().stranger(port) == Listener(port, None, "")


def test_netlink_and_proc_agree(port: int) -> None:
    for host, v6only in (("127.0.0.1", False), ("0.0.0.0", False), ("::", False)):
        with closing(listen(host, port, v6only=v6only)) as s:
            inode = os.fstat(s.fileno()).st_ino
            by_netlink = list(sockets._from_netlink(port))
            by_proc = list(sockets._from_proc(port))

        assert by_netlink == by_proc
        assert [found.inode for found in by_netlink] == [inode]
        assert by_netlink[0].exact == (host == "127.0.0.1")


def test_psutil_sees_a_listener_too(port: int) -> None:
    with closing(listen("127.0.0.1", port)):
        found = list(sockets._from_psutil(port))

    assert [(s.port, s.pid, s.exact) for s in found] == [(port, os.getpid(), True)]


def test_an_exact_listener_answers_before_a_wildcard(port: int) -> None:
    with closing(listen("127.0.0.1", port)) as exact:
        found = sockets.answering(port)

        assert [s.inode for s in found] == [os.fstat(exact.fileno()).st_ino]


def test_sockets_only_for_ipv6_never_answer(port: int) -> None:
    with closing(listen("::", port, v6only=True)):
        assert sockets.answering(port) == []


def test_ports_of_the_ephemeral_range_are_named() -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    low, high = map(int, text.split())

    assert pool_overlaps_ephemeral(range(low - 2, low + 2)) == (low, low + 1)
    assert pool_overlaps_ephemeral(range(high, high + 2)) == (high,)
    assert pool_overlaps_ephemeral(range(1000, 1010)) == ()


def test_ports_this_user_may_not_bind_are_named(port: int) -> None:
    with closing(listen("127.0.0.1", port)):
        assert unbindable([port]) == ()


# --- readiness ---


def test_a_server_that_answers_is_ready(world: World) -> None:
    run = world.start(ready=False)

    assert world.wait_ready(run) == Readiness("ready", "HTTP 200")


def test_ready_is_told_without_a_manager_too(world: World) -> None:
    run = world.start(ready=False)
    world.ports = LocalPorts()

    assert world.wait_ready(run).outcome == "ready"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_is_ready(world: World, host: str) -> None:
    run = world.start("--host", host, ready=False)

    assert world.wait_ready(run).outcome == "ready"


def test_a_server_is_loading_until_it_says_otherwise(world: World) -> None:
    ready_file = world.folder / "ready"
    run = world.start("--ready-file", str(ready_file), ready=False)
    world.bound(run)
    early = world.wait_ready(run, timeout_s=0.3)
    ready_file.touch()

    assert early == Readiness("timeout", "last seen: HTTP 503")
    assert world.wait_ready(run).outcome == "ready"


def test_a_server_that_binds_late_is_waited_for(world: World) -> None:
    run = world.start("--bind-after", "0.15", ready=False)

    assert world.wait_ready(run).outcome == "ready"


@pytest.mark.parametrize("status", [204, 299])
def test_any_success_is_ready(world: World, status: int) -> None:
    run = world.start("--health-status", str(status), ready=False)

    assert world.wait_ready(run).outcome == "ready"


@pytest.mark.parametrize("status", [302, 401, 404, 500])
def test_no_other_answer_is_ready_and_redirects_are_not_followed(world: World, status: int) -> None:
    run = world.start("--health-status", str(status), ready=False)
    world.bound(run)
    found = world.wait_ready(run, timeout_s=0.3)

    assert found == Readiness("timeout", f"last seen: HTTP {status}")


@pytest.mark.parametrize("flag", ["--never-bind", "--mute", "--drip", "--stop-self"])
def test_a_server_that_never_answers_ends_at_the_deadline(world: World, flag: str) -> None:
    run = world.start(flag, ready=False)
    started = time.monotonic()
    found = world.wait_ready(run, timeout_s=0.3)

    assert found.outcome == "timeout"
    assert found.detail.startswith("last seen: ")
    assert 0.3 <= time.monotonic() - started < 5


@pytest.mark.parametrize("flag", ["--never-bind", "--mute", "--drip"])
def test_a_cancelled_wait_ends_at_once(world: World, flag: str) -> None:
    run = world.start(flag, ready=False)
    cancelled, found = threading.Event(), list[Readiness]()
    waiting = threading.Thread(
        target=lambda: found.append(world.wait_ready(run, timeout_s=60, cancelled=cancelled))
    )
    waiting.start()
    cancelled.set()
    waiting.join(LIMIT_S)

    assert found == [Readiness("cancelled")]


def test_a_wait_that_is_cancelled_already_asks_nobody(world: World) -> None:
    cancelled = threading.Event()
    cancelled.set()
    run = world.start(ready=False)

    assert world.wait_ready(run, cancelled=cancelled) == Readiness("cancelled")


def test_a_stranger_who_answers_ends_the_run(world: World) -> None:
    stranger = world.start()
    port = stranger.ports[0]
    run = world.launch(world.order(*misbehave(port, "--never-bind")), port)
    found = world.wait_ready(run)

    assert stranger.identity is not None
    assert found.outcome == "lost"
    assert f"port {port} is answered by pid {stranger.identity.pid}" in found.detail
    assert "misbehave" in found.detail


@pytest.mark.parametrize("flag", ["--mute", "--loading=60"])
def test_a_stranger_who_gives_no_answer_ends_the_run_as_well(world: World, flag: str) -> None:
    stranger = world.start(*flag.split("="), ready=False)
    assert stranger.identity is not None
    world.wait_ready(stranger, timeout_s=0.3)
    run = world.launch(world.order(*misbehave(stranger.ports[0], "--never-bind")))
    run = replace(run, ports=stranger.ports)

    assert world.wait_ready(run).outcome == "lost"


def test_a_stranger_who_shares_the_port_ends_the_run(world: World) -> None:
    stranger = world.start("--share")
    port, ear = stranger.ports[0], world.ear()
    order = world.order(*misbehave(port, "--share", "--tell", str(ear.path)))
    run = world.launch(order, port)
    ear.hear(f"serving {port}")
    found = world.wait_ready(run)

    assert found.outcome == "lost"
    assert stranger.identity is not None
    assert f"pid {stranger.identity.pid} " in found.detail


def test_a_port_shared_by_its_own_tree_is_ready(world: World) -> None:
    port, ear = world.port(), world.ear()
    argv = misbehave(port, "--share", "--tell", str(ear.path))
    run = world.launch(world.order("/bin/sh", "-c", '"$@" & exec "$@"', "sh", *argv), port)
    ear.hear(f"serving {port}", times=2)

    assert world.wait_ready(run).outcome == "ready"
    assert len(sockets.answering(port)) == 2


def test_without_the_owner_check_any_answer_is_ready(world: World) -> None:
    stranger = world.start()
    run = world.launch(world.order(*misbehave(0, "--never-bind")))
    run = replace(run, ports=stranger.ports)

    assert world.wait_ready(run, owner_check=False).outcome == "ready"


@pytest.mark.parametrize("kind", ["daemon", "detached"])
def test_a_listener_anywhere_in_the_tree_is_ours(world: World, kind: str) -> None:
    pids = world.folder / "pids"
    port = world.port()
    shell = 'setsid "$@" & wait' if kind == "detached" else '(setsid "$@" &); sleep 60'
    run = world.launch(world.order("/bin/sh", "-c", shell, "sh", *misbehave(port)), port)

    assert world.wait_ready(run).outcome == "ready"
    assert not pids.exists()


def test_a_dead_leader_is_not_ready_though_its_child_answers(world: World) -> None:
    pids = world.folder / "pids"
    flags = ("--child-holds-port", "--orphan", "--pids", str(pids))
    run = world.start(*flags, ready=False)
    world.bound(run)
    settle(lambda: gone(run.identity.pid if run.identity else 0))
    found = world.wait_ready(run, timeout_s=0.3)

    assert found.outcome == "timeout"
    assert pids_in(pids)


def test_proxies_of_the_environment_are_not_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    run = world.start(ready=False)

    assert world.wait_ready(run).outcome == "ready"


def test_a_health_path_cannot_add_a_header(world: World) -> None:
    run = world.start(ready=False)
    world.bound(run)
    found = world.wait_ready(run, health_path="/x\r\nHost: y\r\n\r\nGET /health", timeout_s=0.3)

    assert found == Readiness("timeout", "last seen: HTTP 404")


def test_nothing_is_held_open_after_a_wait(world: World) -> None:
    run = world.start()
    before = descriptors()
    world.wait_ready(run)
    world.wait_ready(replace(run, ports=(world.port(),)), timeout_s=0.05)
    world.held.pop().close()

    assert descriptors() == before


def test_a_wait_goes_on_while_no_descriptor_is_left(world: World) -> None:
    run = world.start(ready=False)
    with no_descriptor_left():
        found = world.wait_ready(run, timeout_s=0.1)

    assert found.outcome == "timeout"
    assert "Too many open files" in found.detail
    assert world.wait_ready(run).outcome == "ready"


def test_a_run_without_a_known_leader_can_be_ready(world: World) -> None:
    run = world.start(ready=False)

    assert world.wait_ready(replace(run, identity=None)).outcome == "ready"


def test_readiness_is_told_within_milliseconds(world: World) -> None:
    def once() -> float:
        ready_file, ear = world.folder / f"ready-{time.monotonic_ns()}", world.ear()
        flags = ("--ready-file", str(ready_file), "--tell", str(ear.path))
        run: RunProcess = world.start(*flags, ready=False)
        ear.hear("serving")
        touched: list[float] = []

        def touch() -> None:
            ready_file.touch()
            touched.append(time.monotonic())

        timer = threading.Timer(0.05, touch)
        timer.start()
        assert world.wait_ready(run).outcome == "ready"
        late = time.monotonic()
        timer.join()
        return late - touched[0]

    assert min(once() for _ in range(5)) < 0.02
