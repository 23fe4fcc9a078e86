"""A server's output file, read from its end and followed, also across a rotation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moorage.cli.console import harmless
from moorage.errors import StateError
from moorage.log.files import open_plain

_BLOCK_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 28
"""Of one file, however many lines are asked for."""
_LINE_BYTES: Final = 1 << 20
"""What has no end for longer than this is printed in parts."""
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class OutputFile:
    """What a server has written and goes on to write. Raises StateError when it is unreadable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rotated = path.with_name(f"{path.name}.1")
        self._position = 0

    def last(self, lines: int, *, unfinished: bool) -> list[str]:
        """Return the last lines, for `more` to go on behind them.

        A line that has no end yet is left to `more` unless `unfinished` ones are wanted.
        """
        try:
            data, self._position = _ending(self._path, lines)
        except FileNotFoundError as error:
            problem = "is gone; of each model only the newest output files are kept"
            raise StateError(str(self._path), problem) from error
        except OSError as error:
            raise self._unreadable(error) from error
        whole, rest = _split(data)
        if rest and unfinished:
            whole.append(rest)
        elif rest:
            self._position -= len(rest)
        if len(whole) < lines:
            whole = self._before(lines - len(whole)) + whole
        return [_clean(line) for line in whole[-lines:]] if lines else []

    def more(self, *, to_the_end: bool) -> Iterator[str]:
        """Yield the lines written since; the last one also without its end where it is the end."""
        try:
            if self._size() < self._position:
                yield from self._rest_of_rotated()
            yield from self._lines(self._path, to_the_end=to_the_end)
        except FileNotFoundError:
            return  # not made yet, or removed: there is nothing more in it
        except OSError as error:
            raise self._unreadable(error) from error

    def _rest_of_rotated(self) -> Iterator[str]:
        # The file was copied and truncated; the copy holds what was not read before that.
        if self._rotated.exists():
            yield from self._lines(self._rotated, to_the_end=True)
        self._position = 0

    def _lines(self, path: Path, *, to_the_end: bool) -> Iterator[str]:
        with open_plain(path) as file:
            while True:
                file.seek(self._position)
                data = file.read(_LINE_BYTES)
                whole, rest = _split(data)
                if rest and (to_the_end or not whole) and (to_the_end or len(data) == _LINE_BYTES):
                    whole, rest = [*whole, rest], b""
                self._position += len(data) - len(rest)
                yield from map(_clean, whole)
                if len(data) < _LINE_BYTES:
                    return

    def _before(self, lines: int) -> list[bytes]:
        try:
            data, _ = _ending(self._rotated, lines)
        except OSError:
            return []  # it was never rotated, or only this older part cannot be had
        whole, rest = _split(data)
        return [*whole, *filter(None, (rest,))][-lines:]

    def _size(self) -> int:
        return self._path.stat().st_size

    def _unreadable(self, error: OSError) -> StateError:
        return StateError(str(self._path), f"cannot be read: {error.strerror}")


def _ending(path: Path, lines: int) -> tuple[bytes, int]:
    """Return the end of a file from the start of a line on, and the file's size then."""
    with open_plain(path) as file:
        size = file.seek(0, os.SEEK_END)
        start, blocks, newlines = size, list[bytes](), 0
        # One more than asked for: the last line may have no end yet.
        while start and newlines <= lines + 1 and size - start < _MOST_BYTES:
            length = min(_BLOCK_BYTES, start)
            start -= length
            file.seek(start)
            blocks.append(file.read(length))
            newlines += blocks[-1].count(b"\n")
    data = b"".join(reversed(blocks))
    return (data.partition(b"\n")[2] if start else data), size


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    *whole, rest = data.split(b"\n")
    return whole, rest


def _clean(line: bytes) -> str:
    # Progress bars overwrite themselves with carriage returns: the last one is what was seen.
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return harmless(_ESCAPE.sub("", text).expandtabs(8))
