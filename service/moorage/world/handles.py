"""A hold on one process that no recycled pid can slip under."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import struct
from typing import Protocol

from moorage.protocols import ExitStatus
from moorage.world.platform import has_pidfd
from moorage.world.procfs import System

_log = logging.getLogger(__name__)

_GROUP_FLAG = 4  # PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
_INFO_BYTES = 64  # struct pidfd_info as of Linux 6.15; its last four are the wait status
_INFO_EXIT = 8  # PIDFD_INFO_EXIT
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO
_REAPED_WAIT_MS = 20
UNKNOWN_EXIT = ExitStatus()


class Handle(Protocol):
    """One process, verified. Close it."""

    pid: int
    fd: int | None
    """Readable once the process has ended; None where the kernel has no such thing."""

    def exited(self) -> bool:
        """Tell whether it has ended; an unreaped zombie has."""
        ...

    def send(self, number: int) -> bool:
        """Signal it; False when it is gone. Raises PermissionError."""
        ...

    def send_group(self, number: int) -> bool:
        """Signal the group it leads; False when the kernel cannot do that without a race."""
        ...

    def status(self) -> ExitStatus:
        """Return how it ended, without reaping it; unknown when it is no child of ours."""
        ...

    def reap(self) -> None:
        """Remove our own ended child from the process table; harmless for any other."""
        ...

    def close(self) -> None:
        """Give the process up."""
        ...


class PidfdHandle:
    """A pidfd: names this process for ever."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd: int | None = fd

    def exited(self) -> bool:
        """Tell whether it has ended."""
        poll = select.poll()
        poll.register(self._open_fd(), select.POLLIN)
        return bool(poll.poll(0))

    def send(self, number: int) -> bool:
        """Signal it; False when it is gone."""
        try:
            signal.pidfd_send_signal(self._open_fd(), number)
        except ProcessLookupError:
            return False
        return True

    def send_group(self, number: int) -> bool:
        """Signal the group it leads; False when this kernel cannot through a pidfd."""
        try:
            signal.pidfd_send_signal(self._open_fd(), number, None, _GROUP_FLAG)
        except ProcessLookupError:
            return True
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        return True

    def status(self) -> ExitStatus:
        """Return how it ended, without reaping it."""
        own = self._wait(os.WNOWAIT)
        return own if own is not None else _told_by_kernel(self._open_fd())

    def reap(self) -> None:
        """Remove our own ended child from the process table."""
        self._wait(0)

    def close(self) -> None:
        """Close the pidfd. Idempotent."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def _wait(self, flags: int) -> ExitStatus | None:
        """Return how a child ended; None when it is none, or somebody else has reaped it."""
        try:
            result = os.waitid(os.P_PIDFD, self._open_fd(), os.WEXITED | os.WNOHANG | flags)
        except ChildProcessError:
            return None
        if result is None:
            return UNKNOWN_EXIT
        if result.si_code == os.CLD_EXITED:
            return ExitStatus(code=result.si_status)
        return ExitStatus(signal=result.si_status)

    def _open_fd(self) -> int:
        if self.fd is None:
            raise RuntimeError(f"the handle of process {self.pid} is closed")
        return self.fd


class PolledHandle:
    """Pid and start time, looked at again before each use: a small window stays."""

    fd: int | None = None

    def __init__(self, system: System, pid: int, start_ticks: int) -> None:
        self.pid = pid
        self._system = system
        self._start_ticks = start_ticks
        self._status: ExitStatus | None = None

    def exited(self) -> bool:
        """Tell whether it has ended."""
        stat = self._system.stat(self.pid)
        return stat is None or stat.start_ticks != self._start_ticks or stat.state in {"Z", "X"}

    def send(self, number: int) -> bool:
        """Signal it; False when it is gone."""
        if self.exited():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def send_group(self, number: int) -> bool:  # noqa: ARG002  the protocol's
        """Return False: its members are signalled one by one."""
        return False

    def status(self) -> ExitStatus:
        """Return how it ended. Reaps it already: macOS has no waitid before Python 3.13."""
        if self._status is None:
            self._status = self._wait()
        return self._status

    def reap(self) -> None:
        """Remove our own ended child from the process table."""
        self.status()

    def _wait(self) -> ExitStatus:
        stat = self._system.stat(self.pid)
        if stat is None or stat.start_ticks != self._start_ticks:
            return UNKNOWN_EXIT
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return UNKNOWN_EXIT
        return _as_status(status) if pid == self.pid else UNKNOWN_EXIT

    def close(self) -> None:
        """Nothing is held."""


class Handles:
    """Opens handles the best way this machine has."""

    def __init__(self, system: System, *, pidfds: bool | None = None) -> None:
        self._system = system
        self._pidfds = has_pidfd() if pidfds is None else pidfds

    def open(self, pid: int, start_ticks: int) -> Handle | None:
        """Return a hold on exactly that process, None when it is gone (a zombie is not)."""
        handle: Handle = PolledHandle(self._system, pid, start_ticks)
        if self._pidfds:
            try:
                handle = PidfdHandle(pid, os.pidfd_open(pid))
            except ProcessLookupError:
                return None
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                    return None  # a thread's id, or no pid at all
                _log.warning("process %d is polled: %s", pid, error.strerror)
        # Opened first, looked at second: from here on nobody else can have the pid.
        is_it = False
        try:
            stat = self._system.stat(pid)
            is_it = stat is not None and stat.start_ticks == start_ticks
        finally:
            if not is_it:
                handle.close()
        return handle if is_it else None


def _told_by_kernel(fd: int) -> ExitStatus:
    """Ask the kernel how a process that was not ours ended; unknown before Linux 6.15.

    It only tells once the process has been reaped, which its parent does in no time as a rule.
    """
    poll = select.poll()
    poll.register(fd, 0)  # only POLLHUP, which means reaped
    poll.poll(_REAPED_WAIT_MS)
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return UNKNOWN_EXIT  # an older kernel
    (mask,) = struct.unpack_from("=Q", info, 0)
    if not mask & _INFO_EXIT:
        return UNKNOWN_EXIT
    return _as_status(*struct.unpack_from("=i", info, _INFO_BYTES - 4))


def _as_status(wait_status: int) -> ExitStatus:
    code = os.waitstatus_to_exitcode(wait_status)
    return ExitStatus(code=code) if code >= 0 else ExitStatus(signal=-code)


def wait_any(handles: list[Handle], timeout_s: float) -> None:
    """Return when one of them has ended, or after the time; sooner where only polling helps."""
    fds = [handle.fd for handle in handles if handle.fd is not None]
    if len(fds) < len(handles):
        timeout_s = min(timeout_s, 0.01)
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(max(0.0, timeout_s) * 1000)
