"""The state folder and what lies in it."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from moorage.errors import StateError

# Whatever SQLite may put beside a database.
_COMPANIONS = ("-wal", "-shm", "-journal")
SIDE_FILE_BYTES = 1 << 20
"""More than what is beside a database ever holds."""


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Paths of one state folder; none needs to exist."""

    folder: Path

    @property
    def database(self) -> Path:
        """The event log."""
        return self.folder / "moorage.db"

    @property
    def archive(self) -> Path:
        """The folder of the older segments; see `segments`."""
        return self.folder / "archive"

    @property
    def part(self) -> Path:
        """A new segment while it is being made."""
        return self.folder / "moorage.db.part"

    @property
    def lock(self) -> Path:
        """The side file that the owner holds an flock on; names the owner."""
        return self.folder / "moorage.lock"

    @property
    def head(self) -> Path:
        """The last seq and hash, kept apart from the database so that a cut tail shows."""
        return self.folder / "moorage.head"

    @property
    def cuts(self) -> Path:
        """One line for each time the database was found shorter than, or unlike, its head file."""
        return self.folder / "moorage.cuts"


def companions(database: Path) -> tuple[Path, ...]:
    """Return the paths of the -wal, -shm and -journal of a database."""
    return tuple(database.with_name(database.name + suffix) for suffix in _COMPANIONS)


def check_companions(database: Path) -> None:
    """Raise StateError when SQLite would take for its own what is no file, and may never end."""
    for path in companions(database):
        if (path.exists() or path.is_symlink()) and not path.is_file():
            raise StateError(str(path), "is no file; move it away, its name belongs to the log")


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError also for a pipe or a device: they may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no file", str(path))


def read_plain(path: Path, most: int = SIDE_FILE_BYTES) -> bytes:
    """Return what a file holds, of a large one the beginning. Raises OSError as `open_plain`."""
    with open_plain(path) as file:
        return file.read(most)


def make_folder(folder: Path) -> tuple[Path, ...]:
    """Make a state folder of mode 0700 where there is none; return the folders made, inner first.

    Raises StateError when it is a file, of another user or not usable by this one.
    """
    try:
        made = _make_missing(folder)
        _check_folder(folder)
    except OSError as error:
        raise StateError(str(folder), f"no usable state folder: {error.strerror}") from error
    return made


def remove_folders(folders: tuple[Path, ...]) -> None:
    """Remove folders that were just made, as far as nobody has put anything into them."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return  # someone else uses it by now, and then it has to stay


def sync(path: Path) -> None:
    """Wait until a file, or which names a folder holds, is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """Make a database of mode 0600 that appears at its path when it is whole and on the disk.

    Yields where to write it until then: a new file beside the target that nobody else writes to.
    Raises StateError when the target cannot be written, or is there by then: nothing is replaced.
    Whatever is raised, nothing is left; what a SIGKILL leaves is in nobody's way.
    """
    part = _begin(target)
    try:
        yield part
        _keep(part, target)
    finally:
        for path in (part, *companions(part)):
            path.unlink(missing_ok=True)


def _begin(target: Path) -> Path:
    try:
        descriptor, part = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
        os.close(descriptor)
    except OSError as error:
        raise _unwritable(target, error) from error
    return Path(part)


def _keep(part: Path, target: Path) -> None:
    try:
        sync(part)
        os.link(part, target)  # unlike rename, never replaces what came meanwhile
        try:
            sync(target.parent)
        except BaseException:
            target.unlink()
            raise
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> StateError:
    return StateError(str(target), f"cannot be written: {error.strerror}")


def check_owner(path: Path) -> None:
    """Raise StateError when an existing path belongs to another user."""
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise StateError(
            str(path),
            f"belongs to user {owner} and not to this one ({os.geteuid()}); "
            "run as that user, or name another state folder",
        )


def _make_missing(folder: Path) -> tuple[Path, ...]:
    made: list[Path] = []
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            made.insert(0, path)
    except OSError:
        remove_folders(tuple(made))
        raise
    return tuple(made)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise StateError(str(folder), "is a file; a state is a folder")
    check_owner(folder)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=_BY_EFFECTIVE_USER):
        raise StateError(str(folder), "cannot be read and written by this user")


_BY_EFFECTIVE_USER = os.access in os.supports_effective_ids
