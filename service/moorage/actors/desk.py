"""Who waits for which run. Volatile: a crash answers nobody, the callers' deadlines do."""

from __future__ import annotations

import functools
import heapq
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from moorage.actors.tickets import Ticket

AnyTicket = Ticket[Any]

SPARE_DEADLINES = 1_000
"""Deadlines of answered tickets that are kept until they are sorted out: some are far away."""


class Desk:
    """Open tickets. Callers `enter` and are counted; the rest is the registry's thread's.

    A ticket counts while it lives, so one whose caller was interrupted on the way is forgotten.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[int, weakref.ref[AnyTicket]] = {}
        self._by_run: dict[int, dict[int, AnyTicket]] = {}
        self._ends: dict[int, list[AnyTicket]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self.joint_left = False
        """Set when a joint request ended: what was kept for it may be asked for by others."""

    def enter(self, ticket: AnyTicket) -> bool:
        """Count a caller in; False when `limit` wait already. Announce, then look: no lock."""
        number = ticket.number
        # Forgotten by C code alone: no interrupt can come between the end of a ticket and this.
        self._open[number] = weakref.ref(ticket, functools.partial(self._open.pop, number))
        if len(self._open) > self.limit:
            self._open.pop(number, None)
            return False
        return True

    def leave(self, ticket: AnyTicket) -> list[int]:
        """Take a ticket away and return the runs nobody waits for any more."""
        self._open.pop(ticket.number, None)
        self.joint_left |= len(ticket.names) > 1
        lonely = [run for run, waiting in self._by_run.items() if ticket.number in waiting]
        for run in lonely:
            del self._by_run[run][ticket.number]
        return [run for run in lonely if not self.waiting(run)]

    def attach(self, ticket: AnyTicket, run: int) -> None:
        """Let a ticket wait for a run."""
        self._by_run.setdefault(run, {})[ticket.number] = ticket
        heapq.heappush(self._deadlines, (ticket.deadline, ticket.number))
        if len(self._deadlines) > 2 * len(self._open) + SPARE_DEADLINES:
            self._deadlines = [due for due in set(self._deadlines) if due[1] in self._open]
            heapq.heapify(self._deadlines)

    def waiting(self, run: int) -> list[AnyTicket]:
        """Return the open tickets of a run, oldest first."""
        tickets = self._by_run.get(run)
        return [tickets[n] for n in sorted(tickets) if tickets[n].open] if tickets else []

    def take(self, run: int) -> list[AnyTicket]:
        """Return the open tickets of a run, which then wait for it no more."""
        tickets = self.waiting(run)
        self._by_run.pop(run, None)
        return tickets

    def joint(self) -> list[AnyTicket]:
        """Return the open tickets that want several models, oldest first."""
        return [ticket for ticket in self._living() if len(ticket.names) > 1 and ticket.open]

    def _living(self) -> Iterator[AnyTicket]:
        """Yield all tickets that were entered, oldest first."""
        for _, known in sorted(self._open.copy().items()):
            ticket = known()
            if ticket is not None:
                yield ticket

    def await_end(self, run: int, ticket: AnyTicket) -> None:
        """Let a ticket wait for the end of a run."""
        self._ends.setdefault(run, []).append(ticket)

    def take_ends(self, run: int) -> list[AnyTicket]:
        """Return who waited for the end of a run."""
        return self._ends.pop(run, [])

    def awaits_end(self, run: int) -> list[AnyTicket]:
        """Return the open tickets that wait for the end of a run."""
        return [ticket for ticket in self._ends.get(run, []) if ticket.open]

    def forget_end(self, ticket: AnyTicket) -> list[int]:
        """Take a ticket from the ends it waited for; return those runs."""
        runs = [run for run, tickets in self._ends.items() if ticket in tickets]
        for run in runs:
            self._ends[run].remove(ticket)
        return runs

    def expired(self, now: float) -> list[AnyTicket]:
        """Return tickets whose deadline has passed, also those whose callers left unheard."""
        expired: list[AnyTicket] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            known = self._open.get(heapq.heappop(self._deadlines)[1])
            ticket = known() if known is not None else None
            if ticket is not None:
                expired.append(ticket)
        return expired

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of an open ticket."""
        while self._deadlines and self._deadlines[0][1] not in self._open:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def fail_all(self, make: Callable[[AnyTicket], BaseException]) -> None:
        """Answer every open ticket with an error. May run while the registry dies."""
        ends = [ticket for tickets in self._ends.values() for ticket in tickets]
        for ticket in [*self._living(), *ends]:
            ticket.fail(make(ticket))
            self._open.pop(ticket.number, None)
        self._by_run.clear()
        self._ends.clear()

    def __len__(self) -> int:
        return len(self._open)
