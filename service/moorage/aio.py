"""The asyncio face: every blocking call with an `a` in front, cancelled cleanly."""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Generic, TypeVar

from moorage import limits as check
from moorage.actors import messages as msg
from moorage.actors.gate import JointLease, Lease, enter
from moorage.actors.tickets import Ticket, leave
from moorage.core.audit import Finding
from moorage.core.events import Entry
from moorage.errors import WaitTimeoutError
from moorage.face import CALL_S, LEASE_S, START_S, STOP_S, Face, joint, patience
from moorage.log.rows import PAGE_ROWS
from moorage.spec import ModelSpec
from moorage.status import ModelStatus

T = TypeVar("T")
L = TypeVar("L", Lease, JointLease)


async def answer(
    ticket: Ticket[T],
    ask: Callable[[], None],
    timeout_s: float,
    left: Callable[[Ticket[Any]], None],
) -> T:
    """Ask, then await the answer. Cancelled at any point it gives back what was granted.

    The result is taken from the ticket itself: a cancellation that lands after the grant, before
    this coroutine runs again, would lose what the await hands over.
    """
    try:
        heard = hear(ticket)
        ask()
        async with asyncio.timeout(timeout_s):
            await heard
        return ticket.result()
    except BaseException as error:
        if ticket.took(error):
            raise
        leave(ticket, left)
        if isinstance(error, TimeoutError):
            raise WaitTimeoutError(ticket.asked, timeout_s, "no answer yet") from None
        raise


def hear(ticket: Ticket[Any]) -> asyncio.Future[None]:
    """Return what is done, in the running loop, once the ticket is answered."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not heard.done():
            heard.set_result(None)

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop is closed: nobody can take the answer any more
            ticket.undo()

    ticket.when_answered(tell)
    return heard


def task_owner() -> object:
    """Return who an asyncio caller is: its task, as far as it lives.

    Held weakly, else a task that is dropped would keep its lease, and the lease the task.
    """
    task = asyncio.current_task()
    if task is None:
        return object()
    owner = weakref.ref(task)
    hash(owner)  # kept from now on: nobody can ask a dead task for it
    return owner


class LeaseRequest(Coroutine[Any, Any, L], Generic[L]):
    """A lease to come: `await` it, make it a task, or enter it with `async with`; once."""

    __slots__ = ("_ask", "_asking", "_lease")

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, L]]) -> None:
        self._ask: Callable[[], Coroutine[Any, Any, L]] = ask
        self._asking: Coroutine[Any, Any, L] | None = None
        self._lease: L | None = None

    def _begun(self) -> Coroutine[Any, Any, L]:
        if self._asking is None:  # not before: one that is never awaited would warn
            self._asking = self._ask()
        return self._asking

    def __await__(self) -> Generator[Any, None, L]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        """Go on, as any coroutine does."""
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        return self._begun().throw(*error)

    def close(self) -> None:
        """Go on no more."""
        if self._asking is not None:
            self._asking.close()

    async def __aenter__(self) -> L:
        self._lease = await self._begun()
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            self._lease.release()


class AsyncFace(Face):
    """The twins that need no thread of their own."""

    async def adefine(self, *specs: ModelSpec) -> None:
        """As `define`."""
        await self._acall(self._define_message(specs, whole=False), CALL_S)

    async def aremove(self, name: str, *, force: bool = False, timeout_s: float = STOP_S) -> None:
        """As `remove`. Cancelled, the model is as before."""
        ticket: Ticket[None] = Ticket(f"remove({name!r})")
        await self._acall(msg.Remove(ticket, check.name(name), force), timeout_s)

    async def astart(self, name: str, timeout_s: float = START_S) -> ModelStatus:
        """As `start`. Cancelled, a load that has begun goes on."""
        owner = task_owner()
        await self._acall(self._want((name,), timeout_s, leases=False, owner=owner), timeout_s)
        return self.model(name)

    async def astop(
        self, name: str, force: bool = False, hold: bool = False, *, timeout_s: float = STOP_S
    ) -> None:
        """As `stop`. Cancelled, the stop goes on."""
        ticket: Ticket[None] = Ticket(f"stop({name!r})")
        await self._acall(msg.Stop(ticket, check.name(name), force, hold), timeout_s)

    async def apin(self, name: str) -> None:
        """As `pin`."""
        await self._acall(msg.Pin(Ticket(f"pin({name!r})"), check.name(name), pinned=True), CALL_S)

    async def aunpin(self, name: str) -> None:
        """As `unpin`."""
        await self._acall(
            msg.Pin(Ticket(f"unpin({name!r})"), check.name(name), pinned=False), CALL_S
        )

    async def areset(self, name: str) -> None:
        """As `reset`."""
        await self._acall(msg.Reset(Ticket(f"reset({name!r})"), check.name(name)), CALL_S)

    async def aset_limits(
        self,
        *,
        max_loaded: int | None = None,
        memory_limit: int | EllipsisType | None = ...,
        min_residency_s: float | None = None,
    ) -> None:
        """As `set_limits`."""
        message = self._limits_message(max_loaded, memory_limit, min_residency_s)
        await self._acall(message, CALL_S)

    def aevents(self, after: int = 0, *, limit: int | None = None) -> AsyncIterator[Entry]:
        """As `events`, for `async for`: each page is read in a thread."""
        self.events(after, limit=limit)  # refuses here and now what it does not take
        return self._aevents(after, limit)

    async def _aevents(self, after: int, limit: int | None) -> AsyncIterator[Entry]:
        while limit is None or limit > 0:
            wanted = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
            page = await asyncio.to_thread(self._page, after, wanted)
            for entry in page:
                yield entry
            if len(page) < wanted:
                return
            after = page[-1].seq
            limit = None if limit is None else limit - wanted

    async def aaudit(self, fix: bool = False) -> tuple[Finding, ...]:
        """As `audit`, in a thread."""
        return await asyncio.to_thread(self.audit, fix)

    async def abackup(self, path: str | os.PathLike[str]) -> int:
        """As `backup`, in a thread."""
        return await asyncio.to_thread(self.backup, path)

    async def aarchive(self) -> Path:
        """As `archive`. Cancelled before it has begun it does not happen, later it does."""
        return Path(await self._acall(self._archive_message(), CALL_S))

    def alease(self, name: str, timeout_s: float = LEASE_S) -> LeaseRequest[Lease]:
        """As `lease`: `async with service.alease(name) as lease`, or await it and release."""
        return LeaseRequest(functools.partial(self._alease, name, timeout_s))

    async def _alease(self, name: str, timeout_s: float) -> Lease:
        owner = task_owner()
        gate = self._hall.table.get(name) if isinstance(name, str) else None
        if gate is not None:
            lease = enter(gate, owner)
            if lease is not None:
                return lease
        message = self._want((name,), timeout_s, leases=True, owner=owner)
        granted: Lease = await self._acall(message, timeout_s)
        return granted

    def alease_all(self, *names: str, timeout_s: float = LEASE_S) -> LeaseRequest[JointLease]:
        """As `lease_all`."""
        return LeaseRequest(functools.partial(self._alease_all, names, timeout_s))

    async def _alease_all(self, names: tuple[str, ...], timeout_s: float) -> JointLease:
        message = self._want(names, timeout_s, leases=True, owner=task_owner())
        leases: Lease | JointLease = await self._acall(message, timeout_s)
        return joint(names, leases)

    async def _acall(self, message: msg.FromCaller, timeout_s: float) -> Any:
        check.seconds("timeout_s", timeout_s)
        ticket: Ticket[Any] = message.ticket
        waits_s = patience(message, timeout_s)
        return await answer(ticket, lambda: self._ask(message), waits_s, self._left)
