"""A decision being made: events with their places, and the state they would lead to."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from moorage.core.events import (
    Entry,
    Event,
    LimitsSet,
    ModelDefined,
    ModelHeld,
    ModelReset,
    ServiceOpened,
)
from moorage.core.fold import apply
from moorage.core.state import Model, Run, State

Cause = int | Literal["unset"] | None
_ASKED = (ServiceOpened, LimitsSet, ModelDefined, ModelHeld, ModelReset)
"""What was asked of the service: the rest of a decision that holds one happens because of it."""


class Draft:
    """Collects the events of one decision, folded as they come onto a fork of the state.

    Dropping a draft leaves no trace. Appending its entries makes its state the state.
    """

    __slots__ = ("_asked", "at", "entries", "state")

    def __init__(self, state: State, at: str) -> None:
        self.state = state.fork()
        self.entries: list[Entry] = []
        self.at = at
        self._asked: int | None = None

    def emit(self, event: Event, cause: Cause = "unset") -> int:
        """Add an event and return its seq.

        The default cause is what was asked in this decision or the run's last entry, whichever
        came later.
        """
        if cause == "unset":
            run = self.state.runs.get(getattr(event, "run", None) or 0)
            cause = max(run.last_seq if run is not None else 0, self._asked or 0) or None
        entry = Entry(self.state.seq + 1, self.at, cause, event)
        apply(self.state, entry)
        self.entries.append(entry)
        if isinstance(event, _ASKED):
            self._asked = entry.seq
        return entry.seq

    def run(self, number: int) -> Run | None:
        """Return an open run, None when it has ended: a message about it changes nothing."""
        return self.state.runs.get(number)

    def model_of(self, run: Run) -> Model:
        """Return the model a run is of."""
        return self.state.models[run.model]


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two entry times, never negative, 0 when one is missing."""
    if not earlier or not later:
        return 0.0
    delta = datetime.fromisoformat(later) - datetime.fromisoformat(earlier)
    return max(0.0, delta.total_seconds())


def later(at: str, seconds: float) -> str:
    """Return the entry time some seconds after another."""
    moment = datetime.fromisoformat(at) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
