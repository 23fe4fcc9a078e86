"""The warm path: leasing a ready run without a lock and without asking anybody.

Each ready run has a gate. Rules, in the order that makes every interleaving sound:

1. Who enters announces first (an entry in `holders`) and only then looks at `closed`.
   Who finds it closed takes the announcement back and goes the slow way.
2. The registry closes first and only then looks at `holders`.
   So either the newcomer sees the gate closed or the registry sees the newcomer.
3. Leaving is `dict.pop`: idempotent, reentrant, never blocking, so it may happen in a signal
   handler, in a finaliser, twice, or after the run is gone.
4. A lease that is lost leaves by callbacks of weak references announced with it: by `leave`, and
   should an interrupt strike that, by `dict.pop`, which no interrupt can: it is C code alone.
   They go with the announcement, so a lease that was released has nothing left to run. It must
   not: what a signal handler raises in there is only reported, and who was told to end goes on.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from moorage.protocols import LOOPBACK


class Gate:
    """The entrance of one run. Callers enter and leave; the registry closes and reopens."""

    __slots__ = (
        "_counted",
        "closed",
        "dead",
        "holders",
        "model",
        "now",
        "on_empty",
        "port",
        "ports",
        "ready_at",
        "run",
        "tickets",
        "used_at",
    )

    def __init__(
        self,
        *,
        model: str,
        run: int,
        ports: tuple[int, ...],
        on_empty: Callable[[int], None],
        now: Callable[[], float],
        granted: int = 0,
    ) -> None:
        self.model = model
        self.run = run
        self.port = ports[0]
        self.ports = ports
        self.on_empty = on_empty
        self.closed = False
        self.dead = False
        self.holders: dict[int, tuple[object, weakref.ref[Lease], weakref.ref[Lease]]] = {}
        self.tickets = itertools.count(granted)
        self.now = now
        self.used_at = self.ready_at = now()
        self._counted = 0

    def granted(self) -> int:
        """Return how many leases were ever entered. Called by the registry's thread only."""
        self._counted += 1
        return next(self.tickets) - self._counted + 1

    def leave(self, key: int, _lost: object = None) -> None:
        """End a lease. Ending it again does nothing."""
        holders = self.holders
        if key in holders:
            self.used_at = self.now()  # first: left without, it would be idle since its entry
        if holders.pop(key, self) is not self and self.closed and not holders:
            self.on_empty(self.run)

    def held_by(self, owner: object) -> bool:
        """Tell whether a caller holds a lease here."""
        return owner in self.owners()

    def owners(self) -> list[object]:
        """Return who holds leases here, once for each.

        A list, not a tuple: making a tuple may run the collector after the iteration has begun
        (until Python 3.12), and a lost lease that it finds would change the dict under it.
        """
        return [entry[0] for entry in list(self.holders.values())]


class Lease:
    """The right to use a running model; leave it by `release()`, `with`, or by losing it.

    A leased run is never evicted. It can die or be stopped by force: `lost` tells. Safe to
    release from any thread, more than once, and in a signal handler.
    """

    __slots__ = ("__weakref__", "_gate", "_key")

    def __init__(self, gate: Gate, owner: object) -> None:
        self._gate = gate
        self._key = key = next(gate.tickets)
        gate.holders[key] = (  # the newer reference is called first
            owner,
            weakref.ref(self, partial(gate.holders.pop, key)),
            weakref.ref(self, partial(gate.leave, key)),
        )
        gate.used_at = gate.now()

    def release(self) -> None:
        """Give the model back. Releasing again does nothing."""
        self._gate.leave(self._key)

    @property
    def model(self) -> str:
        """The model's name, also when it was leased by an alias."""
        return self._gate.model

    @property
    def run(self) -> int:
        """The run that serves."""
        return self._gate.run

    @property
    def port(self) -> int:
        """The port that serves on 127.0.0.1."""
        return self._gate.port

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports of the run, the serving one first."""
        return self._gate.ports

    @property
    def url(self) -> str:
        """The base URL without a slash at its end."""
        return f"http://{LOOPBACK}:{self._gate.port}"

    @property
    def lost(self) -> bool:
        """True when the server ended, the service was closed, or the lease was released."""
        return self._gate.dead or self._key not in self._gate.holders

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "lost" if self.lost else self.url
        return f"<Lease of {self.model!r} run {self.run}: {state}>"


def enter(gate: Gate, owner: object) -> Lease | None:
    """Lease by a gate: announce, then look. None when it is closed: go the slow way."""
    lease = Lease(gate, owner)
    if not gate.closed:
        return lease
    lease.release()
    return None


class JointLease:
    """Several leases taken in one step; a mapping from the names asked for to leases."""

    __slots__ = ("_leases",)

    def __init__(self, leases: dict[str, Lease]) -> None:
        self._leases = leases

    def __getitem__(self, name: str) -> Lease:
        return self._leases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def values(self) -> tuple[Lease, ...]:
        """Return the leases in the order asked for."""
        return tuple(self._leases.values())

    def release(self) -> None:
        """Give all of them back."""
        for lease in self._leases.values():
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
