"""File locks that the kernel drops when their holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Final

# A fork must not happen between the opening of a descriptor and its being known here, or the
# child would keep a lock alive that its parent lost by dying.
_forking = threading.RLock()
_held: set[int] = set()
_BUSY: Final = frozenset({errno.EAGAIN, errno.EACCES})


def try_lock(path: Path, *, mode: int, create: bool = True) -> int | None:
    """Open a file and lock it; None when somebody else has it.

    Raises OSError, FileNotFoundError without `create`.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    with _forking:
        file = os.open(path, flags, mode)
        _held.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except OSError as error:
            unlock(file)
            if error.errno in _BUSY:
                return None
            error.filename = str(path)
            raise
        unlock(file)  # it was moved or removed between our open and our lock
        return None


def unlock(file: int) -> None:
    """Unlock and close a file that `try_lock` returned."""
    with _forking:
        _held.discard(file)
        try:
            fcntl.flock(file, fcntl.LOCK_UN)  # also where a forked child has the descriptor
        finally:
            os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _close_in_child() -> None:
    for file in _held:
        os.close(file)
    _held.clear()
    _forking.release()


os.register_at_fork(
    before=_forking.acquire,
    after_in_parent=_forking.release,
    after_in_child=_close_in_child,
)
