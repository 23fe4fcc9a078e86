"""Four models, room for two, two clients that never retry, on real llama.cpp servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moorage import ModelService
from moorage.core.fold import apply
from moorage.core.invariants import over_limits, violations
from moorage.core.state import State
from moorage.gguf import write_tiny
from moorage.log.reader import LogReader
from moorage.world.ports import LocalPorts
from soak import load
from support import needed
from support.services import ports

PORTS = ports()[:64]
ROOM = 2
SLOWEST_S = 5.0
"""A request waits for one stop and one load; what takes longer is a server that heard no signal."""
LEAST_PER_S = 7.7
"""What llama-swap v250 completes of this load, without an error; benchmarks/churn.py compares."""

pytestmark = pytest.mark.real


@pytest.fixture(params=load.KINDS)
def server(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Fields of a spec that choose the server."""
    needed.llama_server(request.param, load.BINARY_NEEDS)
    fields = load.fields_of(request.param)
    assert fields is not None
    return fields


def replayed(state: Path, until: int) -> State:
    """Fold the log entry by entry and judge every prefix of it."""
    folded = State()
    for entry in LogReader(state).read():
        if entry.seq > until:
            break
        apply(folded, entry)
        loaded = list(folded.holding())

        assert violations(folded) == (), f"after {entry}"
        assert not over_limits(folded), f"after {entry}"
        assert len(loaded) <= ROOM, f"after {entry}: {loaded}"
    return folded


@pytest.mark.parametrize("seconds", [5.0, pytest.param(60.0, marks=pytest.mark.soak)])
@pytest.mark.timeout(240)
def test_no_request_fails_while_four_models_share_room_for_two(
    seconds: float, server: Mapping[str, Any], tmp_path: Path
) -> None:
    model, state = tmp_path / "tiny.gguf", tmp_path / "state"
    write_tiny(model)
    specs = load.specs(model, server)
    with ModelService.open(state, ports=PORTS, max_loaded=ROOM, models=specs) as service:
        tally = load.run(service, seconds=seconds)
        live = service._runtime.registry.state

        assert replayed(state, live.seq) == live
    closed = service._runtime.registry.state
    loads = closed.next_run - 1
    slowest = f"slowest {tally.quantile(1):.3f} s"
    print(f"{len(tally.seconds)} completions, {tally.per_second:.1f}/s, {loads} loads, {slowest}")

    assert tally.failures == []
    assert tally.quantile(1) < SLOWEST_S
    assert tally.per_second > LEAST_PER_S
    assert loads > len(load.MODELS)
    assert replayed(state, closed.seq) == closed
    assert closed.held == {}
    assert [port for port in PORTS if LocalPorts().stranger(port)] == []
