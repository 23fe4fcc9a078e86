"""What can be seen of the world of a log, to be held against what the log says."""

from __future__ import annotations

import os

from moorage.core.audit import SPAWNED, Seen, WorldView
from moorage.core.lifecycle import Stage
from moorage.core.state import Run, State
from moorage.protocols import Identity, Listener, Ports, Processes, RunProcess
from moorage.world.procfs import local_system
from moorage.world.tree import protected


def process_of(state: State, run: Run) -> RunProcess:
    """Return a run as the world knows it."""
    identity = None
    if run.pid is not None:
        identity = Identity(run.pid, run.group, run.session, run.start_ticks, run.boot_id)
    token = f"{state.log_id}:{run.run}:{run.nonce}"
    return RunProcess(run=run.run, token=token, identity=identity, ports=run.ports)


def look(state: State, processes: Processes, ports: Ports, *, owned: bool = True) -> WorldView:
    """Look at the leaders of all open runs, all processes with a token, and all ports.

    `owned` tells whether somebody owns the log just now. Our own process is left out.
    """
    found = (found for found in processes.find(state.log_id) if found.pid != os.getpid())
    strangers = {port: _stranger(state, ports, port) for port in (*state.free, *state.held)}
    return WorldView(
        living=survivors(state, processes),
        processes=tuple(Seen(f.pid, f.run, f.nonce, f.command) for f in found),
        strangers={port: (who.pid, who.command) for port, who in strangers.items() if who},
        protected=frozenset(protected(local_system())),
        owned=owned,
    )


def survivors(state: State, processes: Processes) -> frozenset[int]:
    """Return the open runs whose leader lives."""
    return frozenset(
        run.run
        for run in state.runs.values()
        if run.pid is not None and processes.lives(process_of(state, run))
    )


def _stranger(state: State, ports: Ports, port: int) -> Listener | None:
    run = state.runs.get(state.held.get(port, 0))
    if run is None or run.stage is Stage.RESERVED:  # where nothing of ours can listen yet
        return ports.stranger(port)
    if port != run.ports[0] or run.stage not in SPAWNED:
        return None
    if not state.models[run.model].spec.owner_check:
        return None  # a container's listener is never in the tree
    return ports.lost(process_of(state, run))
