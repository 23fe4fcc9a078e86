"""All gates: what the registry publishes for the warm path and what it observes of use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moorage.actors.gate import Gate
from moorage.core.lifecycle import Stage
from moorage.core.room import Usage
from moorage.core.state import State


class Hall:
    """The gates of runs that are ready or drain. Only `table` is read outside the registry.

    `table` maps every name and alias of a model with an open gate to it. It is replaced, never
    changed, so reading it needs no lock.
    """

    def __init__(self, now: Callable[[], float], on_empty: Callable[[int], None]) -> None:
        self.table: dict[str, Gate] = {}
        self._gates: dict[int, Gate] = {}
        self._used_at: dict[int, float] = {}
        self._unproven: set[int] = set()
        self._dead: set[int] = set()
        self._now = now
        self._on_empty = on_empty

    def get(self, run: int | None) -> Gate | None:
        """Return the gate of a run, None when it has none (any more)."""
        return self._gates.get(run or 0)

    def build(
        self, model: str, run: int, ports: tuple[int, ...], *, granted: int = 0, shut: bool = False
    ) -> Gate:
        """Make the gate of a run that is ready; `shut` until it was seen to answer.

        `granted` leases are counted already.
        """
        gate = Gate(
            model=model,
            run=run,
            ports=ports,
            on_empty=self._on_empty,
            now=self._now,
            granted=granted,
        )
        gate.closed = shut
        if shut:
            self._unproven.add(run)
        self._gates[run] = gate
        if run in self._dead:
            gate.dead = gate.closed = True
        return gate

    def unproven(self, run: int) -> bool:
        """Tell whether a run was adopted as ready and was not seen to answer yet."""
        return run in self._unproven

    def serves(self, run: int) -> bool:
        """Tell whether a run was seen to answer, and did not end since."""
        gate = self._gates.get(run)
        return gate is not None and not gate.dead and run not in self._unproven

    def died(self, run: int) -> None:
        """Lend a run no more: its leader has ended. Called by whoever sees that first."""
        self._dead.add(run)  # announced first, then looked: its gate may be made just now
        gate = self._gates.get(run)
        if gate is not None:
            gate.dead = True
            gate.closed = True

    def has_died(self, run: int) -> bool:
        """Tell whether the leader of an open run was seen to end, decided upon or not."""
        return run in self._dead

    def prove(self, run: int) -> None:
        """An adopted run answers."""
        self._unproven.discard(run)

    def close(self, runs: Iterable[int]) -> None:
        """Close gates; `settle` opens those again that need not stay closed."""
        for run in runs:
            if run in self._gates:
                self._gates[run].closed = True

    def end(self, run: int) -> None:
        """Take a gate away: its run serves no more, leases still held there are lost."""
        gate = self._gates.pop(run, None)
        self._unproven.discard(run)
        self._used_at.pop(run, None)
        if gate is not None:
            gate.closed = True
            gate.dead = True

    def end_all(self) -> None:
        """Grant nothing any more; what is leased stays leased. May run while the registry dies."""
        self.table = {}
        for gate in self._gates.values():
            gate.closed = True

    def lose_all(self) -> None:
        """Let every lease be lost: from now on nobody protects its run, or hears of its end."""
        for gate in self._gates.values():
            gate.closed = True
            gate.dead = True

    def publish(self, state: State) -> None:
        """Replace the table by the open gates of this state."""
        table: dict[str, Gate] = {}
        for run, gate in self._gates.items():
            model = state.models.get(gate.model)
            if model is not None and model.run == run and not gate.closed:
                table.update(dict.fromkeys(model.spec.names, gate))
        self.table = table

    def observe(self) -> dict[int, Usage]:
        """Return what can be seen of the use of every run now. Stamps never go back."""
        usage: dict[int, Usage] = {}
        for run, gate in self._gates.items():
            used_at = self._used_at[run] = self._last_use(run, gate)
            usage[run] = Usage(len(gate.holders), used_at, gate.ready_at, gate.granted())
        return usage

    def leases(self) -> dict[int, Usage]:
        """Return what can be seen of use from any thread: leases and stamps, not counts."""
        return {
            run: Usage(len(gate.holders), self._last_use(run, gate), gate.ready_at)
            for run, gate in self._gates.copy().items()
        }

    def _last_use(self, run: int, gate: Gate) -> float:
        """Return when a run was used last: a stamp may be older than one already seen."""
        return max(gate.used_at, self._used_at.get(run, 0.0))

    def owned(self) -> dict[object, set[int]]:
        """Return who holds leases of which runs."""
        owned: dict[object, set[int]] = {}
        for run, gate in self._gates.items():
            for owner in gate.owners():
                owned.setdefault(owner, set()).add(run)
        return owned

    def busy(self, runs: Iterable[int]) -> bool:
        """Tell whether anybody holds one of these runs."""
        return any(run in self._gates and self._gates[run].holders for run in runs)

    def settle(self, state: State) -> None:
        """Bring every gate to what the state says."""
        for run, gate in tuple(self._gates.items()):
            seen = state.runs.get(run)
            if seen is None or seen.stage not in (Stage.READY, Stage.DRAINING):
                self.end(run)
            else:
                gate.closed = seen.stage is Stage.DRAINING or run in self._unproven
                if gate.dead:  # looked at after it was perhaps opened: it may die in between
                    gate.closed = True
        for run in list(self._dead):
            if run not in state.runs:
                self._dead.discard(run)
        self.publish(state)
