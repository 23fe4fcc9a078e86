"""A state folder and a pool of ports for owners that come one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage import CloseIncompleteError, ModelService
from support.services import ports


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def pool() -> range:
    return ports()


@pytest.fixture
def reopen(folder: Path, pool: range) -> Iterator[Callable[..., ModelService]]:
    """Open the state folder; whatever the test leaves open is closed."""
    services: list[ModelService] = []

    def open_(**options: Any) -> ModelService:
        service = ModelService.open(folder, **({"ports": pool, "max_loaded": 4} | options))
        services.append(service)
        return service

    yield open_
    for service in services:
        with contextlib.suppress(CloseIncompleteError):
            service.close(drain_s=0)
