"""One fetch: list and pin, transfer file by file, or fall back to what is cached."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from moorage.hub.access import HubAccess
from moorage.hub.problems import HUB_ERRORS, explain, is_unreachable
from moorage.protocols import FetchCancelledError, Fetched, FetchFailedError, Flag, Progress
from moorage.spec import ModelSpec

_DEFAULT_REVISION: Final = "main"
_SHA256_DIGITS: Final = 64
_NEAR_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    size: int
    hash: str


class Download:
    """Fetches for one spec. Used once, by one thread."""

    def __init__(
        self,
        access: HubAccess,
        spec: ModelSpec,
        progress: Callable[[Progress], None],
        cancelled: Flag,
    ) -> None:
        if spec.repo is None:
            raise FetchFailedError(f"{spec.name!r} has no repo to fetch from")
        self._spec = spec
        self._repo = spec.repo
        self._cancelled = cancelled
        self._cache_dir = access.cache_dir
        self._timeout_s = access.answer_timeout_s
        token = spec.secrets.get("HF_TOKEN") or access.token
        self._api = HfApi(endpoint=access.endpoint, token=token)
        self._meter = _Meter(progress, cancelled)

    def run(self) -> Fetched:
        """Return the local files; raise FetchFailedError or FetchCancelledError."""
        try:
            return self._fetch()
        except HUB_ERRORS as error:
            raise self._failed(error) from error

    def _fetch(self) -> Fetched:
        try:
            info = self._ask()
        except HUB_ERRORS as error:
            if is_unreachable(error) and (cached := self._cached()) is not None:
                return cached
            raise
        if info.sha is None:
            raise FetchFailedError(f"{self._api.endpoint} named no commit of {self._repo}")
        return self._transfer(info.sha, self._wanted(info.siblings or ()))

    def _ask(self) -> ModelInfo:
        """Return commit and listing by one request, so that they belong together.

        It is the one that is not repeated: a hub that is down is known at once.
        """
        self._stop_if_cancelled()
        return self._api.model_info(
            self._repo,
            revision=self._spec.revision,
            files_metadata=True,
            timeout=self._timeout_s,
        )

    def _wanted(self, siblings: Sequence[RepoSibling]) -> list[_File]:
        wanted = self._spec.file
        files = [_file(sibling) for sibling in siblings if wanted in (None, sibling.rfilename)]
        if not files:
            raise FetchFailedError(self._no_files([sibling.rfilename for sibling in siblings]))
        for file in files:
            _refuse_outside(file.name)
        return files

    def _no_files(self, names: Sequence[str]) -> str:
        where = f"{self._repo} at revision {self._spec.revision or _DEFAULT_REVISION!r}"
        wanted = self._spec.file
        if wanted is None or not names:
            return f"{where} has no files"
        near = difflib.get_close_matches(wanted, names, n=_NEAR_NAMES, cutoff=0.4)
        listed = ", ".join(near or sorted(names)[:_NEAR_NAMES])
        return f"{where} has no file {wanted!r}; it has {listed}"

    def _transfer(self, commit: str, files: Sequence[_File]) -> Fetched:
        self._meter.start(sum(file.size for file in files))
        path = ""
        for file in files:
            self._stop_if_cancelled()
            path = self._api.hf_hub_download(  # pyright: ignore[reportUnknownMemberType] - tqdm
                self._repo,
                file.name,
                revision=commit,
                cache_dir=self._cache_dir,
                etag_timeout=self._timeout_s,
                tqdm_class=self._meter.bar,
            )
            self._meter.finish(file.size)
        root = _root(path, files[-1].name)
        self._note_revision(commit, root)
        return Fetched(
            path=path if self._spec.file is not None else str(root),
            commit=commit,
            files=tuple((file.name, file.size, file.hash) for file in files),
            fetched_bytes=self._meter.received,
        )

    def _note_revision(self, commit: str, root: Path) -> None:
        """Note in the cache which commit the revision means, for when the hub is unreachable.

        huggingface_hub notes it only when it is asked by revision, and we ask by commit.
        """
        revision = self._spec.revision or _DEFAULT_REVISION
        refs = root.parent.parent / "refs"
        note = refs.joinpath(*PurePosixPath(revision).parts)
        if revision == commit or not note.resolve().is_relative_to(refs.resolve()):
            return
        if not note.is_file() or note.read_text(encoding="ascii", errors="replace") != commit:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(commit, encoding="ascii")

    def _cached(self) -> Fetched | None:
        """Return what the cache has, None when a wanted file is missing."""
        found = self._cached_path()
        if found is None:
            return None
        root = found if self._spec.file is None else _root(str(found), self._spec.file)
        paths = sorted(root.rglob("*")) if self._spec.file is None else [found]
        files = [_cached_file(path, root) for path in paths if path.is_file()]
        return Fetched(
            path=str(found),
            commit=root.name,
            files=tuple((file.name, file.size, file.hash) for file in files),
            fetched_bytes=0,
        )

    def _cached_path(self) -> Path | None:
        revision = self._spec.revision
        if self._spec.file is not None:
            found = try_to_load_from_cache(
                self._repo, self._spec.file, cache_dir=self._cache_dir, revision=revision
            )
            return Path(found).absolute() if isinstance(found, str) else None
        try:
            folder = self._api.snapshot_download(  # pyright: ignore[reportUnknownMemberType] - tqdm
                self._repo, revision=revision, cache_dir=self._cache_dir, local_files_only=True
            )
        except FileNotFoundError:
            return None
        return Path(folder).absolute()

    def _stop_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise FetchCancelledError

    def _failed(self, error: Exception) -> FetchFailedError:
        return FetchFailedError(explain(error, self._spec, self._api.endpoint))


class _Meter:
    """Counts what arrives, and ends the transfer by an exception when it is cancelled."""

    def __init__(self, progress: Callable[[Progress], None], cancelled: Flag) -> None:
        self._progress = progress
        self._cancelled = cancelled
        self._total = 0
        self._finished = 0
        self._current = 0
        self.received = 0

    @property
    def bar(self) -> Any:
        """A class with what huggingface_hub uses of tqdm."""
        meter = self

        class Bar:
            def __init__(self, **_settings: object) -> None:
                pass

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_error: object) -> None:
                pass

            def update(self, count: float | None = 1) -> None:
                meter.add(int(count or 0))

            def close(self) -> None:
                pass

            def refresh(self) -> None:
                pass

        return Bar

    def start(self, total: int) -> None:
        self._total = total
        self._tell()

    def add(self, count: int) -> None:
        """Count bytes; negative when the server began again from the start."""
        if self._cancelled.is_set():
            raise FetchCancelledError
        self._current += count
        self.received += max(count, 0)
        self._tell()

    def finish(self, size: int) -> None:
        self._finished += size
        self._current = 0
        self._tell()

    def _tell(self) -> None:
        done = self._finished + self._current
        self._progress(Progress(min(done, self._total), self._total))


def _file(sibling: RepoSibling) -> _File:
    if sibling.lfs is not None:
        return _File(sibling.rfilename, sibling.lfs.size, f"sha256:{sibling.lfs.sha256}")
    return _File(sibling.rfilename, sibling.size or 0, f"git:{sibling.blob_id}")


def _cached_file(path: Path, root: Path) -> _File:
    # The cache names a blob by its hash; where links are impossible, the file stands there itself.
    blob = path.resolve().name if path.is_symlink() else ""
    kind = "sha256" if len(blob) == _SHA256_DIGITS else "git"
    name = path.relative_to(root).as_posix()
    return _File(name, path.stat().st_size, f"{kind}:{blob}" if blob else "")


def _root(path: str, name: str) -> Path:
    """Return the snapshot's folder, given one of its files."""
    return Path(path).absolute().parents[len(PurePosixPath(name).parts) - 1]


def _refuse_outside(name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts:
        raise FetchFailedError(f"the hub lists a file {name!r}, which leaves the model's folder")
