"""Spawns one server: a session of its own, no shell, no pipes, nothing inherited but its log."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Mapping

from moorage.protocols import LaunchFailedError, LaunchOrder
from moorage.world import logfiles
from moorage.world.procfs import TOKEN_VARIABLE

_WHY: Mapping[int, str] = {
    errno.E2BIG: "the arguments and environment are too long; shorten args, env or settings",
    errno.EAGAIN: "the system refused another process; raise the process limit (ulimit -u)",
    errno.ENOMEM: "the system has no memory for another process; free some, then try again",
    errno.ENOEXEC: "the file is no program for this machine; install the one for this platform",
    errno.ETXTBSY: "the program is being written right now; try again",
    errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files; close some, then try again",
}


def spawn(order: LaunchOrder) -> int:
    """Make the log file and start the server; return its pid.

    Raises LaunchFailedError; then nothing runs, no descriptor is open and a log file that was
    made for it is gone.
    """
    try:
        fd, made = logfiles.open_log(order.log_file)
    except OSError as error:
        raise LaunchFailedError(_log_problem(order, error)) from error
    try:
        return _spawn(order, fd)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if made:
            order.log_file.unlink(missing_ok=True)
        raise LaunchFailedError(_problem(order, error)) from error
    finally:
        os.close(fd)


def child_environment(order: LaunchOrder) -> dict[str, str]:
    """Return the environment of the server: its token goes behind those we carry ourselves."""
    outer = os.environ.get(TOKEN_VARIABLE)
    chain = f"{outer},{order.token}" if outer else order.token
    # Another thread of the host may remove a variable meanwhile.
    names = list(os.environ) if order.inherit_env else []
    inherited = {name: value for name in names if (value := os.environ.get(name)) is not None}
    # setproctitle would wipe the environment block, and with it the token.
    return inherited | dict(order.env) | {"SPT_NOENV": "1", TOKEN_VARIABLE: chain}


def _spawn(order: LaunchOrder, log_fd: int) -> int:
    if not order.argv:
        raise ValueError("the command line is empty")
    # Popen, not posix_spawn, which is 0.1 ms quicker: only it closes what C libraries of the
    # host left inheritable, changes the folder, and says which of the two could not be found.
    process = subprocess.Popen(
        order.argv,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        env=child_environment(order),
        cwd=order.cwd,
        start_new_session=True,
        close_fds=True,
    )
    # Else the object, when dropped, warns and leaves the pid on a list that the next Popen of
    # anybody in this process reaps.
    process.returncode = 0
    return process.pid


def _log_problem(order: LaunchOrder, error: OSError) -> str:
    return (
        f"the log file {order.log_file} cannot be opened: {error.strerror}; "
        "make its folder writable for this user, or free space"
    )


def _problem(order: LaunchOrder, error: Exception) -> str:
    program = order.argv[0] if order.argv else ""
    if not isinstance(error, OSError):
        return f"{program!r} cannot be started: {error}"
    if order.cwd is not None and error.filename == order.cwd:
        return f"the working folder {order.cwd} cannot be used: {error.strerror}; set another cwd"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if os.path.lexists(program):
            return f"{program} names an interpreter or loader that is missing; reinstall it"
        return f"there is no executable {program}; install it, or set executable= to its path"
    if isinstance(error, PermissionError):
        what = "is a directory" if os.path.isdir(program) else "is not executable for this user"  # noqa: PTH112
        return f"{program} {what}; set executable= to the program itself, or chmod +x it"
    return why(program, error)


def why(program: str, error: OSError) -> str:
    """Return words for what the system had against starting the program."""
    return f"{program} cannot be started: {_WHY.get(error.errno or 0, error.strerror)}"


def undo(pid: int) -> None:
    """End a child that was spawned this moment and cannot be looked after."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
