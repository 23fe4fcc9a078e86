"""One fetch: list and pin, bring what is missing, show it; or fall back to what is cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from huggingface_hub import hf_hub_url, is_offline_mode
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # by __getattr__

from moorage.hub import listing
from moorage.hub.access import HubAccess
from moorage.hub.cache import RepoCache
from moorage.hub.listing import HubFile, Listing
from moorage.hub.meter import Meter
from moorage.hub.part import NO_SPACE
from moorage.hub.problems import HUB_ERRORS, explain, is_unreachable
from moorage.hub.transfer import Transfer, disk_full
from moorage.hub.tries import Tries
from moorage.hub.turns import Turn, Turns
from moorage.hub.wanted import NotThereError, Wanted, wanted
from moorage.hub.wire import Exchange, Headers, Wire
from moorage.protocols import Fetched, FetchFailedError, Flag, Progress
from moorage.spec import ModelSpec

_DEFAULT_REVISION: Final = "main"


class Download:
    """Fetches for one spec. Used once, by one thread."""

    def __init__(
        self,
        *,
        access: HubAccess,
        wire: Wire,
        turns: Turns,
        spec: ModelSpec,
        progress: Callable[[Progress], None],
        cancelled: Flag,
    ) -> None:
        if spec.repo is None:
            raise FetchFailedError(f"{spec.name!r} has no repo to fetch from")
        self._access = access
        self._wire = wire
        self._spec = spec
        self._repo = spec.repo
        self._revision = spec.revision or _DEFAULT_REVISION
        self._token = spec.secrets.get("HF_TOKEN") or access.token
        self._cancelled = cancelled
        self._meter = Meter(progress)
        self._turn = Turn(turns, cancelled, self._meter.waiting)
        self._cache = RepoCache(access.cache_dir, spec.repo)

    def run(self) -> Fetched:
        """Return the local files; raise FetchFailedError or FetchCancelledError."""
        try:
            validate_repo_id(self._repo)
            found = self._list()
            return found if isinstance(found, Fetched) else self._have(found)
        except HUB_ERRORS as error:
            raise explain(error, self._spec, self._wire.endpoint) from error

    def _list(self) -> Listing | Fetched:
        """Return what the hub lists; when it cannot be reached, what is cached will do."""
        access = self._access
        tries = Tries(
            access, self._cancelled, self._meter.waiting, within_s=access.answer_timeout_s
        )
        while True:
            try:
                return self._ask()
            except HUB_ERRORS as error:
                if is_unreachable(error) and (cached := self._cached()) is not None:
                    return cached
                tries.wait_or_raise(error)

    def _ask(self) -> Listing:
        if is_offline_mode():
            raise OfflineModeIsEnabled
        spec = self._spec
        return listing.ask(self._wire, self._repo, spec.revision, self._token, self._cancelled)

    def _have(self, listed: Listing) -> Fetched:
        try:
            chosen = wanted(self._spec, listed.files.keys())
        except NotThereError as error:
            where = f"{self._repo} at revision {self._revision!r}"
            raise FetchFailedError(f"{where} {error.problem}", "unknown-file") from error
        for name in chosen.names:
            listing.refuse_outside(name)
        files = [listed.files[name] for name in chosen.names]
        self._bring(listed, files)
        self._cache.note_sizes(listed)
        while not self._cache.link(listed.commit, files):
            self._bring(listed, files)
        self._cache.note_revision(self._revision, listed.commit)
        return self._fetched(listed.commit, chosen, files)

    def _bring(self, listed: Listing, files: Sequence[HubFile]) -> None:
        """Have all contents in the cache before the first is shown under its name."""
        missing = {file.etag: file for file in files if not self._cache.has(listed.commit, file)}
        total = sum(file.size for file in files)
        self._meter.begin(total, total - sum(file.size for file in missing.values()))
        if not missing:
            return
        try:
            self._cache.prepare()
            self._cache.sweep(files)
            self._turn.take()
            self._transfer(listed, list(missing.values()))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise disk_full(self._cache.needed(missing.values()), *self._cache.room()) from error
        finally:
            self._turn.give()

    def _transfer(self, listed: Listing, missing: Sequence[HubFile]) -> None:
        def get(file: HubFile, headers: Headers) -> Exchange:
            url = hf_hub_url(
                self._repo, file.name, revision=listed.commit, endpoint=self._wire.endpoint
            )
            return self._wire.get(url, self._token, headers, self._cancelled)

        transfer = Transfer(
            access=self._access,
            cache=self._cache,
            listed=listed,
            get=get,
            turn=self._turn,
            meter=self._meter,
            cancelled=self._cancelled,
        )
        for at, file in enumerate(missing):
            transfer.bring(file, later=missing[at + 1 :])
            self._meter.finish(file.size)

    def _cached(self) -> Fetched | None:
        """Return what the cache has, None when a wanted file is missing or not whole."""
        commit = self._cache.commit_of(self._revision)
        if commit is None:
            return None
        here = {file.name: file for file in self._cache.files(commit)}
        sizes = self._cache.sizes(commit)
        try:
            chosen = wanted(self._spec, (here if sizes is None else sizes).keys())
        except NotThereError:
            return None
        files = [here[name] for name in chosen.names if name in here]
        whole = sizes is None or all(file.size == sizes[file.name] for file in files)
        if len(files) < len(chosen.names) or not whole:
            return None
        return self._fetched(commit, chosen, files)

    def _fetched(self, commit: str, chosen: Wanted, files: Sequence[HubFile]) -> Fetched:
        root = self._cache.snapshot(commit)
        return Fetched(
            path=str(root if chosen.model is None else root / chosen.model),
            commit=commit,
            files=tuple((file.name, file.size, file.hash) for file in files),
            fetched_bytes=self._meter.received,
        )
