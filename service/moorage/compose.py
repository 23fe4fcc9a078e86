"""The one place where the parts of a service are put together, started and ended in order."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import pykka
from pykka import ActorRef

from moorage.actors import messages as msg
from moorage.actors.desk import Desk
from moorage.actors.hall import Hall
from moorage.actors.ledger import SNAPSHOT_EVERY, Ledger
from moorage.actors.model import KILL_WAIT_S, World
from moorage.actors.registry import Registry
from moorage.actors.shells import Directory, RegistryActor
from moorage.actors.threads import Threads, ThreadWorker
from moorage.actors.tickets import Ticket, wait
from moorage.backends import InstalledBackends
from moorage.core.audit import Finding, WorldView
from moorage.core.events import LogCreated, ServiceOpened
from moorage.core.state import Ranges, State
from moorage.errors import (
    ForkedError,
    MoorageError,
    ServiceClosedError,
    ServiceFailedError,
    StateError,
)
from moorage.feed import Feed
from moorage.hub import HubFetcher
from moorage.log.files import read_plain
from moorage.log.sqlite import SqliteLog
from moorage.protocols import (
    Alarm,
    Backends,
    Clock,
    EventLog,
    ExitStatus,
    Fetcher,
    FoundProcess,
    Ports,
    Processes,
    RunProcess,
)
from moorage.world import view
from moorage.world.clock import SystemClock, ThreadAlarm
from moorage.world.ports import LocalPorts
from moorage.world.processes import LocalProcesses

_log = logging.getLogger(__name__)

_KEY_BYTES = 32
END_S = 5.0
"""Seconds a thread of ours may take to end."""
CLAIM_LOOK_S = 0.1
"""Between two looks whether who ends a service was interrupted at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a service is opened with; see `ModelService.open`."""

    ports: Ranges
    max_loaded: int
    memory_limit: int | None
    min_residency_s: float
    max_waiting: int


@dataclass(slots=True, kw_only=True)
class Parts:
    """The outer world of a service. Whatever is None is the real part."""

    log: EventLog | None = None
    processes: Processes | None = None
    ports: Ports | None = None
    backends: Backends | None = None
    fetcher: Fetcher | None = None
    clock: Clock | None = None
    new_alarm: Callable[[Callable[[], None]], Alarm] = ThreadAlarm
    new_threads: Callable[[], Threads] = Threads
    snapshot_every: int = SNAPSHOT_EVERY
    new_nonce: Callable[[], str] = field(default=lambda: secrets.token_hex(8))


class Runtime:
    """A running registry with everything it needs. Made by `start`, ended once by `end`."""

    def __init__(
        self, state: Path, limits: Limits, parts: Parts, log: EventLog, key: bytes
    ) -> None:
        self.key = key
        self.clock = parts.clock or SystemClock()
        self.log = log
        self.feed = Feed()
        self.pid = os.getpid()
        self.forked = False
        self._ended = False
        self._failure: str | None = None
        self._closers: list[Callable[[], None]] = [self.log.close]
        self._claim = [None]
        self._ender: object = None
        self._threads_s = END_S
        self.done = threading.Event()
        try:
            self._compose(state, limits, parts)
        except BaseException:
            self._close_parts()
            raise
        _keep_out_of_children(self)

    def _compose(self, state: Path, limits: Limits, parts: Parts) -> None:
        with _starting_threads(state):
            processes = parts.processes or LocalProcesses()
        self._closers.insert(0, processes.close)
        self.threads = parts.new_threads()
        self._closers.insert(0, lambda: self.threads.close(self._threads_s))
        self._processes = processes
        real = processes if isinstance(processes, LocalProcesses) else None
        self._ports = ports = parts.ports or LocalPorts(real)
        self.backends = parts.backends or InstalledBackends()
        self.hall = Hall(self.clock.monotonic, self._emptied)
        world = World(
            log_id=self.log.log_id,
            logs=state / "logs",
            processes=processes,
            ports=ports,
            backends=self.backends,
            fetcher=parts.fetcher or HubFetcher(),
            new_worker=partial(ThreadWorker, self.threads),
            new_flag=self.threads.flag,
            monotonic=self.clock.monotonic,
            died=self.hall.died,
        )
        self.desk = Desk(limits.max_waiting)
        self._directory = Directory(world, self.threads, self._post)
        with _starting_threads(state):
            alarm = parts.new_alarm(lambda: self._post(msg.Wake()))
        self._closers.insert(0, alarm.close)
        self.registry = Registry(
            ledger=Ledger(self.log, self.clock, self.feed.publish, parts.snapshot_every),
            desk=self.desk,
            hall=self.hall,
            ports=ports,
            clock=self.clock,
            alarm=alarm,
            tell_model=self._directory.tell,
            end_model=self._directory.end,
            reap=self._reap,
            new_nonce=parts.new_nonce,
            later=self._post,
        )
        with _starting_threads(state):
            self._ref: ActorRef[RegistryActor] = RegistryActor.start(
                self.registry, self.threads, self._on_end
            )

    # --- messages ---

    def check(self) -> None:
        """Raise the error that says why nothing can be asked any more."""
        if self.forked:
            raise ForkedError
        if self._failure is not None:
            raise ServiceFailedError(self._failure)
        if self._ended:
            raise ServiceClosedError

    def ask(self, message: msg.FromCaller) -> None:
        """Tell the registry; its ticket is answered also when the registry ends meanwhile."""
        self.check()
        self._post(message)
        try:
            self.check()  # it may have ended before it saw the message
        except MoorageError as error:
            message.ticket.fail(error)

    def left(self, ticket: Ticket[object]) -> None:
        """Tell the registry that a caller waits no more."""
        self._post(msg.Left(ticket))

    def _post(self, message: msg.ToRegistry) -> None:
        """Tell the registry when it is there. Never blocks: finalisers and handlers use it."""
        try:
            self._ref.tell(message)
        except (pykka.ActorDeadError, AttributeError):
            # It has ended (or not begun): nobody needs to hear this any more.
            _log.debug("message after the end: %s", type(message).__name__)

    def _emptied(self, run: int) -> None:
        self._post(msg.Emptied(run))

    def _on_end(self, failure: str | None) -> None:
        self._failure = failure
        self._ended = True

    # --- opening ---

    def open(self, limits: Limits, timeout_s: float) -> None:
        """Record the opening, and bring what earlier owners left to its end."""
        ticket: Ticket[None] = Ticket("open")
        running = program()
        opened = ServiceOpened(
            program=running,
            host=socket.gethostname(),
            boot_id=self._processes.boot_id(),
            pid=self.pid,
            ports=limits.ports,
            max_loaded=limits.max_loaded,
            memory_limit=limits.memory_limit,
            min_residency_s=limits.min_residency_s,
        )
        created = LogCreated(log_id=self.log.log_id, program=running)
        state = self.registry.state
        message = msg.Open(
            ticket, opened, created, self._strays(state), view.survivors(state, self._processes)
        )
        wait(ticket, lambda: self.ask(message), timeout_s, self.left, self.threads.wait)

    def look(self) -> WorldView:
        """Return what can be seen of the world, to be held against the state."""
        return view.look(self.registry.state, self._processes, self._ports)

    def fix(self, finding: Finding) -> None:
        """Begin what would fix a finding; it is decided and recorded like anything else."""
        if finding.kind == "dead-run" and finding.run is not None:
            self._post(msg.ExitSeen(finding.run, ExitStatus(), ()))
        elif finding.kind == "stray-process":
            for found in self._processes.find(self.log.log_id):
                if found.pid == finding.pid and found.run == finding.run:
                    self._reap(found)

    def _strays(self, state: State) -> tuple[FoundProcess, ...]:
        """Return processes of this log that no open run accounts for."""
        return tuple(
            found
            for found in self._processes.find(self.log.log_id)
            if found.run not in state.runs or state.runs[found.run].nonce != found.nonce
        )

    def _reap(self, found: FoundProcess) -> None:
        worker = ThreadWorker(self.threads, f"reap-{found.pid}")

        def work() -> None:
            process = RunProcess(run=found.run, token=found.token, identity=None, ports=())
            report = self._processes.stop(
                process, (), kill_wait_s=KILL_WAIT_S, hurry=self.threads.flag()
            )
            gone = found.pid not in (*report.remaining, *report.unproven)
            self._post(msg.Reaped(found, gone))

        worker.submit(work)
        worker.close()

    # --- ending ---

    def end(self, threads_s: float = END_S) -> None:
        """End all threads and close the log. Idempotent; a second caller waits for the first.

        Workers may take `threads_s` to end what they are at.

        Not for itself, though: in a callback of a thread that is being ended it returns at once.
        """
        me = self.threads.me()
        if not self._claimed(me):
            return
        self._ender = me
        self._threads_s = threads_s
        self._ended = True  # before the actor stops: see `ask`
        try:
            self._ref.stop(block=False)
            self.threads.wait(self._ref.actor_stopped, END_S)
            self._directory.end_all(END_S)
            self.hall.lose_all()
            self._close_parts()
            self.feed.close(END_S)
        except BaseException:
            self._claim.append(None)  # interrupted: whoever calls next goes on
            raise
        self.done.set()

    def _claimed(self, me: object) -> bool:
        """Claim the ending, also that of a thread that was interrupted at it, or wait for it."""
        for _ in range(int(END_S * 4 / CLAIM_LOOK_S)):
            try:
                self._claim.pop()
            except IndexError:
                if me == self._ender or self.feed.is_dispatching():
                    return False
                if self.threads.wait(self.done, CLAIM_LOOK_S):
                    return False
            else:
                return True
        return False

    def _close_parts(self) -> None:
        while self._closers:
            self._closers[0]()
            del self._closers[0]

    def forget_in_child(self) -> None:
        """Make this copy unusable: it belongs to the parent of this forked process."""
        self.forked = True
        if hasattr(self, "hall"):
            self.hall.end_all()


_runtimes: weakref.WeakValueDictionary[int, Runtime] = weakref.WeakValueDictionary()
_keys = itertools.count()


def _keep_out_of_children(runtime: Runtime) -> None:
    _runtimes[next(_keys)] = runtime


def _after_fork() -> None:
    for runtime in tuple(_runtimes.values()):
        runtime.forget_in_child()


os.register_at_fork(after_in_child=_after_fork)


def _secret_key(folder: Path) -> bytes:
    """Return the key under which secrets are hashed, made once a state folder, mode 0600."""
    path = folder / "moorage.key"
    try:
        key = read_plain(path)
    except FileNotFoundError:
        key = b""
    except OSError as error:
        raise StateError(str(path), f"cannot be read: {error.strerror}") from error
    if len(key) == _KEY_BYTES:
        return key
    key = secrets.token_bytes(_KEY_BYTES)  # a shorter one was cut: by a full disk, or a crash
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(key)
    except OSError as error:
        raise StateError(str(path), f"cannot be written: {error.strerror}") from error
    return key


@contextmanager
def _starting_threads(state: Path) -> Generator[None]:
    try:
        yield
    except RuntimeError as error:  # which is what `Thread.start` has for it
        problem = (
            f"no thread can be started for its service ({error}); end some processes, or raise "
            "their limit (`ulimit -u`)"
        )
        raise StateError(str(state), problem) from error


@cache
def program() -> str:
    """Return this program's version: the whole README is read for it, beside it in one file."""
    return version("moorage")


def start(
    state: Path,
    limits: Limits,
    parts: Parts,
    *,
    wait_s: float,
    open_s: float,
    wanted: Callable[[], bool] = lambda: True,
) -> Runtime:
    """Open the log, start the actors and record the opening; on any error undo all of it.

    Another owner is waited for as long as it is `wanted`.
    """
    log = parts.log or SqliteLog.open(state, wait_s=wait_s, wanted=wanted)
    try:
        runtime = Runtime(state, limits, parts, log, _secret_key(state))
    except BaseException:
        log.close()
        raise
    try:
        runtime.open(limits, open_s)
    except BaseException:
        runtime.end()
        raise
    return runtime
