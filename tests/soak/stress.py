"""Threads and tasks that use real servers, an operator who changes everything, and an enemy.

Each draws what it does from a seed of its own. What is told to them is held against what the enemy
did: a request may only fail when its server was killed, frozen or stopped by force.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import http.client
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from moorage import (
    Lease,
    ModelHeldError,
    ModelService,
    ModelSpec,
    ModelUnavailableError,
    MoorageError,
    ServiceFailedError,
    StopFailedError,
    WaitTimeoutError,
)
from soak import load
from support.services import Outcome, settle

THREADS = TASKS = 8
PATIENT_S = 60.0
HURRY_S = 0.002
HTTP_S = 2.0
"""A frozen server is waited for so long, by everybody who has it."""
OPERATOR_S = (0.05, 0.5)
ENEMY_S = (0.3, 1.5)
"""From, to: between two acts."""
COLLECT_S = 0.3
"""Between two collections: a lost lease keeps its model from eviction until it is found."""


@dataclass
class Tally:
    """What became of everything, and in `wrong` what should never be."""

    done: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    hit: set[int] = field(default_factory=set[int])
    """Runs whose server the enemy killed or froze."""
    lost: set[int] = field(default_factory=set[int])
    """Runs not hit whose leases said that they were lost: the log has to say why."""

    def refuse(self, error: MoorageError, limit_s: float = PATIENT_S) -> None:
        """Count an answer; some are none."""
        hangs = isinstance(error, WaitTimeoutError) and limit_s >= PATIENT_S
        if hangs or isinstance(error, ServiceFailedError | StopFailedError):
            self.wrong.append(f"{type(error).__name__}: {error}")
        self.refused[type(error).__name__] += 1

    def fail(self, lease: Lease, error: Exception) -> None:
        """Judge a request that came to nothing."""
        self.done["requests that failed"] += 1
        if lease.run in self.hit:
            return
        try:
            settle(lambda: lease.lost, HTTP_S)
        except AssertionError:
            self.wrong.append(f"{lease.model} run {lease.run} lives, and {error!r}")
        self.lost.add(lease.run)

    def served(self, lease: Lease, by: str) -> None:
        self.done["completions"] += 1
        if by != lease.model:
            self.wrong.append(f"{by} answered for {lease.model}")
        if lease.lost and lease.run not in self.hit:  # its leader may end before its lease does
            self.lost.add(lease.run)


class Crowd:
    """All of them, until `stop`."""

    def __init__(self, service: ModelService, specs: Sequence[ModelSpec], seed: str) -> None:
        self.service = service
        self.specs = {spec.name: spec for spec in specs}
        self.seed = seed
        self.tally = Tally()
        self.over = threading.Event()
        self._frozen: set[int] = set()  # pidfds

    def go(self, seconds: float) -> None:
        """Let all of them do what they do for some seconds, and wait until they are done."""
        works: list[Callable[[], object]] = [
            *(lambda me=f"thread {n}": self._thread(me) for n in range(THREADS)),  # type: ignore[misc]
            lambda: asyncio.run(self._tasks()),
            lambda: self._repeat("operator", OPERATOR_S, self._operate),
            self._be_the_enemy,
        ]
        gc.collect()
        gc.freeze()  # what is there already makes each collection long
        done = threading.Event()
        collector = Outcome(lambda: _collect_until(done))
        try:
            workers = [Outcome(work) for work in works]
            self.over.wait(seconds)
            self.over.set()
            for worker in workers:
                worker.thread.join(2 * PATIENT_S)
                worker.get()
        finally:
            done.set()
            collector.get()

    def recover(self) -> None:
        """Undo what the operator left, and have every model answer once more."""
        gc.unfreeze()
        gc.collect()
        self.service.define(*self.specs.values())
        self.service.set_limits(max_loaded=2)
        for name in self.specs:
            self.service.unpin(name)
            self.service.stop(name, force=True, timeout_s=PATIENT_S)
            self.service.reset(name)
        for name in self.specs:
            with self.service.lease(name, PATIENT_S) as lease:
                self.tally.served(lease, load.complete(lease.port, name))

    # --- users ---

    def _pick(self, chance: random.Random) -> tuple[str, str]:
        first, second = chance.sample(load.MODELS, 2)
        return first, second

    def _thread(self, me: str) -> None:
        chance = random.Random(f"{self.seed} {me}")
        while not self.over.is_set():
            name, other = self._pick(chance)
            try:
                self._use_somehow(chance.random(), name, other)
            except MoorageError as error:
                self.tally.refuse(error)
                self._help(name, error)

    def _use_somehow(self, kind: float, name: str, other: str) -> None:
        if kind < 0.05:
            with contextlib.suppress(WaitTimeoutError):
                self._lose(self.service.lease(name, HURRY_S))
        elif kind < 0.1:
            self._lose(self.service.lease(name, PATIENT_S))
        elif kind < 0.2:
            with self.service.lease_all(name, other, timeout_s=PATIENT_S) as leases:
                for lease in leases.values():
                    self._complete(lease)
        else:
            with self.service.lease(name, PATIENT_S) as lease:
                self._complete(lease)

    def _complete(self, lease: Lease) -> None:
        try:
            by = load.complete(lease.port, lease.model, HTTP_S)
        except (OSError, http.client.HTTPException, RuntimeError, ValueError) as error:
            self.tally.fail(lease, error)
        else:
            self.tally.served(lease, by)

    def _lose(self, lease: Lease) -> None:
        """Lose a lease where only the collector finds it."""
        cycle: list[object] = [lease]
        cycle.append(cycle)
        self.tally.done["leases lost"] += 1

    def _help(self, name: str, error: MoorageError) -> None:
        """Do what the message of the error says."""
        if isinstance(error, ModelUnavailableError | ModelHeldError):
            with contextlib.suppress(MoorageError):
                self.service.reset(name)

    async def _tasks(self) -> None:
        await asyncio.gather(*(self._task(f"task {number}") for number in range(TASKS)))

    async def _task(self, me: str) -> None:
        chance = random.Random(f"{self.seed} {me}")
        while not self.over.is_set():
            name, other = self._pick(chance)
            kind = chance.random()
            try:
                if kind < 0.1:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ause(name), chance.random() * 0.05)
                    self.tally.done["cancelled"] += 1
                elif kind < 0.2:
                    async with self.service.alease_all(name, other, timeout_s=PATIENT_S) as leases:
                        for lease in leases.values():
                            await self._acomplete(lease)
                else:
                    await self._ause(name)
            except MoorageError as error:
                self.tally.refuse(error)
                if isinstance(error, ModelUnavailableError | ModelHeldError):
                    with contextlib.suppress(MoorageError):
                        await self.service.areset(name)

    async def _ause(self, name: str) -> None:
        async with self.service.alease(name, PATIENT_S) as lease:
            await self._acomplete(lease)

    async def _acomplete(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(HTTP_S):
                by = await _acomplete(lease.port, lease.model)
        except (OSError, RuntimeError, ValueError, asyncio.IncompleteReadError) as error:
            await asyncio.to_thread(self.tally.fail, lease, error)
        else:
            self.tally.served(lease, by)

    # --- those who disturb them ---

    def _repeat(
        self, me: str, pause_s: tuple[float, float], act: Callable[[random.Random], object]
    ) -> None:
        chance = random.Random(f"{self.seed} {me}")
        while not self.over.wait(chance.uniform(*pause_s)):
            try:
                act(chance)
            except MoorageError as error:
                self.tally.refuse(error)

    def _operate(self, chance: random.Random) -> None:
        service, name = self.service, chance.choice(load.MODELS)
        spec = self.specs[name]
        act = chance.choice(
            (
                lambda: service.start(name, PATIENT_S),
                lambda: service.stop(name, timeout_s=PATIENT_S),
                lambda: service.stop(name, force=True, timeout_s=PATIENT_S),
                lambda: self._hold(name),
                lambda: self._pin(name, chance),
                lambda: service.set_limits(max_loaded=chance.randrange(1, 4)),
                lambda: service.define(_changed(spec, chance)),
                lambda: self._replace(spec, force=chance.random() < 0.5),
            )
        )
        act()
        self.tally.done["operations"] += 1

    def _hold(self, name: str) -> None:
        self.service.stop(name, hold=True, timeout_s=PATIENT_S)
        self.service.reset(name)

    def _pin(self, name: str, chance: random.Random) -> None:
        self.service.pin(name)
        self.over.wait(chance.uniform(*OPERATOR_S))
        self.service.unpin(name)

    def _replace(self, spec: ModelSpec, *, force: bool) -> None:
        try:
            self.service.remove(spec.name, force=force, timeout_s=PATIENT_S)
        finally:
            self.service.define(spec)

    def _be_the_enemy(self) -> None:
        self._repeat("enemy", ENEMY_S, self._attack)
        for pidfd in tuple(self._frozen):  # one that is frozen while it loads is waited for
            self._thaw(pidfd)

    def _attack(self, chance: random.Random) -> None:
        """Kill or freeze a server from outside, or let one go on that was frozen."""
        if self._frozen and chance.random() < 0.5:
            self._thaw(chance.choice(tuple(self._frozen)))
            return
        with self._found(chance.choice(load.MODELS)) as pidfd:
            if pidfd is None:
                return
            freezes = chance.random() < 0.3
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP if freezes else signal.SIGKILL)
                self.tally.done["frozen" if freezes else "killed"] += 1
                if freezes:
                    self._frozen.add(os.dup(pidfd))

    @contextlib.contextmanager
    def _found(self, name: str) -> Iterator[int | None]:
        """Give the pidfd of a model's server, sure to be of the run that is noted as hit."""
        before = self.service.status().model(name)
        if before is None or before.pid is None or before.run is None:
            yield None
            return
        try:
            pidfd = os.pidfd_open(before.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            after = self.service.status().model(name)
            same = after is not None and (after.run, after.pid) == (before.run, before.pid)
            if same:
                self.tally.hit.add(before.run)
            yield pidfd if same else None
        finally:
            os.close(pidfd)

    def _thaw(self, pidfd: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        self._frozen.remove(pidfd)
        os.close(pidfd)


def _collect_until(done: threading.Event) -> None:
    """Find lost leases as long as anybody may wait for them: nothing else collects by then."""
    while not done.wait(COLLECT_S):
        gc.collect()


def _changed(spec: ModelSpec, chance: random.Random) -> ModelSpec:
    """Return a spec that differs in what makes a reload needed."""
    return dataclasses.replace(spec, env={**spec.env, "TURN": str(chance.random())})


async def _acomplete(port: int, model: str) -> str:
    """As `load.complete`, without a thread."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = load.request_for(model).encode()
        headers = {**load.HEADERS, "Host": "127.0.0.1", "Content-Length": str(len(body))}
        lines = (f"POST {load.PATH} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", "")
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(
            int(v) for k, _, v in (h.partition(":") for h in head) if k == "Content-Length"
        )
        return load.served_by(int(head[0].split()[1]), await reader.readexactly(length))
    finally:
        writer.close()
