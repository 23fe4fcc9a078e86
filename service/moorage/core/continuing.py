"""How a log goes on in a new segment: its first event says all that came before."""

from __future__ import annotations

import json
from typing import Any

from moorage.core.events import LogContinued
from moorage.core.fold import FOLD_VERSION
from moorage.core.snapshot import state_to_data
from moorage.core.state import State


def continued(state: State, *, program: str, segment: int, base_hash: str) -> LogContinued:
    """Return the first event of segment `segment`; `base_hash` is the hash of the row before."""
    # As it will be read back: with lists for tuples, and nothing shared with the state.
    base: dict[str, Any] = json.loads(json.dumps(state_to_data(state), allow_nan=False))
    return LogContinued(
        log_id=state.log_id,
        program=program,
        segment=segment,
        base=base,
        base_hash=base_hash,
        next_run=state.next_run,
        fold_version=FOLD_VERSION,
    )
