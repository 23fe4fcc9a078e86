"""The same parties in real threads, on a real gate's fields, in one order drawn by chance.

It holds what was found by running each party alone, again and again, against what they do when
they run once, together: each access has to be the one that the tree foresaw, and its answer the
one that the model of a dict and two flags gives.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any

from interleaving.explore import FRESH, GATED, STEPS, TABLE, Shared, marked
from interleaving.steps import Access, Party, Pause, Script
from moorage.actors.gate import Gate
from support import collector

LIMIT_S = 20.0
NOTHING = object()


class Real:
    """A real gate, and beside it what the hall and the inbox keep."""

    def __init__(self) -> None:
        self.gate = Gate(model="a", run=1, ports=(1,), on_empty=lambda _run: None, now=lambda: 0.0)
        self.inbox: deque[str] = deque()
        self.table = self.gated = True

    def do(self, access: Access) -> Any:  # noqa: C901, PLR0911, PLR0912  one branch an access
        holders: dict[int, Any] = self.gate.holders
        match access:
            case ("closed?",) | ("dead?",):
                return getattr(self.gate, access[0][:-1])
            case ("table?",) | ("gated?",):
                return getattr(self, access[0][:-1])
            case ("closed=" | "dead=", value):
                return setattr(self.gate, access[0][:-1], value)
            case ("table=", value):
                self.table = value
            case ("ungate",):
                self.gated = False
            case ("any?",):
                return bool(holders)
            case ("count?",):
                return len(holders)
            case ("who?",):
                return tuple(sorted(holders))
            case ("has", key):
                return key in holders
            case ("pop", key):
                return holders.pop(key, NOTHING) is not NOTHING
            case ("add", key):
                holders[key] = (None, None)  # type: ignore[assignment]
            case ("send", what):
                self.inbox.append(what)
            case ("receive",):
                return self.inbox.popleft()
            case ("shared?",):
                return None
            case _:
                raise AssertionError(f"a step nobody foresaw: {access}")
        return None


class LiveScript(Script):
    """Announces an access, waits for its turn and makes it; in the party's own thread."""

    def __init__(self, real: Real) -> None:
        super().__init__()
        self._real = real
        self._go = threading.Semaphore(0)
        self._there = threading.Semaphore(0)
        self._choice: Any = None
        self._ends = False
        self.answer: Any = None

    def ask(self, *access: Any) -> Any:
        if not self.armed or self._ends:
            return None
        self.access = access
        self._there.release()
        self._go.acquire()
        if self._ends:
            raise Pause
        if access[0] in ("mark", "point"):
            self.answer = None
        elif access[0] == "choose":
            self.answer = self._choice
        else:
            self.answer = self._real.do(access)
        return self.answer

    def point(self, tell: Any) -> None:
        self.ask("point", *tell())

    def run(self, party: Party) -> None:
        try:
            party.work(self)
        except Pause:
            pass
        finally:
            self.access, self._ends = None, True
            self._there.release()

    def arrive(self) -> None:
        """Wait until the thread is at its next access, or has ended."""
        if not self._there.acquire(timeout=LIMIT_S):
            raise AssertionError("a party hangs")

    def go(self, choice: Any = None) -> Any:
        """Let it make its access and come to the next one; return the answer."""
        self._choice = choice
        self._go.release()
        self.arrive()
        return self.answer

    def end(self) -> None:
        self._ends = True
        self._go.release()


class Live:
    """One history: the threads, the model beside them, and chance."""

    def __init__(self, parties: tuple[Party, ...], chance: random.Random) -> None:
        self._chance = chance
        self._parties = parties
        self._real = Real()
        self._nodes = [party.start for party in parties]
        self._shared: Shared = FRESH
        self._scripts = [LiveScript(self._real) for _ in parties]
        self.steps = 0

    def play(self) -> int:
        """Run to the end; return the number of steps. Raises AssertionError for a difference."""
        threads = [
            threading.Thread(target=script.run, args=(party,), daemon=True)
            for script, party in zip(self._scripts, self._parties, strict=True)
        ]
        for thread in threads:
            thread.start()
        for script in self._scripts:
            script.arrive()
        with collector.off():  # else a party would run finalisers of what others left
            self._orders()
        for script, thread in zip(self._scripts, threads, strict=True):
            if script.access is not None:
                script.end()
            thread.join(LIMIT_S)
        return self.steps

    def _orders(self) -> None:
        while able := [at for at in range(len(self._scripts)) if self._able(at)]:
            self._step(self._chance.choice(able))

    def _able(self, at: int) -> bool:
        """Tell whether a party can go on; marks are made on the way, they take no time."""
        script, party = self._scripts[at], self._parties[at]
        while script.access is not None and script.access[0] in ("mark", "point"):
            self._foreseen(at)
            if script.access[0] == "mark":
                self._shared = marked(self._shared, script.access, party.key)
            script.go()
            self._nodes[at] = party.after(self._nodes[at], None)
        if script.access is None:
            assert party.accesses[self._nodes[at]] is None, f"{party.name} ended too early"
            return False
        self._foreseen(at)
        if script.access[0] == "choose":
            return True
        return STEPS[script.access[0]](self._shared, script.access, party.key) is not None

    def _foreseen(self, at: int) -> None:
        access, expected = self._scripts[at].access, self._parties[at].accesses[self._nodes[at]]
        assert access == expected, f"{self._parties[at].name}: {access}, not {expected}"

    def _step(self, at: int) -> None:
        script, party = self._scripts[at], self._parties[at]
        access = script.access
        assert access is not None
        self.steps += 1
        if access[0] == "choose":
            expected: Any = self._chance.randrange(access[1])
            answer = script.go(expected)
        else:
            outcome = STEPS[access[0]](self._shared, access, party.key)
            assert outcome is not None
            expected, self._shared = outcome
            answer = script.go()
        assert answer == expected, f"{party.name}: {access} gave {answer}, not {expected}"
        self._nodes[at] = party.after(self._nodes[at], answer)
        self._same()

    def _same(self) -> None:
        flags, held, _, _, inbox = self._shared
        real = self._real
        assert bool(flags & TABLE) == real.table
        assert bool(flags & GATED) == real.gated
        assert sum(1 << key for key in real.gate.holders) == held
        assert tuple(real.inbox) == inbox
