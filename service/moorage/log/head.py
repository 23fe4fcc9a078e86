"""The head of the log kept beside its database, so that a tail that was cut off shows."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moorage.log.files import read_plain

_logger = logging.getLogger(__name__)

_SEQ_DIGITS = 20
_LINE_BYTES = _SEQ_DIGITS + 1 + 64 + 1
_HASH = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Head:
    """A place in the log: the last row's seq and hash."""

    seq: int
    hash: str


class HeadFile:
    """One line of fixed width, written over after every commit and synced by nobody.

    After a crash it may be behind the database, and never ahead of what was acknowledged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._failed = False

    def write(self, head: Head) -> None:
        """Write the head. A failure is logged once and costs a warning, not an event."""
        line = f"{head.seq:0{_SEQ_DIGITS}d} {head.hash}\n".encode("ascii")
        try:
            os.pwrite(self._file, line, 0)
        except OSError as error:
            if not self._failed:
                _logger.warning("%s cannot be written: %s", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        """Close the file. Call once."""
        os.close(self._file)


def read_head(path: Path) -> Head | None:
    """Return what a head file says, None when there is none or its line is torn."""
    try:
        line = read_plain(path, _LINE_BYTES + 1)
    except OSError:  # whatever is there is no head
        return None
    seq, _, digest = line.rstrip(b"\n").partition(b" ")
    if len(line) != _LINE_BYTES or not seq.isdigit() or not _HASH.fullmatch(digest):
        return None
    return Head(int(seq), digest.decode("ascii"))


def read_cuts(path: Path) -> tuple[str, ...]:
    """Return the lines that `note_cut` added, () when there are none. Raises OSError."""
    try:
        return tuple(read_plain(path).decode("ascii", errors="replace").splitlines())
    except FileNotFoundError:
        return ()


def note_cut(path: Path, expected: Head, found: Head) -> None:
    """Add a line that the database no longer has the head it had; the log goes on from `found`."""
    at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    line = f"{at} expected {expected.seq} {expected.hash} found {found.seq} {found.hash}\n"
    _logger.warning(
        "%s: the log had row %d, now it ends at row %d or differs there; it was cut, or replaced "
        "by an older copy",
        path.parent,
        expected.seq,
        found.seq,
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o600), "a", encoding="ascii") as file:
        file.write(line)
