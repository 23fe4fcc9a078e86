"""How much room there is, is taken, and could be made: slots and bytes. Looks at states only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moorage.core.lifecycle import Stage
from moorage.core.state import Run, State

FOR_ROOM = frozenset({"room", "memory", "limits"})
"""Drain reasons that end when the room is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Space:
    """Slots and bytes; bytes are infinite without a memory limit."""

    slots: int
    bytes: float

    def __add__(self, other: Space) -> Space:
        return Space(self.slots + other.slots, self.bytes + other.bytes)

    def __sub__(self, other: Space) -> Space:
        return Space(self.slots - other.slots, self.bytes - other.bytes)

    def holds(self, need: Space) -> bool:
        """Tell whether the need fits into this."""
        return self.slots >= need.slots and self.bytes >= need.bytes


NOTHING = Space(0, 0)


def need_bytes(state: State, name: str) -> int | None:
    """Return the bytes a model needs: declared, else learned, clipped to the limit; else None."""
    model = state.models[name]
    need = model.spec.memory or model.peak_bytes
    if need is None or state.memory_limit is None or model.spec.memory is not None:
        return need
    return min(need, state.memory_limit)


def need(state: State, name: str) -> Space:
    """Return the room a model needs; all of the bytes when they are not known."""
    return space(state, need_bytes(state, name))


def space(state: State, bytes_: int | None) -> Space:
    """Return one slot with so many bytes; all of them when they are not known."""
    if state.memory_limit is None:
        return Space(1, 0)
    return Space(1, state.memory_limit if bytes_ is None else bytes_)


def taken(state: State, run: Run) -> Space:
    """Return the room a run holds."""
    return space(state, run.room_bytes)


def capacity(state: State) -> Space:
    """Return the limits."""
    return Space(
        state.max_loaded, float("inf") if state.memory_limit is None else state.memory_limit
    )


def total(spaces: Iterable[Space]) -> Space:
    """Return all of them together."""
    together = NOTHING
    for each in spaces:
        together += each
    return together


def room_left(state: State) -> Space:
    """Return what is free now; negative when limits were lowered below what is loaded."""
    return capacity(state) - total(taken(state, run) for run in state.holding())


def could_ever_fit(state: State, *names: str, without: frozenset[int] = frozenset()) -> bool:
    """Tell whether models could be loaded at once if every lease but those of `without` ended.

    Pins and what could not be stopped stay where they are.
    """
    fixed = [
        r
        for r in state.holding()
        if r.model not in names and (r.run in without or immovable(state, r))
    ]
    left = capacity(state) - total(taken(state, r) for r in fixed)
    return left.holds(total(need(state, name) for name in set(names)))


def immovable(state: State, run: Run) -> bool:
    """Tell whether a run never gives way: pinned, or it could not be stopped."""
    if run.stage is Stage.STOP_FAILED:
        return True
    going = run.stage is Stage.STOPPING or (
        run.stage is Stage.DRAINING and run.reason not in FOR_ROOM
    )
    return state.models[run.model].pinned and not going


def who_holds(state: State) -> tuple[str, ...]:
    """Return the runs that never give way, with why."""
    return tuple(
        f"{run.model} ({'could not be stopped' if run.stage is Stage.STOP_FAILED else 'pinned'})"
        for run in state.holding()
        if immovable(state, run)
    )
