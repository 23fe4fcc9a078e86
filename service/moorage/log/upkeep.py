"""Keeps the -wal short, and notices who keeps it long."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from moorage.log import segments
from moorage.log.files import companions
from moorage.log.writer import Writer

WAL_ALARM_BYTES = 64 << 20
"""A -wal that readers keep from shrinking is reported from this size on."""
_KERNEL_LOCKS = Path("/proc/locks")
_READ_MARKS = range(123, 128)
"""Bytes of the -shm that SQLite's readers lock while a query is open (WAL_READ_LOCK)."""


def tidy(writer: Writer, database: Path) -> str:
    """Checkpoint as far as readers allow, waiting for none; return what is wrong, else ""."""
    wal, shm, _ = companions(database)
    try:
        _, frames, done = writer.execute("PRAGMA wal_checkpoint(PASSIVE)")[0]
        size = wal.stat().st_size
        large = segments.grown(database)
    except (sqlite3.Error, DBAPIError, OSError):
        return ""  # the next append meets it again, and tells it
    if done >= frames or size < WAL_ALARM_BYTES:
        return large
    pids = sorted(set(_readers(shm)))
    who = f"process {', '.join(map(str, pids))} keeps" if pids else "someone keeps"
    return (
        f"{wal} has grown to {size >> 20} MB and cannot shrink: {who} a query on the log open; "
        "end it, or read a backup of the log"
    )


def _readers(shm: Path) -> Iterator[int]:
    """Yield the other processes that the kernel lists with a query open."""
    try:
        inode = str(shm.stat().st_ino)
        lines = _KERNEL_LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for fields in map(str.split, lines):
        if "POSIX" not in fields or "->" in fields:
            continue
        pid, place, first, last = fields[-4:]
        in_marks = first in map(str, _READ_MARKS) or last in map(str, _READ_MARKS)
        if place.rpartition(":")[2] == inode and in_marks and int(pid) not in (os.getpid(), -1):
            yield int(pid)
