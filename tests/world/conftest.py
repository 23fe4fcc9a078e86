"""Real processes, each with a port nobody else can take, all gone at the end of the test."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from moorage.protocols import (
    ExitStatus,
    LaunchOrder,
    Readiness,
    ReadinessOrder,
    RunProcess,
    StopReport,
    StopSignal,
)
from moorage.world.ports import LocalPorts
from moorage.world.processes import LocalProcesses
from support.servers import Ear, HeldPort, misbehave
from support.services import settle

TERM = StopSignal(signal.SIGTERM, "leader", 10.0)
LOG_ID = f"{os.getpid():08x}{int.from_bytes(os.urandom(4)):08x}"
_numbers = itertools.count(1)


class Exit:
    """Hears of one exit."""

    def __init__(self) -> None:
        self.statuses: list[ExitStatus] = []
        self.threads: list[str] = []
        self._told = threading.Event()

    def __call__(self, status: ExitStatus) -> None:
        self.statuses.append(status)
        self.threads.append(threading.current_thread().name)
        self._told.set()

    def wait(self) -> ExitStatus:
        if not self._told.wait(10):
            raise AssertionError("no exit was told")
        return self.statuses[0]


@dataclass
class World:
    folder: Path
    processes: LocalProcesses
    runs: list[RunProcess] = field(default_factory=list)
    held: list[HeldPort] = field(default_factory=list)
    ears: list[Ear] = field(default_factory=list)
    others: list[LocalProcesses] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ports = LocalPorts(self.processes)

    def port(self) -> int:
        self.held.append(HeldPort())
        return self.held[-1].number

    def ear(self) -> Ear:
        self.ears.append(Ear(self.folder / f"ear-{len(self.ears)}"))
        return self.ears[-1]

    def another_manager(self, **settings: object) -> LocalProcesses:
        """Remembers nothing of the runs here, as after a crash."""
        self.others.append(LocalProcesses(**settings))  # type: ignore[arg-type]
        return self.others[-1]

    def order(self, *argv: str, **changes: object) -> LaunchOrder:
        number = next(_numbers)
        order = LaunchOrder(
            model="model",
            run=number,
            token=f"{LOG_ID}:{number}:{os.urandom(4).hex()}",
            argv=argv,
            log_file=self.folder / "logs" / f"model-{number}.log",
        )
        return replace(order, **changes)  # type: ignore[arg-type]

    def launch(self, order: LaunchOrder, port: int | None = None) -> RunProcess:
        ports = () if port is None else (port,)
        identity = self.processes.launch(order)
        run = RunProcess(run=order.run, token=order.token, identity=identity, ports=ports)
        self.runs.append(run)
        return run

    def start(self, *flags: str, ready: bool = True, **changes: object) -> RunProcess:
        """Launch a misbehaving server on a port of its own."""
        port = self.port()
        run = self.launch(self.order(*misbehave(port, *flags), **changes), port)
        if ready:
            assert self.wait_ready(run).outcome == "ready"
        return run

    def bound(self, run: RunProcess) -> None:
        """Wait until somebody listens on a run's port, whatever he answers."""

        def so() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", run.ports[0])) == 0

        settle(so)

    def wait_ready(self, run: RunProcess, **changes: object) -> Readiness:
        cancelled = changes.pop("cancelled", threading.Event())
        order = ReadinessOrder(
            process=run, port=run.ports[0], health_path="/health", timeout_s=10, owner_check=True
        )
        return self.ports.wait_ready(replace(order, **changes), cancelled)  # type: ignore[arg-type]

    def stop(
        self,
        run: RunProcess,
        *signals: StopSignal,
        by: LocalProcesses | None = None,
        kill_wait_s: float = 10.0,
        hurry: threading.Event | None = None,
    ) -> StopReport:
        return (by or self.processes).stop(
            run, signals or (TERM,), kill_wait_s=kill_wait_s, hurry=hurry or threading.Event()
        )

    def log_file(self, run: RunProcess) -> Path:
        return self.folder / "logs" / f"model-{run.run}.log"

    def clear(self) -> None:
        for run in self.runs:
            self.stop(run, StopSignal(signal.SIGKILL, "leader", 5.0))
        for manager in (self.processes, *self.others):
            manager.close()
        for closes in (*self.held, *self.ears):
            closes.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, LocalProcesses())
    yield world
    world.clear()


@pytest.fixture
def rotating(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes worlds with their own limits for log files."""
    made: list[World] = []

    def make(**settings: object) -> World:
        made.append(World(tmp_path, LocalProcesses(**settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for world in made:
        world.clear()


def descriptors(pid: int | None = None) -> dict[int, str]:
    """Return the open descriptors of a process and what they are.

    Of this process without looks at processes: another thread may have one for a moment. The check
    for leaks at the end of every test finds one that stays.
    """
    folder = Path(f"/proc/{pid or os.getpid()}/fd")
    found: dict[int, str] = {}
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that reads the folder itself
            target = str(entry.readlink())
            if pid is not None or not re.match(r"/proc/\d+/", target):
                found[int(entry.name)] = target
    return found


@contextlib.contextmanager
def no_descriptor_left(*, but: int = 0) -> Iterator[None]:
    """Let this process open nothing more, or no more than so many."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(descriptors()) + 1 + but
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, old[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        for _ in range(but):
            os.close(fillers.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
        for fd in fillers:
            os.close(fd)


def pids_in(file: Path) -> dict[str, int]:
    """Return the children a server has written down."""
    return {kind: int(pid) for kind, pid in map(str.split, file.read_text().splitlines())}


def alive(pid: int) -> bool:
    """Tell whether a process lives; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
