"""The output files of servers: opened for append, read from the end, rotated in place."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from pathlib import Path

_log = logging.getLogger(__name__)

_TAIL_BYTES = 64 * 1024
_LINE_CHARS = 1000
_COPY_BYTES = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_ROTATED = re.compile(r"(?P<base>.*)\.\d{1,6}(?:\.part)?")


def open_log(path: Path) -> tuple[int, bool]:
    """Open for append, making the folders (0700) and the file (0600); tell whether it was made.

    Raises OSError. The descriptor is close-on-exec. A symbolic link is not followed.
    """
    try:
        return _open_log(path)
    except FileNotFoundError:
        _make_private(path.parent)
        return _open_log(path)


def _open_log(path: Path) -> tuple[int, bool]:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        fd = os.open(path, flags)
    os.set_blocking(fd, True)  # NONBLOCK only kept a FIFO from holding us up
    return fd, False


def _make_private(folder: Path) -> None:
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):  # mkdir(parents=True) gives the mode to the last one only
        path.mkdir(mode=0o700, exist_ok=True)


def tail(path: Path, lines: int) -> tuple[str, ...]:
    """Return the last lines, harmless to print; those before a rotation where it just happened."""
    if lines <= 0:
        return ()
    found = _last_lines(path, lines)
    if len(found) < lines:
        found = _last_lines(path.with_name(path.name + ".1"), lines - len(found)) + found
    return tuple(found)


def _last_lines(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"({path.name} cannot be read: {error.strerror})"]
    text = data.decode("utf-8", "replace")
    if size > _TAIL_BYTES:
        text = text.partition("\n")[2] or text  # the first line is cut in the middle
    cleaned = [_clean(line) for line in text.rstrip("\r\n").split("\n")] if text else []
    return cleaned[-lines:]


def _clean(line: str) -> str:
    # Progress bars overwrite themselves with carriage returns: the last one is what was seen.
    line = _COLOUR.sub("", line.rstrip("\r").rpartition("\r")[2]).expandtabs(4)
    line = line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def rotate(path: Path, keep: int) -> None:
    """Move the content to `path.1`, older ones up by one, and truncate the file in place.

    The server keeps its descriptor, so lines it writes between copy and truncate are lost.
    When the disk is full the copy is given up and the file truncated all the same: a bounded
    log matters more than an old one.
    """
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    if keep > 0:
        _copy(path, path.with_name(path.name + ".1"))
    os.truncate(path, 0)


def _copy(source: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    try:
        with source.open("rb") as reader, part.open("wb") as writer:
            os.fchmod(writer.fileno(), 0o600)
            left = os.fstat(reader.fileno()).st_size  # a flood must not keep the copy going
            while left > 0 and (data := reader.read(min(left, _COPY_BYTES))):
                writer.write(data)
                left -= len(data)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise
        _log.warning("%s is truncated without a copy: %s", source, error.strerror)


def prune(path: Path, run: int, keep: int, live: set[Path]) -> None:
    """Remove the oldest log files of the same model, all but `keep` and those of live runs.

    Files of the same model are those in the same folder whose names differ from this one's only
    in the run number. Their rotated parts count too.
    """
    pattern = _siblings(path.name, run)
    if pattern is None:
        return
    aged: list[tuple[float, Path]] = []
    for entry in path.parent.iterdir():
        rotated = _ROTATED.fullmatch(entry.name)
        base = rotated["base"] if rotated and pattern.fullmatch(rotated["base"]) else entry.name
        if pattern.fullmatch(base) and entry not in live and entry != path:
            with contextlib.suppress(FileNotFoundError):  # removed by somebody else meanwhile
                aged.append((entry.stat().st_mtime, entry))
    aged.sort(reverse=True)
    for _, old in aged[keep:]:
        old.unlink(missing_ok=True)


def _siblings(name: str, run: int) -> re.Pattern[str] | None:
    found = list(re.finditer(r"\d+", name))
    for match in reversed(found):
        if int(match[0]) == run:
            before, after = name[: match.start()], name[match.end() :]
            return re.compile(re.escape(before) + r"\d+" + re.escape(after))
    return None
