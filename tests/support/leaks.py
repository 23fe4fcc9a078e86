"""Finds what a test leaves behind: actors, threads, processes, descriptors, ports, files."""

# Each test reads /proc some hundred times; through a Path that takes up to twice as long.
# ruff: noqa: PTH115, PTH123, PTH208

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pykka

SETTLE_LIMIT_S = 2.0
"""How long things that end by themselves may take before they count as left behind."""
_POLL_S = 0.005
_REAP_LIMIT_S = 2.0

SESSION_VARIABLE = "MOORAGE_TEST_SESSION"
"""In the environment of all that a test session starts, so that an orphan is known as its own."""
RUN_VARIABLE = "MOORAGE_RUN"
OUR_THREADS = "moorage-"
"""Threads with this prefix must end even when they are daemons."""

_HARMLESS_TARGETS = frozenset({"/dev/random", "/dev/urandom"})
"""Opened once by a library and kept for the life of the process."""
_HARMLESS_THREADS = "pytest_timeout "
_INIT_PID = 1
_KERNEL_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


@dataclass(frozen=True, slots=True)
class Leak:
    """One thing that is there and was not before.

    `identity` tells it apart from others of its kind; `process` is set when it is one that is
    certainly ours, `actor` and `path` likewise: `clear` ends or removes exactly these.
    """

    kind: str
    identity: Hashable
    what: str = field(compare=False)
    process: int | None = field(default=None, compare=False)
    actor: pykka.ActorRef[pykka.Actor] | None = field(default=None, compare=False)
    path: Path | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class LeakCheck:
    """Looks at this process and its offspring, and compares two looks.

    `temp` is the folder that must stay as it is, `session` the value of SESSION_VARIABLE in the
    environment of what we start.
    """

    def __init__(self, *, temp: Path, session: str) -> None:
        self._temp = temp
        self._marker = f"{SESSION_VARIABLE}={session}".encode()
        self._foreign: set[int] = set()

    def look(self) -> frozenset[Leak]:
        """Return all that would be a leak if it had not been there before."""
        return frozenset(
            (*_actors(), *_threads(), *self._processes(), *_descriptors(), *_files(self._temp))
        )

    def left_behind(
        self, before: frozenset[Leak], limit_s: float = SETTLE_LIMIT_S
    ) -> tuple[Leak, ...]:
        """Return what is new since `before`, once it is nothing or `limit_s` have passed."""
        deadline = time.monotonic() + limit_s
        pause = threading.Event()
        while (new := self.look() - before) and time.monotonic() < deadline:
            pause.wait(_POLL_S)
        return tuple(sorted(new, key=str))

    def _processes(self) -> Iterator[Leak]:
        # In this order, or what is started in between looks like an orphan.
        pids = {int(name) for name in _listdir("/proc") if name.isdigit()}
        offspring = set(_offspring(os.getpid()))
        for pid in offspring:
            yield Leak("process", pid, f"child {_describe_process(pid)}", process=pid)
        self._foreign &= pids
        for pid in pids - offspring - self._foreign - {os.getpid()}:
            environ = _read(f"/proc/{pid}/environ").split(b"\0")
            if self._marker in environ:
                yield Leak("process", pid, f"orphan {_describe_process(pid)}", process=pid)
            elif _is_orphaned_run(pid, environ):
                # Started with an environment of its own, so it may be another session's: reported,
                # not ended.
                yield Leak("process", pid, f"orphan with {RUN_VARIABLE} {_describe_process(pid)}")
            else:
                self._foreign.add(pid)


def clear(leaks: tuple[Leak, ...]) -> None:
    """End and remove what was reported, so that the next test is judged by itself."""
    for leak in leaks:
        if leak.actor is not None:
            leak.actor.stop(block=False)
        if leak.process is not None:
            _kill(leak.process)
        if leak.path is not None:
            _remove(leak.path)


def describe(leaks: tuple[Leak, ...]) -> str:
    """Return the message of a failed check, one line a leak."""
    return "\n  ".join(("left behind:", *map(str, leaks)))


# --- actors and threads -------------------------------------------------------------------------


def _actors() -> Iterator[Leak]:
    for ref in pykka.ActorRegistry.get_all():
        yield Leak("actor", ref.actor_urn, f"{ref} is still alive", actor=ref)


def _threads() -> Iterator[Leak]:
    for thread in threading.enumerate():
        if thread.name.startswith(_HARMLESS_THREADS):
            continue
        if thread.name.startswith(OUR_THREADS) or not thread.daemon:
            kind = "daemon" if thread.daemon else "non-daemon"
            yield Leak("thread", id(thread), f"{kind} {thread.name!r} is still alive")


# --- processes ----------------------------------------------------------------------------------


def _offspring(pid: int) -> Iterator[int]:
    """Yield every descendant. psutil reads each process of the host for it, this only our own."""
    if not _KERNEL_LISTS_CHILDREN:
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        return
    for task in _listdir(f"/proc/{pid}/task"):
        for child in map(int, _read(f"/proc/{pid}/task/{task}/children").split()):
            yield child
            yield from _offspring(child)


def _is_orphaned_run(pid: int, environ: list[bytes]) -> bool:
    if not any(entry.startswith(f"{RUN_VARIABLE}=".encode()) for entry in environ):
        return False
    if any(entry.startswith(f"{SESSION_VARIABLE}=".encode()) for entry in environ):
        return False  # another test session's
    try:
        return psutil.Process(pid).ppid() == _INIT_PID
    except psutil.NoSuchProcess:
        return False


def _describe_process(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}): {' '.join(process.cmdline())}"
    except psutil.ZombieProcess:
        return f"{pid} has exited and was never waited for"
    except psutil.NoSuchProcess:
        return f"{pid} (just ended)"
    except psutil.AccessDenied:
        return f"{pid} (unreadable)"


def _kill(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGKILL)
        process.wait(_REAP_LIMIT_S)
    except psutil.Error:
        return


# --- descriptors and ports ----------------------------------------------------------------------


def _descriptors() -> Iterator[Leak]:
    for name in _listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that listed the folder
        if target in _HARMLESS_TARGETS:
            continue
        address = _address(int(name)) if target.startswith("socket:") else None
        kind, what = ("port", address) if address else ("descriptor", target)
        yield Leak(kind, (int(name), target), f"{what} is still open as descriptor {name}")


def _address(descriptor: int) -> str | None:
    """Return where an internet socket of ours is bound, None when it is another kind."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            if sock.family not in {socket.AF_INET, socket.AF_INET6}:
                return None
            host, port, *_ = sock.getsockname()
            listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        return None
    if port == 0:
        return None
    return f"{host}:{port} ({'listening' if listening else 'bound'})"


# --- files --------------------------------------------------------------------------------------


def _files(folder: Path) -> Iterator[Leak]:
    for name in _listdir(str(folder)):
        yield Leak("file", name, f"{folder / name} (use tmp_path instead)", path=folder / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _listdir(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM}:
            return b""
        raise
