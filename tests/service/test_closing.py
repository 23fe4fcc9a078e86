"""Closing leaves no thread, process, descriptor or port, whoever asks for it and when."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage import (
    CloseIncompleteError,
    LoadCancelledError,
    ModelService,
    ServiceClosedError,
    ServiceFailedError,
)
from support.services import (
    LIMIT_S,
    Outcome,
    Seen,
    check_log,
    gone,
    ports,
    server,
    settle,
    state_of,
)


class Before:
    """What this process had before the service was opened."""

    def __init__(self) -> None:
        self._was = self._look()

    @staticmethod
    def _look() -> tuple[list[str], int]:
        ours = sorted(t.name for t in threading.enumerate() if t.name.startswith("moorage-"))
        return ours, len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def is_so_again(self) -> None:
        """Nothing may be left when `close` returns; what ends by itself then is too late."""
        assert self._look() == self._was
        assert psutil.Process().children(recursive=True) == []


@pytest.fixture
def before() -> Before:
    return Before()


@pytest.fixture
def two(before: Before, opened: Callable[..., ModelService]) -> ModelService:
    """Return a service with two ready servers."""
    service = opened(server("a"), server("b", "--child"), max_loaded=2)
    service.start("a")
    service.start("b")
    return service


def closed(service: ModelService, folder: Path, before: Before) -> None:
    before.is_so_again()
    state = state_of(service)
    assert state.runs == {}
    assert state.held == {}
    assert check_log(folder, state)[-1].event.kind == "service.closed"
    ModelService.open(folder, ports=ports()).close()  # the locks are free


def test_closing_leaves_nothing(two: ModelService, folder: Path, before: Before) -> None:
    two.close()

    closed(two, folder, before)


def test_closing_twice_is_as_once(two: ModelService, folder: Path, before: Before) -> None:
    two.close()
    two.close()

    closed(two, folder, before)


def test_many_threads_may_close_at_once(two: ModelService, folder: Path, before: Before) -> None:
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait(LIMIT_S)
        two.close()
        assert two._runtime.done.is_set()

    for outcome in [Outcome(work) for _ in range(8)]:
        outcome.get()

    closed(two, folder, before)


def test_who_waits_for_a_closing_goes_on_with_it_when_that_is_interrupted(
    two: ModelService, folder: Path, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = two._runtime
    waits = threading.Event()
    wait, end_all = runtime.threads.wait, runtime._directory.end_all
    second = threading.Thread(target=two.close)

    def heard(waited: Any, timeout_s: float) -> bool:
        if waited is runtime.done:
            waits.set()
        return wait(waited, timeout_s)

    def interrupted(timeout_s: float) -> None:
        monkeypatch.setattr(runtime._directory, "end_all", end_all)
        second.start()
        assert waits.wait(LIMIT_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime.threads, "wait", heard)
    monkeypatch.setattr(runtime._directory, "end_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        two.close()
    second.join(LIMIT_S)

    assert runtime.done.is_set()
    closed(two, folder, before)


def test_a_subscriber_may_close_the_service(
    two: ModelService, folder: Path, before: Before
) -> None:
    done = threading.Event()

    def callback(entry: Any) -> None:
        if entry.event.kind == "model.pinned":
            two.close()
            done.set()

    two.subscribe(callback)
    two.pin("a")

    assert done.wait(LIMIT_S)
    settle(lambda: not any(t.name == "moorage-feed" for t in threading.enumerate()))
    closed(two, folder, before)


def test_a_subscriber_and_its_thread_may_close_the_service_at_once(
    two: ModelService, folder: Path, before: Before
) -> None:
    seen = threading.Event()

    def callback(_: Any) -> None:
        seen.set()
        two.close()

    two.subscribe(callback)
    two.pin("a")
    seen.wait(LIMIT_S)
    began = time.monotonic()
    two.close()

    assert time.monotonic() - began < 4
    settle(lambda: not any(t.name == "moorage-feed" for t in threading.enumerate()))
    closed(two, folder, before)


def test_a_signal_handler_may_close_the_service(
    two: ModelService, folder: Path, before: Before
) -> None:
    previous = signal.signal(signal.SIGUSR1, lambda *_: two.close())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, previous)

    closed(two, folder, before)


def test_a_signal_handler_may_close_the_service_its_thread_is_closing(
    before: Before, opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("slow", "--ignore-term", stop_timeout_s=0.5))
    service.start("slow")
    previous = signal.signal(signal.SIGUSR1, lambda *_: service.close())

    def when_stopping() -> None:
        settle(lambda: service.model("slow").state == "stopping")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    try:
        striker = Outcome(when_stopping)
        service.close()
        striker.get()
    finally:
        signal.signal(signal.SIGUSR1, previous)

    closed(service, folder, before)


def test_a_signal_handler_may_close_while_its_thread_waits_for_a_lease(
    before: Before, opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("slow", "--never-bind"))
    previous = signal.signal(signal.SIGUSR1, lambda *_: service.close())

    def when_loading() -> None:
        settle(lambda: service.model("slow").state == "loading")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    try:
        striker = Outcome(when_loading)
        with pytest.raises(ServiceClosedError):
            service.lease("slow")
        striker.get()
    finally:
        signal.signal(signal.SIGUSR1, previous)

    closed(service, folder, before)


@pytest.mark.parametrize(
    "stage", ["run.queued", "run.reserved", "run.launching", "run.launched", "run.ready"]
)
def test_closing_while_starts_are_under_way_answers_all_of_them(
    stage: str, before: Before, opened: Callable[..., ModelService], folder: Path
) -> None:
    slow = [server(f"m{i}", "--never-bind") for i in range(5)]
    service = opened(server("quick"), *slow, max_loaded=3)
    seen = Seen(service)

    def started(name: str) -> Outcome:
        outcome = Outcome(lambda: service.start(name))
        seen.wait("run.queued", model=name)
        return outcome

    quick = started("quick")
    starts = [started(spec.name) for spec in slow]
    seen.wait(stage, model="quick" if stage == "run.ready" else "m0")
    service.close()

    for outcome in starts:
        with pytest.raises((ServiceClosedError, LoadCancelledError)):
            outcome.get()
    with contextlib.suppress(ServiceClosedError, LoadCancelledError):
        quick.get()  # its state is that of now, which may be on its way out
        seen.wait("run.ready", model="quick")
    closed(service, folder, before)


def test_leases_are_waited_for_when_the_service_closes(
    two: ModelService, folder: Path, before: Before
) -> None:
    lease = two.lease("a")
    closing = Outcome(two.close)
    settle(lambda: two.model("b").state == "stopped" and two.model("a").state == "draining")
    answered = urllib.request.urlopen(f"{lease.url}/health", timeout=LIMIT_S).status
    lost = lease.lost
    lease.release()
    closing.get()

    assert (answered, lost) == (200, False)
    closed(two, folder, before)


def test_leases_that_are_held_too_long_are_lost_when_the_service_closes(
    two: ModelService, folder: Path, before: Before
) -> None:
    lease = two.lease("a")
    began = time.monotonic()
    two.close(drain_s=0.3)

    assert lease.lost
    assert 0.3 <= time.monotonic() - began < 5
    lease.release()
    closed(two, folder, before)


def test_a_lease_is_lost_when_its_service_closes_and_keeps_the_server(
    two: ModelService, opened: Callable[..., ModelService]
) -> None:
    lease = two.lease("a")
    two.close("keep")
    lost = lease.lost
    opened(max_loaded=2).close()

    assert lost


def test_after_closing_every_call_says_so_and_looking_still_works(two: ModelService) -> None:
    two.close()

    for call in (two.lease, two.start, two.stop, two.pin, two.unpin, two.reset, two.remove):
        with pytest.raises(ServiceClosedError):
            call("a")
    with pytest.raises(ServiceClosedError):
        two.set_limits(max_loaded=3)
    with pytest.raises(ServiceClosedError):
        two.subscribe(print)
    assert two.model("a").state == "stopped"
    assert list(two.events())[-1].event.kind == "service.closed"


def test_a_service_whose_registry_failed_still_closes_and_keeps_its_servers(
    two: ModelService, folder: Path, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = {two.model(name).pid for name in "ab"}

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(two._runtime.registry, "settle", fail)
    with pytest.raises(ServiceFailedError, match="broken on purpose"):
        two.pin("a")
    with pytest.raises(ServiceFailedError):
        two.lease("a")
    two.close()
    two.close()

    assert {p.pid for p in psutil.Process().children()} == pids
    monkeypatch.undo()
    ModelService.open(folder, ports=ports()).close()
    settle(lambda: psutil.Process().children(recursive=True) == [])
    settle(lambda: Before()._was == before._was)
    assert state_of(two).runs != {}


class Stubborn:
    """Makes a stop fail, as for a process that SIGKILL does not end."""

    def __init__(self, service: ModelService, monkeypatch: pytest.MonkeyPatch) -> None:
        processes = service._runtime._processes
        self._held = threading.Event()
        stop = processes.stop

        def slow(*args: Any, **options: Any) -> Any:
            self._held.wait(LIMIT_S)
            return stop(*args, **options)

        monkeypatch.setattr(processes, "stop", slow)

    def let_go(self) -> None:
        self._held.set()


def test_closing_has_a_deadline_and_names_what_is_left(
    two: ModelService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = Stubborn(two, monkeypatch)
    pid = two.model("a").pid
    began = time.monotonic()
    with pytest.raises(CloseIncompleteError) as caught:
        two.close(timeout_s=0.3)

    took = time.monotonic() - began
    stubborn.let_go()
    assert took < 5
    assert any(str(pid) in left for left in caught.value.left)
    two.close()
    settle(lambda: psutil.Process().children(recursive=True) == [])


def test_everybody_who_closes_at_once_hears_what_is_left(
    two: ModelService, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = Stubborn(two, monkeypatch)
    second = Outcome(lambda: two.close(timeout_s=60))
    settle(lambda: two._runtime.registry.volatile.closing is not None)
    with pytest.raises(CloseIncompleteError) as first:
        two.close(timeout_s=0.3)
    with pytest.raises(CloseIncompleteError) as also:
        second.get()
    stubborn.let_go()

    assert also.value.left == first.value.left
    two.close()
    settle(lambda: psutil.Process().children(recursive=True) == [])


# --- programs that end ----------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path[:0] = sys.argv[4:]
from moorage import ModelService
from support.services import server
first, how, then = int(sys.argv[2]), sys.argv[1], sys.argv[3]
service = ModelService.open("state", ports=range(first, first + 20), on_close=how, max_loaded=2)
service.define(server("m"), server("n", "--never-bind"))
service.start("m")
print(service.model("m").pid, service.model("m").ports[0], flush=True)
exec(then)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str, str], tuple[int, int, str]]]:
    """Run a program that opens, starts and then does something; return pid, port, stderr."""
    pids: list[int] = []

    def run(how: str, then: str) -> tuple[int, int, str]:
        first = ports().start
        paths = [path for path in sys.path if path]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how, str(first), then, *paths],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.stdout, done.stderr
        pid, port = map(int, done.stdout.split()[:2])
        pids.append(pid)
        return pid, port, done.stderr

    yield run
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    try:
        return bool(
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S).status == 200
        )
    except OSError:
        return False


ENDINGS = {
    "falls off its end": "pass",
    "exits": "sys.exit(3)",
    "raises": "raise RuntimeError('of the host')",
    "exits from a thread": "import threading; threading.Thread(target=sys.exit).start()",
    "holds a lease": "lease = service.lease('m')",
    "waits in a thread": (
        "import threading\n"
        "threading.excepthook = lambda *_: None\n"
        "threading.Thread(target=lambda: service.lease('n'), daemon=True).start()\n"
        "while service.model('n').state != 'loading': pass"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_forgets_to_close_leaves_nothing(
    ending: str, program: Callable[[str, str], tuple[int, int, str]], tmp_path: Path
) -> None:
    pid, port, said = program("stop", ENDINGS[ending])

    assert gone(pid)
    assert not _answers(port)
    assert "moorage" not in said or "of the host" in said, said
    assert check_log(tmp_path / "state")[-1].event.kind == "service.closed"


def test_kept_servers_answer_after_the_program_and_the_next_one_takes_them_on(
    program: Callable[[str, str], tuple[int, int, str]], tmp_path: Path
) -> None:
    pid, port, said = program("keep", "service.close()")

    assert said == ""
    assert _answers(port)
    with ModelService.open(tmp_path / "state", ports=range(port, port + 20)) as service:
        settle(lambda: any(e.event.kind == "run.adopted" for e in service.events()))
        status = service.model("m")
        with service.lease("m") as lease:
            lent = lease.run, lease.port, _answers(lease.port)
    stopped = gone(pid)

    assert (status.state, status.pid) == ("ready", pid)
    assert lent == (1, port, True)
    assert stopped
    assert not _answers(port)
    check_log(tmp_path / "state")


def test_a_program_that_is_killed_leaves_servers_that_the_next_one_brings_to_an_end(
    program: Callable[[str, str], tuple[int, int, str]], tmp_path: Path
) -> None:
    pid, port, _ = program("stop", "import os; os.kill(os.getpid(), 9)")

    assert _answers(port)
    ModelService.open(tmp_path / "state", ports=range(port, port + 20)).close()
    assert gone(pid)
    assert not _answers(port)
    assert check_log(tmp_path / "state")[-1].event.kind == "service.closed"


def test_closing_with_keep_leaves_ready_servers_ends_loads_and_stops_what_was_stopping(
    opened: Callable[..., ModelService], folder: Path, tmp_path: Path
) -> None:
    service = opened(server("kept"), server("queued"), max_loaded=1)
    service.start("kept")
    lease = service.lease("kept")
    waiter = Outcome(lambda: service.lease("queued"))
    settle(lambda: service.model("kept").state == "draining")
    service.close("keep")

    with pytest.raises(ServiceClosedError):
        waiter.get()
    state = state_of(service)
    assert [(run.model, run.stage.value) for run in state.runs.values()] == [("kept", "ready")]
    assert _answers(lease.port)
    assert check_log(folder, state)[-1].event.kept == (lease.run,)
    ModelService.open(folder, ports=ports()).close()
    settle(lambda: psutil.Process().children() == [])


def test_a_socket_of_the_host_is_not_held_by_kept_servers(
    opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("kept"))
    with socket.create_server(("127.0.0.1", 0)) as mine:
        os.set_inheritable(mine.fileno(), True)
        port = mine.getsockname()[1]
        service.start("kept")
    with socket.create_server(("127.0.0.1", port)) as again:
        assert again.getsockname()[1] == port
