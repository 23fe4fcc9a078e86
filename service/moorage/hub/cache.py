"""The user's own cache, as huggingface_hub lays it out and documents it: blobs, snapshots, refs.

A file is stored once under its hash in `blobs`, and `snapshots/<commit>/<name>` links to it. Ours
are the part files beside the blobs, of what is not whole yet, and `moorage/<commit>.json`, which
says what the commit has: a snapshot alone does not tell whether it is complete.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from huggingface_hub import constants, get_cached_repo_tree
from huggingface_hub.errors import CachedRepoTreeNotFoundError

from moorage.hub.listing import COMMIT, HubFile, Listing
from moorage.hub.locks import try_lock, unlock

PART: Final = ".moorage.part"
_LINK: Final = ".moorage.link"
"""A link on its way to the place of one that is damaged."""
STALE_S: Final = 7 * 86_400.0
"""A part file that nobody went on with for so long is removed by whoever fetches next."""
_LOCK_MODE: Final = 0o664
"""As huggingface_hub makes them: a group may share a cache."""
_TAG: Final = "Signature: 8a477f597d28d172789f06886806bc55\n"
_log = logging.getLogger(__name__)


class RepoCache:
    """What one repo has in the cache. Used by one thread."""

    def __init__(self, cache_dir: str | None, repo: str) -> None:
        self._repo = repo
        self._cache = Path(cache_dir or constants.HF_HUB_CACHE).expanduser().absolute()
        folder = "--".join(("models", *repo.split("/")))
        self._root = self._cache / folder
        self._locks = self._cache / ".locks" / folder

    @property
    def blobs(self) -> Path:
        """Where contents are."""
        return self._root / "blobs"

    def blob(self, file: HubFile) -> Path:
        """Return where a file's content is, or will be."""
        return self.blobs / file.etag

    def part(self, file: HubFile) -> Path:
        """Return where a file's content grows."""
        return self.blobs / f"{file.etag}{PART}"

    def snapshot(self, commit: str) -> Path:
        """Return the folder that has a commit's files by their names."""
        return self._root / "snapshots" / commit

    def has(self, commit: str, file: HubFile) -> bool:
        """Tell whether a file is here already, whole as far as its size says."""
        return self._linked(commit, file) or self.has_blob(file)

    def has_blob(self, file: HubFile) -> bool:
        """Tell whether a file's content is here, whole as far as its size says."""
        return _size(self.blob(file)) == file.size

    def needed(self, files: Iterable[HubFile]) -> int:
        """Return how many bytes of them are still to come."""
        return sum(
            file.size - min(_size(self.part(file)) or 0, file.size)
            for file in files
            if not self.has_blob(file)
        )

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a revision meant when it was last asked for."""
        try:
            noted = self._root.joinpath("refs", *PurePosixPath(revision).parts).read_text("ascii")
        except (OSError, ValueError):
            noted = revision
        return noted if COMMIT.fullmatch(noted) and self.snapshot(noted).is_dir() else None

    def files(self, commit: str) -> list[HubFile]:
        """Return what is here of a commit; where the cache cannot tell an etag, it has no hash."""
        root = self.snapshot(commit)
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        return [
            HubFile(str(path.relative_to(root)), path.stat().st_size, _etag(path)) for path in paths
        ]

    def room(self) -> tuple[str, int]:
        """Return where contents are stored, and how many bytes are free there."""
        folder = next(path for path in (self.blobs, *self.blobs.parents) if path.exists())
        disk = os.statvfs(folder)
        return str(self.blobs), disk.f_bavail * disk.f_frsize

    def prepare(self) -> None:
        """Make the folders. Raises OSError."""
        new = not self._cache.exists()
        for folder in (self.blobs, self._locks):
            folder.mkdir(parents=True, exist_ok=True)
        if new:
            (self._cache / "CACHEDIR.TAG").write_text(_TAG)  # keeps backups out

    def try_lock_others(self, file: HubFile) -> int | None:
        """Lock out who fetches the same file by huggingface_hub; None while somebody does."""
        return try_lock(self._locks / f"{file.etag}.lock", mode=_LOCK_MODE)

    def twin(self, commit: str, names: Iterable[HubFile]) -> Path | None:
        """Return where a content that several names have is to be had by one of them."""
        return next(
            (self._pointer(commit, file) for file in names if self._linked(commit, file)), None
        )

    def link(self, commit: str, files: Sequence[HubFile]) -> bool:
        """Show contents under their names until one is not here. Raises OSError.

        On a disk without links a content moves to its name, and has to be brought for the next.
        """
        return all(self._linked(commit, file) or self._link(commit, file) for file in files)

    def note_sizes(self, listed: Listing) -> None:
        """Note what a commit has, so that what is shown of it is not taken for all of it."""
        _note(self._listing(listed.commit), json.dumps(listed.sizes))

    def note_revision(self, revision: str, commit: str) -> None:
        """Note what a revision means, for when the hub is unreachable."""
        refs = self._root / "refs"
        note = refs.joinpath(*PurePosixPath(revision).parts)
        if revision != commit and refs.resolve() in note.resolve().parents:
            _note(note, commit)

    def sizes(self, commit: str) -> Mapping[str, int] | None:
        """Return what a commit has, as we or huggingface_hub have noted; None when nobody has."""
        try:
            noted: Any = json.loads(self._listing(commit).read_bytes())
            if isinstance(noted, dict):
                return cast("dict[str, int]", noted)
        except (OSError, ValueError):
            pass  # not noted, or not to its end
        try:
            tree = get_cached_repo_tree(self._repo, revision=commit, cache_dir=self._cache)
        except CachedRepoTreeNotFoundError:
            return None
        return {file.path: file.size for file in tree}

    def sweep(self, wanted: Sequence[HubFile]) -> None:
        """Remove what fetches of ours left in this cache that nobody goes on with.

        These are parts of what is here whole by now, and those that nobody has touched for
        STALE_S. What another fetch holds stays, and so does what is not ours.
        """
        mine = {self.part(file) for file in wanted}
        for part in self._cache.glob(f"models--*/blobs/*{PART}"):
            whole = part.with_name(part.name.removesuffix(PART))
            if part not in mine and (whole.exists() or _age_s(part) > STALE_S):
                _remove(part)

    def _listing(self, commit: str) -> Path:
        return self._root / "moorage" / f"{commit}.json"

    def _pointer(self, commit: str, file: HubFile) -> Path:
        return self.snapshot(commit).joinpath(*PurePosixPath(file.name).parts)

    def _linked(self, commit: str, file: HubFile) -> bool:
        return _size(self._pointer(commit, file)) == file.size

    def _link(self, commit: str, file: HubFile) -> bool:
        pointer = self._pointer(commit, file)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        try:
            _show(self.blob(file), pointer)
        except FileExistsError:
            if not self._linked(commit, file):  # else somebody else has shown it just now
                _mend(self.blob(file), pointer)
        except FileNotFoundError:  # it has moved to another name, or somebody else has shown it
            return self._linked(commit, file)
        return True


def _show(blob: Path, pointer: Path) -> None:
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except FileExistsError:
        raise
    except OSError:  # no links here: as huggingface_hub does, it stands there itself
        blob.replace(pointer)


def _mend(blob: Path, pointer: Path) -> None:
    """Show a content in the place of what is damaged, in one step: others may do so, too."""
    new = pointer.with_name(f".{blob.name}{_LINK}")
    try:
        with suppress(FileExistsError):  # of another one, or one who was killed: it is the same
            new.symlink_to(os.path.relpath(blob, pointer.parent))
        with suppress(FileNotFoundError):  # another one has moved it
            new.replace(pointer)
    except OSError:  # no links here, or it cannot be replaced, which is told
        new.unlink(missing_ok=True)
        blob.replace(pointer)


def _note(path: Path, text: str) -> None:
    try:
        if not path.is_file() or path.read_text("utf-8", "replace") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:  # such as in a cache that is only read
        _log.info("%s is not noted: %s", path, error)


def _etag(path: Path) -> str:
    # A blob is named by its hash; where links are impossible, the file stands there itself.
    return path.readlink().name if path.is_symlink() else ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(part: Path) -> None:
    with suppress(OSError):  # it has gone, or is another user's
        file = try_lock(part, mode=0o600, create=False)
        if file is not None:
            try:
                part.unlink()
                _log.info("removed %s, which nobody goes on with", part)
            finally:
                unlock(file)
