"""A hub on loopback with one repo, and a cache of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from hub.making import REPO, WEIGHTS, Fetching
from support.hub import Hub, Repo, serving


@pytest.fixture(autouse=True)
def plain_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # For huggingface_hub itself: proxies catch loopback too, and its client keeps its sockets.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        files = {"model.gguf": WEIGHTS, "config.json": b"{}", "sub/part.bin": b"x" * 100}
        hub.repos[REPO] = Repo(files, revisions=("main", "v1"), large=frozenset({"model.gguf"}))
        yield hub


@pytest.fixture
def fetching(hub: Hub, tmp_path: Path) -> Fetching:
    return Fetching(hub, tmp_path / "cache")
