"""What tests of the hub share: a repo's content, and one who fetches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorage.hub import HubAccess, HubFetcher
from moorage.hub.cache import PART
from moorage.protocols import Fetched, FetchFailedError, Progress
from moorage.spec import ModelSpec
from support.hub import Hub
from support.services import Outcome, settle

REPO = "org/model"
WEIGHTS = bytes(range(256)) * 64
STALL_S = 0.3


class Fetching:
    """Fetches into one cache and keeps what was told on the way."""

    def __init__(self, hub: Hub, cache: Path, **options: Any) -> None:
        self.hub = hub
        self.cache = cache
        self.progress: list[Progress] = []
        self.cancelled = threading.Event()
        self.when_told: Callable[[Progress], None] = lambda _step: None
        self.set(**options)

    def set(self, **options: Any) -> None:
        """Fetch in another way from now on."""
        base: dict[str, Any] = {
            "endpoint": self.hub.endpoint,
            "token": False,
            "cache_dir": str(self.cache),
            "retry_wait_s": 0.01,
            "stall_timeout_s": STALL_S,
        }
        self.access = HubAccess(**(base | options))
        self.fetcher = HubFetcher(self.access)

    def __call__(
        self,
        *,
        repo: str = REPO,
        file: str | None = "model.gguf",
        revision: str | None = None,
        token: str | None = None,
        cancelled: threading.Event | None = None,
    ) -> Fetched:
        secrets = {"HF_TOKEN": token} if token else {}
        spec = ModelSpec(
            name="m", backend="command", repo=repo, file=file, revision=revision, secrets=secrets
        )
        return self.fetcher.fetch(spec, self._told, cancelled or self.cancelled)

    def _told(self, step: Progress) -> None:
        self.progress.append(step)
        self.when_told(step)

    def begin(self, **asked: Any) -> Outcome:
        """Fetch in a thread of its own."""
        return Outcome(lambda: self(**asked))

    def failure(self, **asked: Any) -> FetchFailedError:
        with pytest.raises(FetchFailedError) as caught:
            self(**asked)
        return caught.value

    def problem(self, **asked: Any) -> str:
        return self.failure(**asked).problem

    def parts(self) -> list[Path]:
        return sorted(self.cache.rglob(f"*{PART}"))

    def wait_part(self, size: int) -> Path:
        """Wait until one file has come so far, and return it."""
        settle(lambda: [part.stat().st_size for part in self.parts()] == [size])
        return self.parts()[0]

    def shown(self) -> list[str]:
        """Return the names under which anything can be had."""
        return sorted(path.name for path in self.cache.rglob("snapshots/*/*"))
