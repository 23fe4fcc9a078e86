"""ModelService: the public face. Every method may be called from any thread."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Literal, Self

from moorage import limits as check
from moorage.actors import messages as msg
from moorage.actors.apart import Wanted, abandon, apart, serve
from moorage.actors.gate import JointLease, Lease, enter
from moorage.actors.tickets import Ticket, wait
from moorage.aio import AsyncFace, hear
from moorage.backends import InstalledBackends
from moorage.compose import END_S, Limits, Parts, Runtime, start
from moorage.core.lifecycle import Stage
from moorage.errors import (
    CloseIncompleteError,
    ConfigurationError,
    ServiceClosedError,
    ServiceFailedError,
    WaitTimeoutError,
)
from moorage.face import (
    CALL_S,
    CLOSE_S,
    DRAIN_S,
    LEASE_S,
    START_S,
    STOP_S,
    check_specs,
    joint,
    listed,
    memory,
    pool,
)
from moorage.hub import HubAccess, HubFetcher
from moorage.spec import ModelSpec
from moorage.status import ModelStatus
from moorage.world.platform import refuse_unsupported

_log = logging.getLogger(__name__)

DEFAULT_PORTS = range(18000, 19000)
OPEN_S = 60.0
LEFT_S = 0.2
"""At a close that is incomplete, workers get this long more: its deadline has passed."""


class _Thread(threading.local):
    """Who a blocking caller is. Its number would do, were it not given to another thread later."""

    def __init__(self) -> None:
        self.owner = object()


_thread = _Thread()


class ModelService(AsyncFace):
    """Keeps model servers running for the program that embeds it. Made by `open`."""

    def __init__(self, runtime: Runtime, state: Path, on_close: str) -> None:
        super().__init__(runtime, state)
        self._on_close = on_close
        self._closing: Ticket[tuple[str, ...]] = Ticket("close")
        self._told_what_is_left = False
        atexit.register(self._close_at_exit)

    @classmethod
    def open(
        cls,
        state: str | os.PathLike[str],
        *,
        ports: Iterable[int] = DEFAULT_PORTS,
        max_loaded: int = 1,
        memory_limit: int | None = None,
        min_residency_s: float = 0.0,
        models: Iterable[ModelSpec] | None = None,
        on_close: Literal["stop", "keep"] = "stop",
        max_waiting: int = 1000,
        wait_s: float = 0.0,
        hub: HubAccess | None = None,
        parts: Parts | None = None,
    ) -> Self:
        """Own a state folder: open its log and bring what an earlier owner left to its end.

        `max_loaded` runs and `memory_limit` bytes are never exceeded; a run is not evicted
        before it was ready for `min_residency_s`. `models` declares the whole set: others are
        removed. `on_close="keep"` leaves ready servers running at `close`. `max_waiting` callers
        may wait at once. `wait_s` waits for another owner to go. `hub` says how the Hugging Face
        hub is reached. `parts` replaces parts of the outer world, see `moorage.testing`.

        Raises ConfigurationError, StateError (StateInUseError names the owner) or
        LogUnavailableError; then nothing is left behind. Interrupted, what it opens is closed
        again, servers are kept.
        """
        refuse_unsupported()
        bounds = Limits(
            ports=pool(ports),
            max_loaded=check.whole("max_loaded", max_loaded, low=1, high=10_000),
            memory_limit=memory(memory_limit),
            min_residency_s=check.seconds("min_residency_s", min_residency_s),
            max_waiting=check.whole("max_waiting", max_waiting, low=1, high=1_000_000),
        )
        if on_close not in ("stop", "keep"):
            raise ConfigurationError("on_close", f"must be 'stop' or 'keep', not {on_close!r}")
        if hub is not None and not isinstance(hub, HubAccess):
            raise ConfigurationError("hub", f"must be a HubAccess, not {hub!r}")
        parts = parts or Parts()
        backends = parts.backends or InstalledBackends()
        fetcher = parts.fetcher or HubFetcher(hub)
        whole = None if models is None else listed(models)
        check_specs(whole or (), backends)
        folder = check.path("state", state).absolute()
        parts = replace(parts, backends=backends, fetcher=fetcher)
        begin = functools.partial(
            start, folder, bounds, parts, wait_s=check.seconds("wait_s", wait_s), open_s=OPEN_S
        )
        return apart(
            "open",
            lambda wanted: cls._begun(begin, folder, on_close, whole, wanted),
            _close_unwanted,
        )

    @classmethod
    def _begun(
        cls,
        begin: Callable[..., Runtime],
        folder: Path,
        on_close: str,
        models: Sequence[ModelSpec] | None,
        wanted: Wanted,
    ) -> Self:
        runtime = begin(wanted=wanted)
        try:
            service = cls(runtime, folder, on_close)
        except BaseException:
            runtime.end()
            raise
        service._take_up(models if wanted() else None)
        return service

    def _take_up(self, models: Sequence[ModelSpec] | None) -> None:
        """Define what `open` was given; when that fails, close and keep what was found running."""
        try:
            for warning in self.status().warnings:
                _log.warning("%s", warning)
            if models is not None:
                self._define(models, whole=True)
        except BaseException:
            try:
                self.close("keep", drain_s=0)
            except CloseIncompleteError as left:  # it must not stand for what went wrong
                _log.warning("%s", left)
            raise

    # --- models ---

    def define(self, *specs: ModelSpec) -> None:
        """Define or redefine models. A changed spec reloads its run once its leases have ended.

        Raises ConfigurationError (NameClashError names the owner of a name), LogUnavailableError.
        """
        self._define(specs, whole=False)

    def _define(self, specs: Sequence[ModelSpec], *, whole: bool) -> None:
        self._call(self._define_message(specs, whole=whole), CALL_S)

    def remove(self, name: str, *, force: bool = False, timeout_s: float = STOP_S) -> None:
        """Remove a model and its names once its leases have ended; `force` does not wait.

        After WaitTimeoutError the model is as before, at its place in the LRU order; a removal
        whose server is being stopped already, as its last lease has ended, goes on, and so does one
        whose host is killed before the log says `run.reopened`.
        Raises UnknownModelError, StopFailedError, LogUnavailableError.
        """
        ticket: Ticket[None] = Ticket(f"remove({name!r})")
        self._call(msg.Remove(ticket, check.name(name), force), timeout_s)

    def start(self, name: str, timeout_s: float = START_S) -> ModelStatus:
        """Make one attempt to have a model ready, and return when it is.

        Ends a hold. Raises what stood in the way: LoadError, LoadCancelledError, NoRoomError,
        PortPoolExhaustedError, WaitTimeoutError, UnknownModelError, LogUnavailableError.
        """
        owner = _thread.owner
        self._call(self._want((name,), timeout_s, leases=False, owner=owner), timeout_s)
        return self.model(name)

    def stop(
        self, name: str, force: bool = False, hold: bool = False, *, timeout_s: float = STOP_S
    ) -> None:
        """Stop a model's run and return when nothing of it is left.

        Waits for its leases to end; `force` does not, they are lost. `hold` refuses leases
        until `start` or `reset`. A restart that is still to come is cancelled. After
        WaitTimeoutError the stop goes on.
        Raises UnknownModelError, StopFailedError.
        """
        ticket: Ticket[None] = Ticket(f"stop({name!r})")
        self._call(msg.Stop(ticket, check.name(name), force, hold), timeout_s)

    def pin(self, name: str) -> None:
        """Never evict a model. Loads nothing, survives restarts."""
        self._call(msg.Pin(Ticket(f"pin({name!r})"), check.name(name), pinned=True), CALL_S)

    def unpin(self, name: str) -> None:
        """Let a model be evicted again."""
        self._call(msg.Pin(Ticket(f"unpin({name!r})"), check.name(name), pinned=False), CALL_S)

    def reset(self, name: str) -> None:
        """Forget a model's hold, backoff and failures."""
        self._call(msg.Reset(Ticket(f"reset({name!r})"), check.name(name)), CALL_S)

    def set_limits(
        self,
        *,
        max_loaded: int | None = None,
        memory_limit: int | EllipsisType | None = ...,
        min_residency_s: float | None = None,
    ) -> None:
        """Change limits now; what is loaded beyond them is evicted, idle runs first.

        What is not given stays. `memory_limit=None` takes that limit away.
        """
        self._call(self._limits_message(max_loaded, memory_limit, min_residency_s), CALL_S)

    def archive(self) -> Path:
        """Begin a new segment of the log, and return where the one before it is now.

        The service goes on; the new segment begins with all that the older ones add up to, and
        they stay where they are for as long as anybody wants to ask them. Raises StateError while
        another connection has the log open (`events` that was not read to its end, Datasette,
        `moorage events -f`), LogUnavailableError; then nothing has changed.
        """
        return Path(self._call(self._archive_message(), CALL_S))

    # --- leases ---

    def lease(self, name: str, timeout_s: float = LEASE_S) -> Lease:
        """Lease a model by name or alias, starting it when it is cold. Use it with `with`.

        A ready model costs no lock and no message. Raises UnknownModelError, QueueFullError,
        WaitTimeoutError, NoRoomError, WouldDeadlockError, PortPoolExhaustedError, LoadError,
        LoadCancelledError, ModelHeldError, ModelUnavailableError, StopFailedError,
        LogUnavailableError.
        """
        owner = _thread.owner
        gate = self._hall.table.get(name) if isinstance(name, str) else None
        if gate is not None:
            lease = enter(gate, owner)
            if lease is not None:
                return lease
        message = self._want((name,), timeout_s, leases=True, owner=owner)
        granted: Lease = self._call(message, timeout_s)
        return granted

    def lease_all(self, *names: str, timeout_s: float = LEASE_S) -> JointLease:
        """Lease several models in one step: all of them or none, without deadlock."""
        owner = _thread.owner
        message = self._want(names, timeout_s, leases=True, owner=owner)
        leases: Lease | JointLease = self._call(message, timeout_s)
        return joint(names, leases)

    # --- closing ---

    def close(
        self,
        on_close: Literal["stop", "keep"] | None = None,
        *,
        drain_s: float = DRAIN_S,
        timeout_s: float = CLOSE_S,
    ) -> None:
        """Stop every server, or keep the ready ones, then end all threads and free the lock.

        Waits `drain_s` for leases, then they are lost. May be called twice, from any thread and
        from a callback. Raises CloseIncompleteError naming what could not be stopped; the
        threads have ended then, too, but for those that are still about to stop it. Interrupted,
        it goes on by itself; whoever calls it again waits for that.
        """
        work = functools.partial(self._close, on_close, drain_s, timeout_s)
        if self._runtime.feed.is_dispatching():  # a callback, whose thread is to end, too
            work()
        else:
            self._runtime.threads.apart("close", work)

    def _close(self, on_close: str | None, drain_s: float, timeout_s: float) -> None:
        told = self._told_what_is_left
        mine: Ticket[None] = Ticket("close")
        self._closing.when_answered(functools.partial(mine.grant, None))
        try:
            ask = functools.partial(self._ask_to_close, on_close, drain_s)
            wait(mine, ask, timeout_s, self._left, self._runtime.threads.wait)
            remains = self._closing.result()
        except (WaitTimeoutError, ServiceClosedError):  # this call, or another, at its deadline
            remains = () if told else self._remains()
        except ServiceFailedError as error:
            _log.warning("closing: %s", error)
            remains = ()
        self._runtime.end(LEFT_S if remains else END_S)
        atexit.unregister(self._close_at_exit)
        if remains:
            self._told_what_is_left = True
            raise CloseIncompleteError(remains)

    def _ask_to_close(self, on_close: str | None, drain_s: float) -> None:
        if self._runtime.forked:
            self._runtime.check()
        check.seconds("drain_s", drain_s)
        how = self._on_close if on_close is None else on_close
        if how not in ("stop", "keep"):
            raise ConfigurationError("on_close", f"must be 'stop' or 'keep', not {how!r}")
        force_at = self._runtime.clock.monotonic() + drain_s
        try:
            # Asked by every call, heard once: an interrupted one must not be waited for.
            self._runtime.ask(msg.Close(self._closing, how == "keep", force_at))
        except (ServiceFailedError, ServiceClosedError) as error:
            self._closing.fail(error)

    def _remains(self) -> tuple[str, ...]:
        registry = self._runtime.registry
        closing = registry.volatile.closing
        kept = (Stage.LOADING, Stage.READY) if closing is not None and closing.keep else ()
        return tuple(
            f"{run.model} run {run.run} ({run.stage}, pid {run.pid})"
            for run in registry.state.runs.values()
            if run.stage not in kept
        )

    def _close_at_exit(self) -> None:
        """The host forgot to close: do it now.

        No lease is waited for: whoever holds one ends with the interpreter.
        """
        if not self._runtime.forked:
            self.close(drain_s=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._runtime.forked:  # a child that leaves the block, as `sys.exit` does, may go
            self.close()

    @classmethod
    async def aopen(cls, state: str | os.PathLike[str], **options: Any) -> Self:
        """As `open`, in a thread. Cancelled, what it opens is closed again, servers are kept."""
        ticket: Ticket[Self] = Ticket("open")

        def work() -> None:
            serve(ticket, lambda _: cls.open(state, **options), _close_unwanted)

        heard = hear(ticket)
        threading.Thread(target=work, name="moorage-open", daemon=True).start()
        try:
            await heard
        except BaseException:
            abandon(ticket, _close_elsewhere)
            raise
        return ticket.result()

    async def aclose(
        self,
        on_close: Literal["stop", "keep"] | None = None,
        *,
        drain_s: float = DRAIN_S,
        timeout_s: float = CLOSE_S,
    ) -> None:
        """As `close`. Cancelled, the closing goes on in its thread."""
        await asyncio.to_thread(self.close, on_close, drain_s=drain_s, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._runtime.forked:
            await self.aclose()


def _close_unwanted(service: ModelService) -> None:
    """Nobody waits any more for the service that was opened."""
    try:
        service.close("keep", drain_s=0)
    except CloseIncompleteError as left:
        _log.warning("%s", left)


def _close_elsewhere(service: ModelService) -> None:
    """The same off the loop's thread."""
    threading.Thread(
        target=_close_unwanted, args=(service,), name="moorage-close", daemon=True
    ).start()
