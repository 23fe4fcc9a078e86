"""Threads that change places as often as the interpreter can, all on the warm path.

Servers are fakes, so that a stop takes no time and gates close and open all the while. Who uses a
run says so, and whoever is asked to stop one that is in use is a witness against the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moorage import Lease, ModelService, ModelSpec, MoorageError, WaitTimeoutError
from moorage.core.lifecycle import Stage
from moorage.protocols import ExitStatus, RunProcess, StopReport
from moorage.testing import FakeProcesses, fake_parts
from support import seeds
from support.services import LIMIT_S, Outcome, Seen, settle, state_of

NAMES = "abc"
THREADS = TASKS = 8
SECONDS = 4.0
HURRY_S = 0.0005
"""The timeout of those who leave again, so that what drains for them opens again."""
PAUSE_S = 0.02
"""Between two disturbances: else nobody would be on the warm path."""
NEEDED = ("run.evicting", "run.reopened", "run.draining", "run.exited")
"""Has to happen before the end: else the run shows nothing."""


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads change places as often as the interpreter can."""
    before = sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # what is there already makes each collection long
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.unfreeze()


class Witness(FakeProcesses):
    """Servers that know who uses them, and which of them were killed from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[object, int] = {}
        self.killed: set[int] = set()
        self.known_dead: set[int] = set()
        """Ended, and that was told: from then on a lease says that it is lost."""
        self.wrong: list[str] = []

    def stop(self, process: RunProcess, *args: Any, **kwargs: Any) -> StopReport:
        if process.run in list(self.users.values()) and process.run not in self.killed:
            self.wrong.append(f"run {process.run} is stopped while it is in use")
        return super().stop(process, *args, **kwargs)

    def watch(
        self, process: RunProcess, on_exit: Callable[[ExitStatus], None], **more: Any
    ) -> None:
        def told(status: ExitStatus) -> None:
            on_exit(status)
            self.known_dead.add(process.run)

        super().watch(process, told, **more)

    def look(self, lease: Lease) -> None:
        """Hold what a lease says of itself against what is so."""
        dead = lease.run in self.known_dead
        lost = lease.lost
        if dead and not lost:
            self.wrong.append(f"run {lease.run} is dead, and its lease does not say so")
        if lost and lease.run not in self.killed:
            self.wrong.append(f"run {lease.run} was taken from a lease")

    def kill(self, chance: random.Random) -> str | None:
        """Kill a server; return the model it was of."""
        alive = self.alive()
        if not alive:
            return None
        server = chance.choice(alive)
        self.killed.add(server.run)
        server.exit(signal=9)
        return server.model


class Crowd:
    """Those who lease and those who disturb them, until enough has happened."""

    def __init__(self, service: ModelService, witness: Witness, seed: str) -> None:
        self.service = service
        self.witness = witness
        self.seed = seed
        self.leases = Counter[str]()
        self.refused = Counter[str]()
        self.over = threading.Event()
        self.gone = threading.Event()
        """Nobody waits any more for room that a lost lease may hold."""

    def _answered(self, error: MoorageError, limit_s: float) -> None:
        """Errors of the tree are answers, but those of a patient caller that tell of a hang."""
        if isinstance(error, WaitTimeoutError) and limit_s > HURRY_S:
            self.witness.wrong.append(str(error))
        self.refused[type(error).__name__] += 1

    def _pick(self, chance: random.Random) -> tuple[str, float]:
        limit_s = HURRY_S if chance.random() < 0.05 else LIMIT_S
        return NAMES[chance.choice((0, 0, 0, 0, 1, 1, 1, 2))], limit_s

    @contextlib.contextmanager
    def _using(self, me: str, lease: Lease) -> Iterator[None]:
        self.witness.users[me] = lease.run
        self.witness.look(lease)
        try:
            yield
        finally:
            self.witness.look(lease)
            del self.witness.users[me]
            self.leases[me] += 1

    def thread(self, me: str) -> None:
        chance = random.Random(f"{self.seed} {me}")
        while not self.over.is_set():
            name, limit_s = self._pick(chance)
            try:
                lease = self.service.lease(name, limit_s)
            except MoorageError as error:
                self._answered(error, limit_s)
                continue
            with self._using(me, lease):
                pass
            if chance.random() < 0.9:
                lease.release()
            else:
                _Cycle(lease)
            del lease

    async def task(self, me: str) -> None:
        chance = random.Random(f"{self.seed} {me}")
        while not self.over.is_set():
            name, limit_s = self._pick(chance)
            try:
                async with self.service.alease(name, limit_s) as lease:
                    with self._using(me, lease):
                        await asyncio.sleep(0)
            except MoorageError as error:
                self._answered(error, limit_s)
            await asyncio.sleep(0)

    async def _all_tasks(self) -> None:
        await asyncio.gather(*(self.task(f"task {number}") for number in range(TASKS)))

    def collect(self) -> None:
        """Let finalisers of leases that were lost in cycles run, in a thread of no user."""
        while not self.gone.wait(PAUSE_S):
            gc.collect()

    def disturb(self) -> None:
        chance = random.Random(f"{self.seed} disturb")
        while not self.over.wait(PAUSE_S):
            try:
                chance.choice(self._disturbances(chance))()
            except MoorageError as error:
                self._answered(error, HURRY_S)

    def _disturbances(self, chance: random.Random) -> list[Callable[[], object]]:
        service, name = self.service, chance.choice(NAMES)
        return [
            lambda: self._kill(chance),
            lambda: service.stop(name, timeout_s=LIMIT_S),
            lambda: service.set_limits(max_loaded=chance.randrange(1, 4)),
            lambda: service.define(model(name, f"--{chance.randrange(2)}")),
            lambda: service.remove(name, timeout_s=HURRY_S),
            lambda: service.define(*map(model, NAMES)),
        ]

    def _kill(self, chance: random.Random) -> None:
        name = self.witness.kill(chance)
        if name is not None:
            settle(lambda: self.service.model(name).state not in ("ready", "draining"))
            self.service.reset(name)

    def go(self, enough: Callable[[], bool]) -> None:
        workers = [Outcome(lambda me=f"thread {n}": self.thread(me)) for n in range(THREADS)]  # type: ignore[misc]
        workers.append(Outcome(lambda: asyncio.run(self._all_tasks())))
        workers.append(Outcome(self.disturb))
        collector = Outcome(self.collect)
        try:
            settle(enough, 3 * LIMIT_S)
            self.over.set()
            for worker in workers:
                worker.get()
        finally:
            self.over.set()
            self.gone.set()
        collector.get()


class _Cycle:
    """Keeps a lease where only the collector finds it."""

    def __init__(self, lease: Lease) -> None:
        self.itself = self
        self.lease = lease


def model(name: str, *args: str) -> ModelSpec:
    template = ("server", "{port}", *args)
    return ModelSpec(name=name, backend="command", args=template, crash_budget=10_000)


@pytest.mark.timeout(120)
def test_eight_threads_and_eight_tasks_keep_their_leases_whatever_happens_to_the_gates(
    opened: Callable[..., ModelService], restless: None
) -> None:
    seed = str(seeds.seed("RESTLESS"))
    witness = Witness()
    service = opened(*map(model, NAMES), parts=fake_parts(processes=witness), max_loaded=2)
    seen = Seen(service)
    crowd = Crowd(service, witness, seed)
    until = time.monotonic() + SECONDS

    def enough() -> bool:
        kinds = {getattr(entry.event, "kind", "") for entry in list(seen.entries)}
        return time.monotonic() > until and kinds.issuperset(NEEDED)

    crowd.go(enough)
    gc.collect()
    service.define(*map(model, NAMES))
    for name in NAMES:
        service.reset(name)
        service.lease(name, LIMIT_S).release()
    print(f"{crowd.leases.total()} leases, refused {dict(crowd.refused)}")

    assert witness.wrong == []
    assert len(crowd.leases) == THREADS + TASKS
    settle(lambda: service.status().waiting == 0)
    settle(lambda: not any(one.leases for one in service.status().models))
    assert all(most == 1 for most in witness.most_alive.values())
    settle(lambda: all(run.stage is Stage.READY for run in state_of(service).runs.values()))
