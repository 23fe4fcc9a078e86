"""What the blocking and the asyncio face of a service have in common."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from moorage import limits as check
from moorage.actors import messages as msg
from moorage.actors.apart import Wanted, apart
from moorage.actors.gate import JointLease, Lease
from moorage.actors.tickets import Ticket, wait
from moorage.compose import Runtime, program
from moorage.core.audit import Finding, audit, dated
from moorage.core.events import Entry
from moorage.core.state import Ranges, expand
from moorage.errors import ConfigurationError, NameClashError, QueueFullError, UnknownModelError
from moorage.feed import Callback, Subscription
from moorage.log.backup import backup
from moorage.log.files import StateFiles
from moorage.log.head import read_cuts
from moorage.log.look import LogLook
from moorage.log.reader import LogReader
from moorage.log.rows import PAGE_ROWS
from moorage.log.verify import flaws
from moorage.protocols import Backends
from moorage.spec import ModelSpec
from moorage.status import ModelStatus, ServiceStatus, service_status
from moorage.world.ports import pool_overlaps_ephemeral, unbindable

LEASE_S = 60.0
START_S = 600.0
STOP_S = 60.0
CALL_S = 30.0
"""For calls that only wait for the registry."""
CLOSE_S = 30.0
DRAIN_S = 5.0
"""At close, leases are waited for this long, then they are lost."""
RETRY_AFTER_S = 1.0
_MOST_SEQ = (1 << 63) - 1
_MORE_ROWS = 10 * PAGE_ROWS
"""Of a page that is not the first: opening the log takes as long as reading some hundred rows."""
GRACE_S = 0.5
"""The registry answers at a ticket's deadline and says why; without it the caller does, later."""


class Face:
    """Builds messages and looks at what is published. Any thread."""

    def __init__(self, runtime: Runtime, state: Path) -> None:
        self._runtime = runtime
        self._hall = runtime.hall
        self._state = state
        self._warnings = _warnings(runtime.registry.state.pool)

    def _define_message(self, specs: Sequence[ModelSpec], *, whole: bool) -> msg.Define:
        check_specs(specs, self._runtime.backends)
        known = tuple((spec, self._secrets_hash(spec)) for spec in specs)
        return msg.Define(Ticket("define"), known, whole=whole)

    def _secrets_hash(self, spec: ModelSpec) -> str:
        if not spec.secrets:
            return ""
        text = "\0".join(f"{name}={spec.secrets[name]}" for name in sorted(spec.secrets))
        return hmac.new(
            self._runtime.key, text.encode(errors="surrogateescape"), "sha256"
        ).hexdigest()

    def _limits_message(
        self,
        max_loaded: int | None,
        memory_limit: int | EllipsisType | None,
        min_residency_s: float | None,
    ) -> msg.SetLimits:
        if max_loaded is not None:
            check.whole("max_loaded", max_loaded, low=1, high=10_000)
        if not isinstance(memory_limit, EllipsisType):
            memory(memory_limit)
        if min_residency_s is not None:
            check.seconds("min_residency_s", min_residency_s)
        return msg.SetLimits(Ticket("set_limits"), max_loaded, memory_limit, min_residency_s)

    def _want(
        self, names: Sequence[str], timeout_s: float, *, leases: bool, owner: object
    ) -> msg.Want:
        runtime = self._runtime
        runtime.check()
        check.seconds("timeout_s", timeout_s)
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigurationError("name", f"{names!r} names no model")
        verb = "lease" if leases else "start"
        return msg.Want(
            Ticket(
                f"{verb}({', '.join(map(repr, names))})",
                names=tuple(dict.fromkeys(names)),
                owner=owner,
                timeout_s=timeout_s,
                deadline=runtime.clock.monotonic() + timeout_s,
                leases=leases,
            )
        )

    def _ask(self, message: msg.FromCaller) -> None:
        """Count a waiter in at the door, and tell the registry."""
        desk = self._runtime.desk
        if isinstance(message, msg.Want) and not desk.enter(message.ticket):
            message.ticket.fail(QueueFullError(desk.limit, RETRY_AFTER_S))
            return
        self._runtime.ask(message)

    def _left(self, ticket: Ticket[Any]) -> None:
        self._runtime.left(ticket)

    # --- looking ---

    def status(self) -> ServiceStatus:
        """Return what is so now. Never waits for anything."""
        runtime = self._runtime
        registry = runtime.registry
        usage = runtime.hall.leases()  # before the state: whoever has none then came later
        problem = registry.ledger.unwritable
        now = runtime.clock.monotonic()
        fetching = {run: f.by(now) for run, f in registry.volatile.fetching.copy().items()}
        return service_status(
            registry.state,
            usage,
            fetching,
            waiting=len(runtime.desk),
            log_problem=problem.problem if problem else "",
            unwritten=registry.ledger.backlog,
            stale_messages=registry.volatile.stale,
            warnings=tuple(filter(None, (*self._warnings, registry.ledger.warning))),
        )

    def model(self, name: str) -> ModelStatus:
        """Return one model's status, by name or alias. Raises UnknownModelError."""
        found = self.status().model(name)
        if found is None:
            raise UnknownModelError(name)
        return found

    def events(self, after: int = 0, *, limit: int | None = None) -> Iterator[Entry]:
        """Yield the durable entries of the log with `seq > after`, page by page."""
        check.whole("after", after, low=0, high=_MOST_SEQ)
        if limit is not None:
            check.whole("limit", limit, low=0, high=_MOST_SEQ)
        return self._entries(after, limit)

    def _entries(self, after: int, limit: int | None) -> Iterator[Entry]:
        rows = PAGE_ROWS
        while limit is None or limit > 0:
            wanted = rows if limit is None else min(limit, rows)
            page = self._page(after, wanted)
            yield from page
            if len(page) < wanted:
                return
            after = page[-1].seq
            limit = None if limit is None else limit - wanted
            rows = _MORE_ROWS

    def _page(self, after: int, rows: int) -> tuple[Entry, ...]:
        """Read apart: what a signal handler raises while SQLAlchemy lets go of things is lost."""

        def work(_: Wanted) -> tuple[Entry, ...]:
            with LogReader(self._state) as reader:
                return tuple(reader.read(after, limit=rows))

        return apart("events", work)

    def subscribe(self, callback: Callback) -> Subscription:
        """Call back for every entry committed from now on, on one thread of ours.

        A callback that is too slow gets a `Skipped` in place of entries. It may close the
        service.
        """
        self._runtime.check()
        if not callable(callback):
            raise ConfigurationError("callback", f"{callback!r} cannot be called")
        return self._runtime.feed.subscribe(callback)

    def audit(self, fix: bool = False) -> tuple[Finding, ...]:
        """Hold the log against the world and return what does not agree, () when all is well.

        Beside a busy service the two are looked at twice, a moment apart, and only what stays is
        told. `fix` begins what each finding says would fix it; audit again to see it gone.
        Reads the whole log; blocks meanwhile.
        """
        self._runtime.check()
        first = self._findings()
        if first:
            second = set(self._findings())
            first = tuple(finding for finding in first if finding in second)
        for finding in first if fix else ():
            self._runtime.fix(finding)
        return first

    def _findings(self) -> tuple[Finding, ...]:
        cuts = read_cuts(StateFiles(self._state).cuts)
        with LogReader(self._state) as reader:
            chain = tuple((flaw.seq, flaw.problem) for flaw in flaws(reader))
            before = self._runtime.registry.state
            world = self._runtime.look()
            found = audit(self._runtime.registry.state, world, chain=chain, cuts=cuts)
            found = dated(found, LogLook(reader))
        # What changed while we looked was not seen as it is.
        return (
            found
            if before.seq == self._runtime.registry.state.seq
            else tuple(
                finding
                for finding in found
                if finding.kind in ("broken-chain", "cut-log", "quarantine")
            )
        )

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the live log into one new file and return its bytes. Holds nothing up.

        Raises StateError when the target exists or cannot be written.
        """
        return backup(self._state, check.path("backup", path))

    def _archive_message(self) -> msg.Archive:
        return msg.Archive(Ticket("archive"), program())

    def _call(self, message: msg.FromCaller, timeout_s: float) -> Any:
        check.seconds("timeout_s", timeout_s)
        ticket: Ticket[Any] = message.ticket
        patience_s = patience(message, timeout_s)
        block = self._runtime.threads.wait
        return wait(ticket, lambda: self._ask(message), patience_s, self._left, block)


def patience(message: msg.FromCaller, timeout_s: float) -> float:
    """Return how long a caller waits for the registry."""
    return timeout_s + GRACE_S if isinstance(message, msg.Want) else timeout_s


def listed(models: Iterable[ModelSpec]) -> tuple[ModelSpec, ...]:
    """Return models that are given as a whole set: read once, as it may be a generator.

    Raises ConfigurationError.
    """
    given: object = models
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(
            "models", f"must be a list of ModelSpec, not {type(models).__name__}"
        )
    return tuple(models)


def check_specs(specs: Sequence[ModelSpec], backends: Backends) -> None:
    """Refuse specs that no service could define. Raises ConfigurationError."""
    owners: dict[str, ModelSpec] = {}
    for spec in specs:
        if not isinstance(spec, ModelSpec):
            raise ConfigurationError("define", f"{spec!r} is no ModelSpec")
        backends.get(spec.backend).check(spec)
        for name in spec.names:
            owner = owners.setdefault(name, spec)
            if owner is not spec and owner.name == name == spec.name:
                raise ConfigurationError("define", f"{name!r} is specified twice")
            if owner is not spec:
                raise NameClashError(name, owner.name)


def pool(ports: Iterable[int]) -> Ranges:
    """Return a usable port pool as ranges. Raises ConfigurationError."""
    ranges = check.port_ranges(ports)
    refused = unbindable(port for first, last in ranges for port in range(first, last + 1))
    if refused:
        raise ConfigurationError(
            "port range", f"port {refused[0]} cannot be bound by this user; choose ports from 1024"
        )
    return ranges


def memory(limit: int | None) -> int | None:
    """Return a usable memory limit in bytes. Raises ConfigurationError."""
    return None if limit is None else check.whole("memory_limit", limit, low=1, high=1 << 60)


def joint(names: Sequence[str], leases: Lease | JointLease) -> JointLease:
    """Return leases by the names asked for, also where several name one model."""
    if isinstance(leases, JointLease):
        return leases
    return JointLease({names[0]: leases})


def _warnings(pool_ranges: Ranges) -> tuple[str, ...]:
    overlap = pool_overlaps_ephemeral(expand(pool_ranges))
    if not overlap:
        return ()
    problem = (
        f"{len(overlap)} ports of the pool, from {overlap[0]}, are in the kernel's ephemeral "
        "range: any outgoing connection may take one; choose others (ip_local_port_range)"
    )
    return (problem,)
