"""Many callers and faults, one seed: nobody hangs, nothing leaks, no prefix of the log is wrong."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors.bench import Bench, spec
from actors.conftest import Open
from moorage import MoorageError, ServiceFailedError, WaitTimeoutError
from moorage.core.fold import replay
from moorage.testing import ExitStatus, Readiness, Script
from support import seeds

NAMES = "abcd"
CLIENTS = 5
TURNS = 60
PATIENT_S = 3600.0
"""Longer than any test: in it, nobody leaves by deadline."""
HURRY_S = 0.001
"""The timeout of those who leave again."""
FAULTS = (
    Script(),
    Script(),
    Script(),
    Script(refuse="no executable"),
    Script(exits=ExitStatus(code=1)),
    Script(ignores=frozenset({15}), children=2),
)


class Client:
    """Does what its seed says. Errors of the tree are answers, but those that tell of a hang."""

    def __init__(self, bench: Bench, seed: str) -> None:
        self.bench = bench
        self.service = bench.service
        self.random = random.Random(seed)

    def run(self) -> int:
        """Return how many calls were answered with an error of the tree."""
        refused = 0
        for _ in range(TURNS):
            try:
                self.random.choice(self.acts())()
            except MoorageError as error:
                hangs = isinstance(error, WaitTimeoutError) and error.timeout_s > HURRY_S
                if hangs or isinstance(error, ServiceFailedError):
                    raise
                refused += 1
        return refused

    def acts(self) -> list[Callable[[], Any]]:
        pick, service = self.random, self.service
        name, other = pick.sample(NAMES, 2)
        return [
            *[lambda: self.use(name)] * 8,
            *[lambda: service.lease_all(name, other, timeout_s=PATIENT_S).release()] * 2,
            lambda: service.start(name, timeout_s=PATIENT_S),
            lambda: service.stop(name, force=pick.random() < 0.5),
            lambda: service.stop(name, force=True, hold=True),
            lambda: service.reset(name),
            lambda: (
                service.lease(name, timeout_s=0.001).release()
                if pick.random() < 0.1
                else self.use(name)
            ),
            lambda: self.crash(name),
            lambda: service.define(spec(name, args=(f"--{pick.randrange(2)}",), crash_budget=99)),
            lambda: self.replace(name),
        ]

    def use(self, name: str) -> None:
        with self.service.lease(name, timeout_s=PATIENT_S), self.service.lease(name, PATIENT_S):
            pass

    def crash(self, name: str) -> None:
        for server in self.bench.processes.alive():
            if server.model == name:
                server.exit(signal=9)

    def replace(self, name: str) -> None:
        self.service.remove(name, force=True)
        self.service.define(spec(name, crash_budget=99))


@pytest.mark.parametrize("turn", range(3))
def test_callers_and_faults_in_any_order_leave_a_sound_log_and_nobody_waiting(
    bench: Open, turn: int
) -> None:
    seed = f"{seeds.seed('CHAOS')} {turn}"
    b = bench(max_loaded=2)
    b.define(*NAMES, crash_budget=99)
    faults = random.Random(seed)
    for name in NAMES:
        b.processes.will(name, *faults.choices(FAULTS, k=40))
        b.ports.will(
            name, *faults.choices((Readiness("ready"), Readiness("ready"), Readiness("lost")), k=20)
        )
    done = threading.Event()

    def pass_time() -> None:
        while not done.wait(0.002):
            b.clock.advance(0.1)

    clients = [b.call(Client(b, f"{seed} {number}").run) for number in range(CLIENTS)]
    time = b.call(pass_time)
    try:
        for future in clients:
            b.result(future)
    finally:
        done.set()
    b.result(time)
    b.settle()
    for name in NAMES:
        b.service.reset(name)
        b.advance_until(lambda n=name: b.state(n) in ("ready", "stopped", "backoff"))
    b.settle()

    assert b.service.status().waiting == 0
    assert all(model.leases == 0 for model in b.service.status().models)
    assert replay(b.entries()) == b.service._runtime.registry.state
