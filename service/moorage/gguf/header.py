"""Reads the header of a GGUF file, and refuses what no server could load."""

from __future__ import annotations

import functools
import math
import os
import stat
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from moorage.gguf.other import what_instead

_MAGIC: Final = b"GGUF"
_READABLE_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32

_STRING: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),  # a boolean
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _NUMBERS[4]
_U64: Final = _NUMBERS[10]

# Elements and bytes of one block of each tensor type, by its number in the file.
_BLOCKS: Final = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}

# A header that claims more than these is taken for damage, not for a reason to loop for hours.
_MAX_KEYS: Final = 1 << 16
_MAX_KEY_BYTES: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 20
_MAX_ITEMS: Final = 1 << 24
_MAX_HEADER_BYTES: Final = 1 << 30
_MAX_DEPTH: Final = 4
_MAX_DIMENSIONS: Final = 8  # ggml has 4; room for what comes
_WINDOW_BYTES: Final = 1 << 20

_KEPT: Final = frozenset(
    {b"general.alignment", b"general.architecture", b"split.no", b"split.count"}
)


class GgufError(ValueError):
    """The file cannot be a usable GGUF model; `reason` says why, without the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Gguf:
    """What a file says of itself; `part` counts from 0."""

    architecture: str = ""
    part: int = 0
    parts: int = 1


def check_gguf(path: str | os.PathLike[str]) -> Gguf:
    """Refuse what is no GGUF file, a damaged header, and a file shorter than its tensors.

    Reads the header only; a file that has not changed since it passed is not read again.
    Raises GgufError, and OSError when the file cannot be opened.
    """
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise GgufError(os.fspath(path), "is no regular file")
    return _check_version_of_file(
        os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns
    )


@functools.lru_cache(maxsize=256)
def _check_version_of_file(path: str, _inode: int, size: int, _mtime_ns: int) -> Gguf:
    with Path(path).open("rb") as file:
        return _read(_Header(path, file, size))


class _Header:
    """A window on the beginning of a file, moved on as it is read."""

    # A map of the file would be simpler, and kill the process when the file shrinks meanwhile.

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._data = b""
        self._start = 0  # where the window begins in the file
        self._at = 0  # in the window; behind its end after a long step
        self.size = size

    @property
    def offset(self) -> int:
        return self._start + self._at

    def bad(self, reason: str) -> GgufError:
        return GgufError(self._path, reason)

    def damaged(self, claim: str) -> GgufError:
        return self.bad(f"has a damaged header: {claim}; fetch it again")

    def peek(self, count: int) -> bytes:
        """Return up to so many of the next bytes."""
        if len(self._data) - self._at < count:
            self._start, self._at = self.offset, 0
            if self._start > min(self.size, _MAX_HEADER_BYTES):
                raise self._cut()
            self._file.seek(self._start)
            self._data = self._file.read(max(count, _WINDOW_BYTES))
        return self._data[self._at : self._at + count]

    def _cut(self) -> GgufError:
        return self.bad("ends within its header: it is truncated; fetch it again")

    def take(self, count: int) -> bytes:
        data = self.peek(count)
        if len(data) < count:
            raise self._cut()
        self._at += count
        return data

    def skip(self, count: int) -> None:
        self._at += count

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def count(self, what: str, limit: int) -> int:
        value: int = self.number(_U64)
        if value > limit:
            raise self.damaged(f"it claims {value} {what}")
        return value

    def text(self) -> bytes:
        return self.take(self.count("bytes of a name", _MAX_KEY_BYTES))

    def value(self, kind: int) -> Any:
        """Return a number or a text, None for an array, which is stepped over."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        return self.skip_value(kind)

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind in _NUMBERS:
            self.skip(_NUMBERS[kind].size)
        elif kind == _STRING:
            self.skip(self.number(_U64))
        elif kind == _ARRAY and depth < _MAX_DEPTH:
            self._skip_array(depth)
        else:
            raise self.damaged(f"there is no value type {kind}")

    def _skip_array(self, depth: int) -> None:
        kind: int = self.number(_U32)
        if kind in _NUMBERS:
            self.skip(self.number(_U64) * _NUMBERS[kind].size)
            return
        items = self.count("array items", _MAX_ITEMS)
        if kind == _STRING:
            self._skip_strings(items)
            return
        for _ in range(items):
            self.skip_value(kind, depth + 1)

    def _skip_strings(self, left: int) -> None:
        # A vocabulary has hundreds of thousands: this loop is where a check spends its time.
        length = _U64.unpack_from
        while left:
            if len(self.peek(_U64.size)) < _U64.size:
                raise self._cut()
            data, at, done = self._data, self._at, 0
            try:
                for done in range(left):  # noqa: B007 - read where the window ends
                    (size,) = length(data, at)
                    at += size + 8
            except (struct.error, OverflowError):
                left -= done
            else:
                left = 0
            self._at = at


def _read(header: _Header) -> Gguf:
    tensors = _read_start(header)
    if tensors is None:
        return Gguf()
    kept: dict[bytes, Any] = {}
    for _ in range(header.count("keys", _MAX_KEYS)):
        key, kind = header.text(), header.number(_U32)
        if key in _KEPT:
            kept[key] = header.value(kind)
        else:
            header.skip_value(kind)
    _check_size(header, tensors, _whole(kept.get(b"general.alignment"), _ALIGNMENT))
    named = kept.get(b"general.architecture")
    return Gguf(
        architecture=named.decode(errors="replace") if isinstance(named, bytes) else "",
        part=_whole(kept.get(b"split.no"), 0),
        parts=_whole(kept.get(b"split.count"), 1),
    )


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise


def _read_start(header: _Header) -> int | None:
    """Return how many tensors there are, None where this reader cannot judge."""
    if not header.size:
        raise header.bad("is empty; fetch it again")
    if header.peek(len(_MAGIC)) != _MAGIC:
        raise header.bad(f"is no GGUF file: {what_instead(header.peek(512))}")
    header.skip(len(_MAGIC))
    if sys.byteorder == "big":
        return None  # its servers read numbers the other way round
    version: int = header.number(_U32)
    if version not in _READABLE_VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "is big-endian" if swapped in _READABLE_VERSIONS else f"has version {version}"
        raise header.bad(f"cannot be read: the GGUF file {why}; convert it again")
    return header.count("tensors", _MAX_TENSORS)


def _check_size(header: _Header, tensors: int, alignment: int) -> None:
    if not tensors:  # the first part of a split model may have none
        if header.offset > header.size:
            header.peek(1)
        return
    end = max(_tensor_end(header) for _ in range(tensors))
    wanted = header.offset + -header.offset % alignment + end
    if header.size < wanted:
        raise header.bad(
            f"is truncated: it has {header.size} bytes, its tensors need {wanted}; fetch it again"
        )


def _tensor_end(header: _Header) -> int:
    """Step over a tensor's description; return where its data end, from the data's start."""
    header.text()
    dimensions: int = header.number(_U32)
    if dimensions > _MAX_DIMENSIONS:
        raise header.damaged(f"a tensor of {dimensions} dimensions")
    elements: int = math.prod(header.number(_U64) for _ in range(dimensions))
    # What is no known type yet is left to the server.
    per_block, block_bytes = _BLOCKS.get(header.number(_U32), (elements or 1, 0))
    offset: int = header.number(_U64)
    return offset + -(-elements // per_block) * block_bytes
