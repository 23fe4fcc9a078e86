"""The lock-free gate, one instruction at a time.

The real code runs in threads that stop before each instruction which reads or writes `closed` or
`holders`; the test says who goes next, and all orders of one user and the registry are tried. Of
three users and all who share a gate with them, `tests/interleaving` tries every order of accesses.
"""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

import pytest

from moorage.actors import gate as gate_module
from moorage.actors.gate import Gate, Lease, enter
from support import collector
from support.services import LIMIT_S

SHARED = {"closed", "holders", "dead"}
OURS = {gate_module.__file__, __file__}


@cache
def _stops(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which to stop."""
    return frozenset(
        one.offset
        for one in dis.get_instructions(code)
        if one.opname == "STORE_SUBSCR" or one.argval in SHARED
    )


class Actor:
    """One thread that goes one step at a time."""

    def __init__(self, work: Callable[[], None], paused: SimpleQueue[bool]) -> None:
        self._work = work
        self._paused = paused
        self._go = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def step(self) -> bool:
        """Let it go on to its next stop; return whether there is one."""
        self._go.release()
        return self._paused.get(timeout=LIMIT_S)

    def _run(self) -> None:
        self._go.acquire()
        sys.settrace(self._trace)
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error
        finally:
            sys.settrace(None)
            self._paused.put(False)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        code = frame.f_code
        if event == "call":
            if code.co_filename not in OURS or frame.f_code is Actor._run.__code__:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode" and frame.f_lasti in _stops(code):
            self._paused.put(True)
            self._go.acquire()
        return self._trace


def play(works: list[Callable[[], None]], choose: Callable[[int], int]) -> None:
    """Run the works step by step; `choose` says which of those that can go does."""
    paused: SimpleQueue[bool] = SimpleQueue()
    actors = [Actor(work, paused) for work in works]
    able = list(actors)
    with collector.off():  # a lease that others lost would take steps here, in one order of many
        while able:
            actor = able[choose(len(able))]
            if not actor.step():
                able.remove(actor)
    for actor in actors:
        actor.thread.join(LIMIT_S)
        if actor.error is not None:
            raise actor.error


def every_order(once: Callable[[Callable[[int], int]], None], limit: int = 5000) -> int:
    """Call `once` with every sequence of choices there is; return how many."""
    path: list[tuple[int, int]] = []
    count = 0
    while count < limit:
        position = 0

        def choose(width: int) -> int:
            nonlocal position
            if position == len(path):
                path.append((0, width))
            position += 1
            return path[position - 1][0]

        once(choose)
        count += 1
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return count
        path[-1] = (path[-1][0] + 1, path[-1][1])
    raise AssertionError("there are more orders than foreseen")


class Play:
    """One gate, its users and its registry; judged at the end."""

    def __init__(self) -> None:
        self.emptied: list[int] = []
        self.drains = False
        self.died = False
        self.gate = Gate(
            model="m", run=1, ports=(1,), on_empty=self.emptied.append, now=time.monotonic
        )

    def enter(self) -> Lease | None:
        return enter(self.gate, 1)

    def user(self) -> None:
        lease = self.enter()
        if lease is not None:
            self._use(lease)
            lease.release()

    def forgetful(self) -> None:
        lease = self.enter()
        if lease is not None:
            self._use(lease)
        del lease

    def _use(self, lease: Lease) -> None:
        lost = lease.lost
        assert self.died or not lost, "evicted while it was leased"

    def evict(self) -> None:
        """Close, then look: end it when it is idle, else leave it closed, to drain."""
        self.gate.closed = True
        if self.gate.holders:
            self.drains = True
        else:
            self.gate.dead = True

    def reopen(self) -> None:
        """Close, and think better of it when it is busy."""
        self.gate.closed = True
        if self.gate.holders:
            self.gate.closed = False
        else:
            self.gate.dead = True

    def die(self) -> None:
        self.died = True
        self.gate.closed = True
        self.gate.dead = True

    def judge(self) -> None:
        assert self.gate.holders == {}
        if self.drains:
            assert self.emptied, "the registry was not told that the last lease left"
        assert self.gate.granted() >= 1


REGISTRIES = ("evict", "reopen", "die")


@pytest.mark.parametrize("registry", REGISTRIES)
@pytest.mark.parametrize("user", ["user", "forgetful"])
def test_every_order_of_one_user_and_the_registry_is_sound(user: str, registry: str) -> None:
    def once(choose: Callable[[int], int]) -> None:
        one = Play()
        play([getattr(one, user), getattr(one, registry)], choose)
        one.judge()

    assert every_order(once) > 20


def test_what_others_left_takes_no_steps_here() -> None:
    before = gc.get_threshold()
    gate = Gate(model="m", run=2, ports=(1,), on_empty=lambda _run: None, now=time.monotonic)
    plays = 0

    def once(choose: Callable[[int], int]) -> None:
        nonlocal plays
        plays += 1
        one = Play()

        def evict() -> None:
            assert [[] for _ in range(200)]  # enough for the collector, were it at work
            one.evict()

        if plays % 2:
            Cycle(Lease(gate, "lost"))
        try:
            gc.set_threshold(100)
            play([one.user, evict], choose)
        finally:
            gc.set_threshold(*before)

    assert every_order(once) > 20


def test_an_unsound_gate_would_be_found() -> None:
    """A user who looks before he announces is overtaken in some order: the search must see it."""

    def once(choose: Callable[[int], int]) -> None:
        one = Play()

        def hasty() -> None:
            if not one.gate.closed:
                lease = Lease(one.gate, 1)
                one._use(lease)
                lease.release()

        play([hasty, one.evict], choose)

    with pytest.raises(AssertionError, match="evicted while it was leased"):
        every_order(once)


class Cycle:
    """Only the collector finds it."""

    def __init__(self, lease: Lease) -> None:
        self.itself = self
        self.lease = lease


def test_a_lost_lease_may_be_collected_while_the_holders_are_looked_at() -> None:
    before = gc.get_threshold()
    found: set[int] = set()
    for allocations in range(12):  # the collector runs at each step of the look in turn
        gate = Gate(model="m", run=1, ports=(1,), on_empty=lambda _run: None, now=time.monotonic)
        kept = [Lease(gate, "kept") for _ in range(30)]
        gc.collect(0)
        Cycle(Lease(gate, "lost"))
        try:
            gc.set_threshold(gc.get_count()[0] + allocations)
            found.add(len(gate.owners()))
        finally:
            gc.set_threshold(*before)
        gc.collect(0)

        assert gate.owners() == ["kept"] * len(kept)

    assert found <= {30, 31}


def test_a_lease_is_still_held_when_its_last_use_is_noted_and_noted_once() -> None:
    gates: list[Gate] = []
    held: list[int] = []

    def now() -> float:
        held.extend(len(gate.holders) for gate in gates)
        return 1.0

    gates.append(Gate(model="m", run=1, ports=(1,), on_empty=lambda _run: None, now=now))
    lease = Lease(gates[0], "user")
    held.clear()
    lease.release()
    lease.release()
    del lease

    assert held == [1]  # seen without a lease before, it would be idle since it was entered


def test_the_registry_is_told_when_the_last_lease_at_a_closed_gate_is_lost_in_a_cycle() -> None:
    told: list[int] = []
    gate = Gate(model="m", run=2, ports=(1,), on_empty=told.append, now=time.monotonic)
    Cycle(Lease(gate, "lost"))
    gate.closed = True
    gc.collect()

    assert told == [2]
