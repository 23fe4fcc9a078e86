"""A file on its way: locked, only appended to, hashed as it grows, and renamed once it is right."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from moorage.hub.listing import HubFile
from moorage.hub.locks import try_lock, unlock
from moorage.protocols import FetchCancelledError, Flag

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
GIVEN_BACK: Final = 64 << 20
"""Bytes that a part gives back to a disk it has filled: the event log may be on it, too."""
_READ: Final = 4 << 20
_MODE: Final = 0o666  # less the umask, as any file of the cache


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class Part:
    """What there is of a file. Made by `open`, which locks it; used by one thread."""

    def __init__(self, path: Path, descriptor: int, file: HubFile) -> None:
        self._path = path
        self._descriptor = descriptor
        self._file = file
        self.size = os.fstat(descriptor).st_size
        self._hashed = 0
        self._hash = _new_hash(file)
        if self.size > file.size:
            self.restart()

    @classmethod
    def open(cls, path: Path, file: HubFile) -> Part | None:
        """Go on with what there is, or begin; None while somebody else has it. Raises OSError."""
        descriptor = try_lock(path, mode=_MODE)
        if descriptor is None:
            return None
        try:
            return cls(path, descriptor, file)
        except BaseException:
            unlock(descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Unlock it; what has come stays for the next attempt."""
        try:
            if self.size == 0:
                self.discard()
        finally:
            unlock(self._descriptor)

    def append(self, data: bytes) -> None:
        """Store what came. Raises OSError; after ENOSPC some of it is given back."""
        rest = memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._descriptor, rest, self.size)
                if self._hashed == self.size:
                    self._hash.update(rest[:count])
                    self._hashed += count
                self.size += count
                rest = rest[count:]
        except OSError as error:
            error.filename = str(self._path)
            if error.errno in NO_SPACE:
                self.cut(max(0, self.size - GIVEN_BACK))
            raise

    def restart(self) -> None:
        """Forget what there is."""
        self.cut(0)

    def cut(self, size: int) -> None:
        """Forget what came after so many bytes."""
        os.ftruncate(self._descriptor, size)
        self.size = size
        self._hashed = 0
        self._hash = _new_hash(self._file)

    def catch_up(self, cancelled: Flag) -> None:
        """Read what an earlier attempt left, to hash it. Raises FetchCancelledError, OSError."""
        while self._hashed < self.size:
            if cancelled.is_set():
                raise FetchCancelledError
            data = os.pread(self._descriptor, min(_READ, self.size - self._hashed), self._hashed)
            if not data:
                raise OSError(errno.EIO, "it was cut by somebody else", str(self._path))
            self._hash.update(data)
            self._hashed += len(data)

    def copy(self, path: Path, cancelled: Flag) -> None:
        """Take the rest from a file of this disk. Raises FetchCancelledError, OSError."""
        with path.open("rb") as source:
            source.seek(self.size)
            while data := source.read(min(_READ, self._file.size - self.size)):
                if cancelled.is_set():
                    raise FetchCancelledError
                self.append(data)

    def is_right(self) -> bool:
        """Tell whether all of it is here and has the hash it should have."""
        whole = self._hashed == self.size == self._file.size
        return whole and self._hash.hexdigest() == self._file.etag

    def become(self, blob: Path) -> None:
        """Put it under its final name, once it is on the disk. Raises OSError."""
        os.fsync(self._descriptor)
        self._path.replace(blob)

    def discard(self) -> None:
        """Remove it, or whatever was not renamed of it."""
        if self._is_there():
            self._path.unlink()

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def _new_hash(file: HubFile) -> _Hash:
    if file.hash.startswith("sha256:"):
        return hashlib.sha256()
    # As git names what it stores: this is no defence, and the hub has nothing else for it.
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
