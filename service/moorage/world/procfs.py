"""What the system tells about single processes: /proc on Linux, psutil elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from moorage.world.platform import LINUX

TOKEN_VARIABLE = "MOORAGE_RUN"  # noqa: S105  a variable's name
_PREFIX = TOKEN_VARIABLE.encode() + b"="
_READ_BYTES = 1 << 16
_TICKS_PER_S = 100  # psutil's create_time carries hundredths at best


@dataclass(frozen=True, slots=True)
class Stat:
    """One process at one moment. `start_ticks` tells it from any later one of the same pid."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    threads: int = 1

    @property
    def alive(self) -> bool:
        """False for a zombie; a process whose first thread alone has ended is none."""
        return self.state not in {"Z", "X"} or self.threads > 1


class UnreadableError(Exception):
    """The environment of a process may not be read by this user."""


class System(Protocol):
    """Reads about processes. All answers are as of the moment of reading."""

    def boot_id(self) -> str:
        """Return what differs after each boot."""
        ...

    def pids(self) -> Iterator[int]:
        """Yield all pids there are."""
        ...

    def stat(self, pid: int) -> Stat | None:
        """Return None when there is no such process."""
        ...

    def chain(self, pid: int) -> tuple[str, ...]:
        """Return the run tokens in its environment, () when there are none.

        Raises UnreadableError when it may not be read.
        """
        ...

    def children(self, pid: int) -> tuple[int, ...]:
        """Return the pids of its children."""
        ...

    def peak_bytes(self, pid: int) -> int | None:
        """Return the most resident memory it had."""
        ...

    def command(self, pid: int) -> str:
        """Return its command line, "" when there is none to be seen."""
        ...


def parse_stat(text: bytes) -> Stat:
    """Parse /proc/PID/stat; the command name in it may hold spaces and parentheses."""
    pid, _, rest = text.partition(b" ")
    fields = rest[rest.rindex(b")") + 2 :].split()
    return Stat(
        pid=int(pid),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        threads=int(fields[17]),
    )


def parse_chain(environ: bytes) -> tuple[str, ...]:
    """Return the run tokens in an environment block."""
    _, found, rest = (b"\0" + environ).partition(b"\0" + _PREFIX)
    value = rest.partition(b"\0")[0].decode("ascii", "replace")
    return tuple(part for part in value.split(",") if part) if found else ()


def _read(path: str) -> bytes:
    # os.open is a third of the price of open(), and a scan reads every process there is.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _READ_BYTES)
        # A short read is no end of file here: the kernel hands out environments by pages.
        while more := os.read(fd, _READ_BYTES):
            data += more
    finally:
        os.close(fd)
    return data


class ProcSystem:
    """Reads Linux's /proc."""

    def __init__(self) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id")
        self._boot_id = boot.read_text(encoding="ascii").strip()
        self._knows_children = Path(f"/proc/self/task/{os.getpid()}/children").exists()

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        return self._boot_id

    def pids(self) -> Iterator[int]:
        """Yield the pids that are there now."""
        return (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208  speed

    def stat(self, pid: int) -> Stat | None:
        """Return None when there is no such process."""
        try:
            return parse_stat(_read(f"/proc/{pid}/stat"))
        except (FileNotFoundError, ProcessLookupError):
            return None

    def chain(self, pid: int) -> tuple[str, ...]:
        """Return the run tokens in its environment; raises UnreadableError."""
        try:
            environ = _read(f"/proc/{pid}/environ")
        except (FileNotFoundError, ProcessLookupError):
            return ()
        except PermissionError as error:
            raise UnreadableError from error
        return parse_chain(environ) if _PREFIX in environ else ()

    def children(self, pid: int) -> tuple[int, ...]:
        """Return the children of all its threads."""
        if not self._knows_children:
            return tuple(p for p in self.pids() if (s := self.stat(p)) and s.parent == pid)
        found: list[int] = []
        try:
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  speed
                found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
        except (FileNotFoundError, ProcessLookupError):
            pass  # it, or one of its threads, ended meanwhile: what was found stands
        return tuple(found)

    def peak_bytes(self, pid: int) -> int | None:
        """Return the high-water mark of its resident memory (VmHWM)."""
        try:
            status = _read(f"/proc/{pid}/status")
        except (FileNotFoundError, ProcessLookupError):
            return None
        _, found, rest = status.partition(b"\nVmHWM:")
        return int(rest.split(maxsplit=1)[0]) * 1024 if found else None

    def command(self, pid: int) -> str:
        """Return its command line, or its name in brackets."""
        try:
            line = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ")
            if not line:
                line = b"[" + _read(f"/proc/{pid}/comm").strip() + b"]"
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return ""
        return line.decode("utf-8", "replace")


class PsutilSystem:
    """Best effort where there is no /proc (macOS)."""

    def boot_id(self) -> str:
        """Return the time of boot, which is the nearest thing to an id."""
        return f"boot-{round(psutil.boot_time())}"

    def pids(self) -> Iterator[int]:
        """Yield the pids that are there now."""
        return iter(psutil.pids())

    def stat(self, pid: int) -> Stat | None:
        """Return None when there is no such process."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                return Stat(
                    pid=pid,
                    state="Z" if process.status() == psutil.STATUS_ZOMBIE else "S",
                    parent=process.ppid(),
                    group=os.getpgid(pid),
                    session=os.getsid(pid),
                    start_ticks=round(process.create_time() * _TICKS_PER_S),
                )
        except (psutil.NoSuchProcess, ProcessLookupError):
            return None
        except (psutil.AccessDenied, PermissionError):
            return Stat(pid, "S", 0, 0, 0, 0)

    def chain(self, pid: int) -> tuple[str, ...]:
        """Return the run tokens in its environment; raises UnreadableError."""
        try:
            value = psutil.Process(pid).environ().get(TOKEN_VARIABLE, "")
        except psutil.NoSuchProcess:
            return ()
        except (psutil.AccessDenied, OSError) as error:
            raise UnreadableError from error
        return tuple(part for part in value.split(",") if part)

    def children(self, pid: int) -> tuple[int, ...]:
        """Return its children."""
        try:
            return tuple(child.pid for child in psutil.Process(pid).children())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return ()

    def peak_bytes(self, pid: int) -> int | None:
        """Return its resident memory now: there is no high-water mark to read."""
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    def command(self, pid: int) -> str:
        """Return its command line, or its name in brackets."""
        try:
            process = psutil.Process(pid)
            return " ".join(process.cmdline()) or f"[{process.name()}]"
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return ""


def local_system() -> System:
    """Return the reader for this machine."""
    return ProcSystem() if LINUX else PsutilSystem()
