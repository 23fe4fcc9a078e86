"""Brings a state that nobody owns back in order, by owning it for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from moorage.cli.console import Console
from moorage.core.events import ProcessReaped
from moorage.core.state import State, expand
from moorage.service import ModelService
from moorage.world.processes import LocalProcesses
from moorage.world.procfs import local_system
from moorage.world.tree import protected

_REAP_S = 30.0
_POLL_S = 0.05


def repair(folder: Path, state: State, console: Console) -> None:
    """Open the service on a state as it was opened last, and close it again, keeping servers.

    Opening takes survivors over, sweeps and releases what is dead and reaps strays; closing waits
    for the stops. Raises StateInUseError, CloseIncompleteError and what else opening raises.
    """
    console.progress("fixing ...")
    try:
        strays = frozenset(_strays(state))
        service = ModelService.open(
            folder,
            ports=expand(state.pool),
            max_loaded=state.max_loaded,
            memory_limit=state.memory_limit,
            min_residency_s=state.min_residency_s,
            on_close="keep",
        )
        with service:
            _await_reaped(service, state.seq, strays)
    finally:
        console.progress("")


def _strays(state: State) -> Iterator[int]:
    """Yield the processes that will be killed: of no open run, and not those we run in."""
    spared = protected(local_system())
    with closing(LocalProcesses()) as processes:
        for found in processes.find(state.log_id):
            run = state.runs.get(found.run)
            if found.pid not in spared and (run is None or run.nonce != found.nonce):
                yield found.pid


def _await_reaped(service: ModelService, after: int, strays: frozenset[int]) -> None:
    """Wait until the log says of each stray that it is gone; bounded.

    The workers that kill them end with the service.
    """
    deadline = time.monotonic() + _REAP_S
    pause = threading.Event()
    left = set(strays)
    while left and time.monotonic() < deadline:
        for entry in service.events(after):
            after = entry.seq
            if isinstance(entry.event, ProcessReaped):
                left.discard(entry.event.pid)
        pause.wait(_POLL_S)
