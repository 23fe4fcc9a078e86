"""Servers that will not go, go by themselves, never come, or are not the ones that answer."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from moorage import (
    LoadCancelledError,
    LoadError,
    ModelService,
    ModelSpec,
    ModelUnavailableError,
    PortPoolExhaustedError,
    WaitTimeoutError,
)
from support.servers import Ear
from support.services import LIMIT_S, Outcome, Seen, gone, join, ports, server, settle, state_of

SOON_S = 4.0  # "at once", on processors that others use as well; what is waited for in vain, 5


def pids_of(file: Path) -> dict[str, int]:
    """Return the children that a server wrote down, by kind."""
    return {kind: int(pid) for kind, pid in map(str.split, file.read_text().splitlines())}


def answering(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_again(service: ModelService) -> None:
    status = service.status()
    assert (status.ports_held, status.loaded) == ({}, 0)
    ((first, last),) = state_of(service).pool
    assert status.ports_free == last - first + 1


# --- that will not go -----------------------------------------------------------------------------


def test_a_server_deaf_to_sigterm_is_killed_at_its_deadline(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--ignore-term", stop_timeout_s=0.4))
    pid = service.start("m").pid
    began = time.monotonic()
    service.stop("m")
    took = time.monotonic() - began

    assert 0.4 <= took < 0.4 + SOON_S
    assert gone(pid or 0)
    free_again(service)


def test_a_deaf_server_is_killed_at_once_when_the_stop_is_forced(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--ignore-term", stop_timeout_s=60))
    service.start("m")
    lease = service.lease("m")
    began = time.monotonic()
    service.stop("m", force=True)

    assert time.monotonic() - began < SOON_S
    assert lease.lost
    lease.release()
    free_again(service)


def test_a_force_hurries_a_stop_that_is_waiting(opened: Callable[..., ModelService]) -> None:
    service = opened(server("m", "--ignore-term", stop_timeout_s=60))
    service.start("m")
    patient = Outcome(lambda: service.stop("m"))
    settle(lambda: service.model("m").state == "stopping")
    began = time.monotonic()
    service.stop("m", force=True)
    patient.get()

    assert time.monotonic() - began < SOON_S
    free_again(service)


def test_a_stop_waits_for_leases_and_new_leases_get_the_next_run(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m"))
    lease = service.lease("m")
    stop = Outcome(lambda: service.stop("m"))
    settle(lambda: service.model("m").state == "draining")
    after = Outcome(lambda: service.lease("m"))
    settle(lambda: service.status().waiting == 1)
    lost, answered = lease.lost, answering(lease.port)
    lease.release()
    stop.get()
    again = after.get()

    assert (lost, answered) == (False, True)
    assert again.run > lease.run
    again.release()


@pytest.mark.parametrize(
    "flags", [("--daemon",), ("--detached",), ("--child",), ("--daemon", "--child")]
)
@pytest.mark.parametrize("end", ["stop", "force", "kill"])
def test_no_member_of_the_tree_outlives_its_run(
    flags: tuple[str, ...], end: str, opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    written = tmp_path / "pids"
    service = opened(server("m", *flags, "--pids", str(written)))
    leader = service.start("m").pid or 0
    children = pids_of(written)
    alive = [not gone(pid) for pid in children.values()]
    if end == "kill":
        os.kill(leader, signal.SIGKILL)
        settle(lambda: service.model("m").run is None)
    else:
        service.stop("m", force=end == "force")

    assert alive == [True] * len(flags)
    assert all(gone(pid) for pid in (leader, *children.values()))
    free_again(service)


def test_a_child_that_keeps_the_port_is_ended_before_the_port_is_given_back(
    opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    written = tmp_path / "pids"
    service = opened(server("m", "--child-holds-port", "--pids", str(written)))
    status = service.start("m")
    settle(written.exists)
    os.kill(status.pid or 0, signal.SIGKILL)
    settle(lambda: service.model("m").run is None)

    assert all(gone(pid) for pid in pids_of(written).values())
    assert not answering(status.ports[0])
    free_again(service)


# --- that go by themselves ------------------------------------------------------------------------


def test_a_leader_killed_by_somebody_else_loses_its_leases_at_once_and_starts_again(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m"))
    lease = service.lease("m")
    pid = service.model("m").pid or 0
    before = lease.lost
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    settle(lambda: lease.lost)
    took = time.monotonic() - began
    with service.lease("m") as again:
        answered = answering(again.port)

    assert (before, answered) == (False, True)
    assert took < SOON_S
    assert again.run > lease.run
    lease.release()


def test_a_leader_killed_while_it_loads_answers_all_its_waiters_at_once(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--never-bind"))
    waiters = [Outcome(lambda: service.lease("m")) for _ in range(5)]
    settle(lambda: service.status().waiting == 5 and service.model("m").state == "loading")
    os.kill(service.model("m").pid or 0, signal.SIGKILL)
    began = time.monotonic()
    errors = []
    for waiter in waiters:
        with pytest.raises(LoadError) as caught:
            waiter.get()
        errors.append((caught.value.run, caught.value.signal, caught.value.stage))

    assert time.monotonic() - began < SOON_S
    assert errors == [(1, signal.SIGKILL, "load")] * 5
    free_again(service)


def test_a_server_that_ends_while_it_serves_is_started_again_within_its_budget(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", crash_budget=3))
    service.start("m")
    service.set_limits(max_loaded=2)
    for _ in range(2):
        run = service.model("m").run
        os.kill(service.model("m").pid or 0, signal.SIGKILL)
        settle(lambda run=run: service.model("m").run != run)  # type: ignore[misc]
        service.start("m")
    os.kill(service.model("m").pid or 0, signal.SIGKILL)
    settle(lambda: service.model("m").run is None)

    assert service.model("m").state == "failed"
    with pytest.raises(ModelUnavailableError) as caught:
        service.lease("m")
    assert caught.value.status == "failed"
    assert "signal 9" in caught.value.last
    service.reset("m")
    service.lease("m").release()


def test_a_crash_loop_is_given_up_and_writes_a_bounded_number_of_events(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--exit", "1", restart="always", crash_budget=2))
    seen = Seen(service)
    with pytest.raises(LoadError):
        service.start("m")
    seen.wait("model.failed")
    head = service.status().seq
    for _ in range(100):
        with pytest.raises(ModelUnavailableError):
            service.lease("m")

    assert service.status().seq == head < 30
    free_again(service)


# --- that never come ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags", [("--never-bind",), ("--health-status", "503"), ("--mute",), ("--drip",)]
)
def test_a_server_that_never_gets_ready_ends_at_its_load_timeout(
    flags: tuple[str, ...], opened: Callable[..., ModelService]
) -> None:
    service = opened(server("m", *flags, load_timeout_s=0.5))
    began = time.monotonic()
    with pytest.raises(LoadError) as caught:
        service.start("m")

    assert 0.5 <= time.monotonic() - began < 0.5 + 2 * SOON_S
    assert caught.value.stage == "ready"
    free_again(service)


@pytest.mark.parametrize("flags", [("--never-bind",), ("--mute",), ("--drip",)])
@pytest.mark.parametrize("how", ["stop", "force", "hold", "remove"])
def test_a_stop_during_a_load_acts_at_once(
    flags: tuple[str, ...], how: str, opened: Callable[..., ModelService]
) -> None:
    service = opened(server("m", *flags))
    waiter = Outcome(lambda: service.lease("m"))
    settle(lambda: service.model("m").state == "loading")
    settle(lambda: service.model("m").pid is not None)
    began = time.monotonic()
    if how == "remove":
        service.remove("m")
    else:
        service.stop("m", force=how == "force", hold=how == "hold")
    with pytest.raises(LoadCancelledError):
        waiter.get()

    assert time.monotonic() - began < SOON_S
    free_again(service)


def test_a_caller_who_leaves_a_load_does_not_end_it_for_the_others(
    opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    service = opened(server("m", "--ready-file", str(ready)))
    other = Outcome(lambda: service.lease("m"))
    settle(lambda: service.model("m").state == "loading")
    with pytest.raises(WaitTimeoutError, match="loading"):
        service.lease("m", timeout_s=0.1)
    ready.touch()

    with other.get() as lease:
        assert lease.run == 1


# --- that are not the ones that answer ------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[Callable[[int], socket.socket]]:
    sockets: list[socket.socket] = []

    def listen(port: int) -> socket.socket:
        sockets.append(socket.create_server(("127.0.0.1", port)))
        return sockets[-1]

    yield listen
    for one in sockets:
        one.close()


def test_a_port_on_which_a_stranger_listens_is_passed_over_and_recorded(
    opened: Callable[..., ModelService], stranger: Callable[[int], socket.socket]
) -> None:
    pool = ports()
    stranger(pool.start)
    service = opened(server("m"), ports=pool)
    status = service.start("m")

    assert status.ports == (pool.start + 1,)
    blocked = [e.event for e in service.events() if e.event.kind == "port.blocked"]
    assert [(b.port, b.pid) for b in blocked] == [(pool.start, os.getpid())]


def test_a_pool_of_strangers_is_exhausted_until_one_leaves(
    opened: Callable[..., ModelService], stranger: Callable[[int], socket.socket]
) -> None:
    first = ports().start
    service = opened(server("m"), ports=range(first, first + 2))
    held = [stranger(first), stranger(first + 1)]
    with pytest.raises(PortPoolExhaustedError):
        service.start("m")
    held[1].close()

    assert service.start("m").ports == (first + 1,)


def test_a_port_that_is_lost_between_choice_and_bind_costs_another_run_and_no_failure(
    opened: Callable[..., ModelService], stranger: Callable[[int], socket.socket], tmp_path: Path
) -> None:
    pool = ports()
    ear = Ear(tmp_path / "ear")
    script = 'echo "port $1" >"$0"; read _ <"$0.go"; shift; exec "$@"'
    spec = server("m")
    go = tmp_path / "ear.go"
    os.mkfifo(go)
    service = opened(
        ModelSpec(
            name="m",
            backend="command",
            args=("sh", "-c", script, str(ear.path), "{port}", *spec.args),
        ),
        ports=pool,
    )
    start = Outcome(lambda: service.start("m"))
    ear.hear(f"port {pool.start}")
    stranger(pool.start)
    go.write_text("go\n")  # blocks until the server reads
    ear.hear(f"port {pool.start + 1}")
    go.write_text("go\n")
    status = start.get()
    ear.close()

    assert status.ports == (pool.start + 1,)
    assert status.attempts == 0
    outcomes = [e.event.outcome for e in service.events() if e.event.kind == "run.released"]
    assert outcomes == ["failed: port"]


def test_a_server_whose_port_is_answered_by_another_is_not_ready(
    opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    first = ports().start
    service = opened(
        server("ours", "--never-bind", load_timeout_s=20), ports=range(first, first + 1)
    )
    start = Outcome(lambda: service.start("ours", timeout_s=LIMIT_S))
    settle(lambda: service.model("ours").state == "loading")
    with socket.create_server(("127.0.0.1", first)) as other:
        other.settimeout(LIMIT_S)
        answering_thread = threading.Thread(target=_answer, args=(other,), daemon=True)
        answering_thread.start()
        with pytest.raises((LoadError, PortPoolExhaustedError)):
            start.get()
        other.shutdown(socket.SHUT_RDWR)
    join(answering_thread)

    free_again(service)
    assert service.model("ours").attempts == 0


def _answer(listener: socket.socket) -> None:
    """Say 200 to everybody, as a stranger's server would."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            except OSError:
                continue


def test_what_a_server_writes_without_end_does_not_hold_up_the_service(
    opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("m", "--flood"))
    service.start("m")
    for _ in range(200):
        service.lease("m").release()
    service.stop("m")

    free_again(service)
    assert psutil.Process().children() == []
