"""One owner for a log: two locks that the kernel drops when the owner dies.

The first is an flock on a side file: one owner for a state folder. The second is an abstract Unix
socket named after the log's id (Linux only, one network namespace): one owner for a log, however
often its folder was copied.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil

from moorage.errors import StateError, StateInUseError
from moorage.log.files import read_plain

_POLL_S = 0.02
_RELIC_S = 2.0
"""How long a dead owner's child may keep a lock: from its fork until its exec."""
_never = threading.Event()


class StateLock:
    """Both locks of one owner. Holds no memory of the database; see `acquire` and `claim`."""

    def __init__(
        self, path: Path, *, wait_s: float, note: str, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self._path = path
        self._wanted = wanted
        self._note = note
        self._deadline = time.monotonic() + wait_s
        self._patient = False
        self._made = False
        self._file: int | None = None
        self._socket: socket.socket | None = None

    def acquire(self) -> None:
        """Lock the folder, waiting until the deadline.

        Raises StateInUseError naming the owner, StateError when the file cannot be used.
        """
        while not self._try_file():
            self._await_relic(lambda: owner_has_died(self._path))
            self._wait_or_raise(lambda: read_owner(self._path))

    def claim(self, log_id: str) -> None:
        """Lock the log itself, waiting until the same deadline. Raises StateInUseError."""
        if not sys.platform.startswith("linux"):
            return
        name = f"\0moorage-{log_id}"
        while not self._try_socket(name):
            self._await_relic(lambda: _peer_has_died(name))
            self._wait_or_raise(lambda: _describe_peer(name))

    def release(self, *, discard: bool = False) -> None:
        """Let go of both; `discard` removes the file where `acquire` made it. Idempotent."""
        with _forking:
            if self._file is not None:
                if discard and self._made:
                    self._path.unlink(missing_ok=True)
                else:
                    os.ftruncate(self._file, 0)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptors only: in a forked child the locks are still the parent's."""
        _held.discard(self)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try_file(self) -> bool:
        with _forking:
            _held.add(self)
            try:
                self._file, self._made = _open_lock_file(self._path)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(self._file, self._path):
                    self._write_owner(self._file)
                    return True
            except BlockingIOError:
                pass
            except OSError as error:
                self.abandon()
                raise StateError(str(self._path), f"cannot lock: {error.strerror}") from error
            self.abandon()
            return False

    def _try_socket(self, name: str) -> bool:
        with _forking:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                held.bind(name)
                held.listen()  # so that a refused one can ask the kernel for our pid
            except OSError as error:
                held.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
            self._socket = held
            return True

    def _write_owner(self, file: int) -> None:
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "note": self._note,
        }
        os.ftruncate(file, 0)
        try:
            os.pwrite(file, json.dumps(owner).encode(), 0)
        except OSError as error:
            # A full disk must not keep the owner of a running log from opening it again.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _await_relic(self, died: Callable[[], bool]) -> None:
        """Be patient, once, with a child that a dead owner was launching: it lets go by itself."""
        if not self._patient and died():
            self._patient = True
            self._deadline = max(self._deadline, time.monotonic() + _RELIC_S)

    def _wait_or_raise(self, owner: Callable[[], str]) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._wanted():
            raise StateInUseError(str(self._path.parent), owner())
        _never.wait(min(left, _POLL_S))  # nothing tells when a lock is released: poll


def read_owner(path: Path) -> str:
    """Describe the owner that a lock file names; it may have gone already."""
    try:
        owner = json.loads(read_plain(path))
        text = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
        return f"{text} ({owner['note']})" if owner["note"] else text
    except (OSError, ValueError, LookupError, TypeError):
        return "a process that has not given its name"


def owner_has_died(path: Path) -> bool:
    """Tell whether the owner that a lock file names was a process of this host that is gone."""
    try:
        owner = json.loads(read_plain(path))
        return owner["host"] == socket.gethostname() and _has_died(int(owner["pid"]))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _peer_has_died(name: str) -> bool:
    pid = _peer(name)
    return pid is not None and pid > 0 and _has_died(pid)


def _has_died(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _open_lock_file(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(path, flags, 0o600), False


def _is_at(file: int, path: Path) -> bool:
    # A file that its owner discarded between our open and our lock guards nothing any more.
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _peer(name: str) -> int | None:
    """Return the pid of who listens on an abstract socket, 0 when it cannot be seen from here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as peer:
        try:
            peer.connect(name)
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:  # it went away just now, or too many have asked already
            return None
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _describe_peer(name: str) -> str:
    pid = _peer(name)
    if pid is None:
        return "another process that opened a copy of this state folder"
    who = f"process {pid} on this host" if pid else "a process of another container"
    return f"{who}, which opened another copy of this state folder"


# A fork must not happen between the opening of a descriptor and its being known here, or the
# child would keep a lock alive that its parent lost by dying.
_forking = threading.RLock()
_held: weakref.WeakSet[StateLock] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for lock in list(_held):
        lock.abandon()
    _forking.release()


os.register_at_fork(
    before=_forking.acquire,
    after_in_parent=_forking.release,
    after_in_child=_abandon_in_child,
)
