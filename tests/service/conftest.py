"""Services on real processes, each with ports and a state folder of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage import CloseIncompleteError, ModelService, ModelSpec
from support.services import check_log, ports, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., ModelService]]:
    """Open services on the state folder; what the test leaves open is closed and checked."""
    services: list[ModelService] = []

    def open_(*specs: ModelSpec, **options: Any) -> ModelService:
        service = ModelService.open(folder, **({"ports": ports()} | options))
        services.append(service)
        service.define(*specs)
        return service

    yield open_
    for service in services:
        with contextlib.suppress(CloseIncompleteError):
            service.close(drain_s=0)
    if services:
        live = state_of(services[-1])
        same = check_log(folder)[-1].seq == live.seq  # else the test opened it once more itself
        check_log(folder, live if same else None)
