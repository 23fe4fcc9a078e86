"""Whether a log has an owner just now, found out without touching the owner's locks.

Trying the lock would tell too, and make a service that opens at that very moment believe that the
log is taken.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil

from moorage.log.files import StateFiles, read_plain
from moorage.log.lock import read_owner

_KERNEL_LOCKS = Path("/proc/locks")
_KERNEL_SOCKETS = Path("/proc/net/unix")


@dataclass(frozen=True, slots=True)
class Owner:
    """`alive` is None when it cannot be seen from here; `who` is empty when nobody is named."""

    alive: bool | None
    who: str = ""


def look_for_owner(database: Path) -> Owner:
    """Return who owns the log of this database; a copy of a database has no owner."""
    lock = StateFiles(database.parent).lock
    if database != StateFiles(database.parent).database:
        return Owner(alive=False)
    try:
        status = lock.stat()
    except FileNotFoundError:
        return Owner(alive=False)
    except OSError:
        return Owner(alive=None)
    named = _named(lock)
    held = _held(status.st_ino, status.st_dev, named.get("pid"))
    if held or (not status.st_size and held is not None):
        return Owner(held, read_owner(lock) if status.st_size else "")
    return Owner(_process_alive(named, held), read_owner(lock) if named else "")


def is_claimed(log_id: str) -> bool:
    """Return whether somebody on this host owns the log, be it through another copy of it."""
    try:
        sockets = _KERNEL_SOCKETS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(line.endswith(f"@moorage-{log_id}") for line in sockets.splitlines())


def _named(lock: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_plain(lock))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _held(inode: int, device: int, pid: object) -> bool | None:
    """Return whether the kernel lists a lock on the file, None when it lists none at all."""
    try:
        lines = _KERNEL_LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for fields in map(str.split, lines):
        if "FLOCK" in fields and "->" not in fields and _is_file(fields, inode, device, pid):
            return True
    return False


def _is_file(fields: list[str], inode: int, device: int, pid: object) -> bool:
    place = next((field for field in fields if field.count(":") == 2), "")  # noqa: PLR2004
    major, _, rest = place.partition(":")
    minor, _, number = rest.partition(":")
    if number != str(inode):
        return False
    # Some file systems tell programs another device than they tell the kernel.
    same_device = (int(major, 16), int(minor, 16)) == (os.major(device), os.minor(device))
    return same_device or str(pid) in fields


def _process_alive(named: dict[str, Any], held: bool | None) -> bool | None:
    """Judge by the pid the lock file names where the kernel's list says nothing or not held."""
    if not named or named.get("host") != socket.gethostname():
        return None if named else False
    if held is False:
        return False
    pid = named.get("pid")
    return psutil.pid_exists(pid) if isinstance(pid, int) else None
