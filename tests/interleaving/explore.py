"""All orders of the steps of some parties: every state that can be reached, each visited once.

A state is where each party is (what its code will do from here on, under every answer) and what
they share. Two orders that lead to the same state go on as one, so a few hundred thousand states
stand for all of the histories, whose number is counted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from interleaving.steps import Access, Party

CLOSED, DEAD, GATED, TABLE, DECIDED, EMPTY, DRAINING, SHARED, WOKEN, FREED = (
    1 << bit for bit in range(10)
)
"""Of the gate and the hall: closed, dead, in the hall, in the table. Of the judge: the registry
decided that the run stops, it saw the gate closed and empty, the run drains, a lease was handed
over, the registry was woken by time, the run has left `ready`."""

Shared = tuple[int, int, int, int, tuple[str, ...]]
"""Flags, then bits of the keys that are held, used, and asked about while dead, then the inbox."""
Step = Callable[["Shared", Access, int], "tuple[Any, Shared] | None"]
State = tuple[Any, ...]
"""The nodes of the parties, then Shared."""
FRESH: Shared = (GATED | TABLE, 0, 0, 0, ())


class WrongError(AssertionError):
    """A claim does not hold; says after which steps."""


class _Broken(Exception):  # noqa: N818  becomes a WrongError with its history
    pass


@dataclass(slots=True)
class Found:
    """What an exploration came across."""

    states: int = 0
    steps: int = 0
    finals: set[State] = field(default_factory=set[State])
    histories: int = 0
    seconds: float = 0.0
    marks: set[str] = field(default_factory=set[str])

    def __str__(self) -> str:
        return (
            f"{self.states} states, {self.steps} steps, {len(self.finals)} ends, "
            f"{self.histories:.3g} histories in {self.seconds:.1f} s"
        )


def _keys(bits: int) -> tuple[int, ...]:
    return tuple(key for key in range(bits.bit_length()) if bits >> key & 1)


Outcome = tuple[Any, Shared]


def _read(flag: int) -> Step:
    return lambda shared, _access, _key: (bool(shared[0] & flag), shared)


def _write(flag: int, *, clears: int = 0) -> Step:
    def step(shared: Shared, access: Access, _key: int) -> Outcome:
        flags = shared[0] | flag if access[1] else shared[0] & ~(flag | clears)
        return None, (flags, *shared[1:])

    return step


def _any(shared: Shared, _access: Access, key: int) -> Outcome:
    flags, held, *rest = shared
    if key == 0 and flags & CLOSED and not held:  # it is the registry that looks
        flags |= EMPTY
    return bool(held), (flags, held, *rest)


def _pop(shared: Shared, access: Access, _key: int) -> Outcome:
    flags, held, *rest = shared
    bit = 1 << access[1]
    return bool(held & bit), (flags, held & ~bit, *rest)


def _add(shared: Shared, access: Access, _key: int) -> Outcome:
    flags, held, *rest = shared
    return None, (flags, held | 1 << access[1], *rest)


def _ungate(shared: Shared, _access: Access, _key: int) -> Outcome:
    return None, (shared[0] & ~GATED, *shared[1:])


def _send(shared: Shared, access: Access, _key: int) -> Outcome:
    return None, (*shared[:4], (*shared[4], access[1]))


def _receive(shared: Shared, _access: Access, _key: int) -> Outcome | None:
    inbox = shared[4]
    return (inbox[0], (*shared[:4], inbox[1:])) if inbox else None


def _await_shared(shared: Shared, _access: Access, _key: int) -> Outcome | None:
    return (None, shared) if shared[0] & SHARED else None


STEPS: dict[str, Step] = {
    "closed?": _read(CLOSED),
    "dead?": _read(DEAD),
    "table?": _read(TABLE),
    "gated?": _read(GATED),
    "closed=": _write(CLOSED, clears=EMPTY),
    "dead=": _write(DEAD),
    "table=": _write(TABLE),
    "ungate": _ungate,
    "any?": _any,
    "count?": lambda shared, _access, _key: (shared[1].bit_count(), shared),
    "who?": lambda shared, _access, _key: (_keys(shared[1]), shared),
    "has": lambda shared, access, _key: (bool(shared[1] >> access[1] & 1), shared),
    "pop": _pop,
    "add": _add,
    "send": _send,
    "receive": _receive,
    "shared?": _await_shared,
}
"""What an access is answered and what is shared then; None while it has to wait."""


def alone(shared: Shared, access: Access, key: int) -> bool:
    """Tell whether a step changes nothing and finds the same whenever it is made.

    No order of it and the steps of others makes a difference, so it is made at once.
    """
    flags, held, *_ = shared
    match access:
        case ("table?",):
            settled = key == 0  # nobody else writes it
        case ("table=", value):
            settled = value == bool(flags & TABLE)
        case ("closed=", True):
            settled = key == 0 and bool(flags & CLOSED)  # nobody else opens it
        case ("dead=", _) | ("dead?",):
            settled = bool(flags & DEAD)  # nobody takes that back
        case ("pop", number):
            settled = not held >> number & 1  # a key comes once
        case ("has", _):
            settled = not flags & SHARED  # nobody else takes this key out
        case _:
            settled = False
    return settled


def marked(shared: Shared, access: Access, key: int) -> Shared:  # noqa: C901  one branch a mark
    """Return what is shared after a mark; judge what it says."""
    flags, held, used, asked, inbox = shared
    bit = 1 << key
    match access[1:]:
        case ("using",):
            used |= bit
        case ("leaving",):
            used &= ~bit
        case ("asks",):
            asked = asked | bit if flags & DEAD else asked & ~bit
        case ("told", lost):
            if lost and not flags & DEAD:
                raise _Broken(f"user {key} lost the lease of a run that lives")
            if not lost and asked & bit:
                raise _Broken(f"user {key} is not told that the run is dead")
            asked &= ~bit
        case ("released", lost):
            if not lost:
                raise _Broken(f"user {key} released the lease and still has it")
        case ("shared",):
            flags |= SHARED
        case ("decided",):
            flags |= DECIDED
        case ("stage", stage):
            flags = flags | DRAINING if stage == "draining" else flags & ~DRAINING
            flags = flags & ~FREED if stage == "ready" else flags | FREED
        case _:
            raise _Broken(f"a mark nobody foresaw: {access}")
    return (flags, held, used, asked, inbox)


@dataclass(slots=True)
class _Visit:
    """A state on the way, its steps that were not gone yet, and how often an end was reached."""

    state: State
    steps: Iterator[tuple[int, Any, State]]
    histories: int = 0


class World:
    """Some parties and what they share. The registry is the party whose key is 0.

    Unless `merged`, steps that nobody can tell apart are steps still, and users that are alike
    are not taken for one another.
    """

    def __init__(
        self, *parties: Party, hint_may_be_lost: bool = False, merged: bool = True
    ) -> None:
        self._merged = merged
        self.parties = parties
        self._hint_may_be_lost = hint_may_be_lost
        self.marks: set[str] = set()
        self._moves: dict[tuple[int, int, Shared], tuple[tuple[Any, int, Shared], ...]] = {}
        kinds: dict[str, list[int]] = {}
        for at, party in enumerate(parties):
            kinds.setdefault(party.name, []).append(at)
        self._alike = [places for places in kinds.values() if len(places) > 1]

    def start(self) -> State:
        nodes: list[int] = []
        shared = FRESH
        for party in self.parties:
            node, shared = self._onward(party, party.start, shared)
            nodes.append(node)
        return (*nodes, *shared)

    def following(self, state: State) -> Iterator[tuple[int, Any, State]]:
        """Yield each step that is possible: whose, how it was answered, and the state after."""
        count = len(self.parties)
        shared: Shared = state[count:]  # type: ignore[assignment]
        for at in range(count):
            where = (at, state[at], shared)  # where the others are makes no difference to it
            moves = self._moves.get(where)
            if moves is None:
                moves = self._moves[where] = tuple(self._made(self.parties[at], state[at], shared))
            for answer, node, after in moves:
                yield at, answer, self._sorted((*state[:at], node, *state[at + 1 : count], *after))

    def _made(self, party: Party, node: int, shared: Shared) -> Iterator[tuple[Any, int, Shared]]:
        """Yield the steps of one party: how each is answered, its node and what is shared then."""
        access = party.accesses[node]
        if access is None:
            return
        if access[0] == "error":
            raise _Broken(f"{party.name}: {access[1]}")
        if access[0] == "choose":
            choices: Iterable[Any] = ((choice, shared) for choice in range(access[1]))
        else:
            outcome = STEPS[access[0]](shared, access, party.key)
            choices = (outcome,) if outcome is not None else ()
        for answer, after in choices:
            yield answer, *self._onward(party, party.after(node, answer), after)

    def _onward(self, party: Party, node: int, shared: Shared) -> tuple[int, Shared]:
        """Make the steps of a party that need no turn of their own."""
        while (access := party.accesses[node]) is not None:
            answer = None
            if access[0] == "mark":
                self.marks.add(str(access[1]))
                shared = marked(shared, access, party.key)
            elif access[0] != "point":
                if not self._merged or not alone(shared, access, party.key):
                    break
                answer, shared = STEPS[access[0]](shared, access, party.key)  # type: ignore[misc]
            node = party.after(node, answer)
        flags, _, used, _, _ = shared
        if used and flags & (DECIDED | EMPTY):
            what = "decided that it stops" if flags & DECIDED else "saw it closed and empty"
            raise _Broken(f"users {_keys(used)} hold a run of which the registry {what}")
        return node, shared

    def _sorted(self, state: State) -> State:
        """Return the state with users that are alike in a fixed order: who is who is all one.

        Not while the registry knows them by their keys.
        """
        if not self._merged or not self._alike or self.parties[0].knows_keys[state[0]]:
            return state
        count = len(self.parties)
        nodes = list(state[:count])
        flags, *bits, inbox = state[count:]
        for places in self._alike:
            keys = [self.parties[at].key for at in places]
            who = [
                (nodes[at], *((field >> key) & 1 for field in bits))
                for at, key in zip(places, keys, strict=True)
            ]
            ordered = sorted(who)
            if ordered != who:
                for at, key, (node, *mine) in zip(places, keys, ordered, strict=True):
                    nodes[at] = node
                    bits = [f & ~(1 << key) | b << key for f, b in zip(bits, mine, strict=True)]
        return (*nodes, flags, *bits, inbox)

    def woken(self, state: State) -> State | None:
        """Return an end after which time alone goes on, None when all is over."""
        count = len(self.parties)
        flags, held, used, asked, inbox = state[count:]
        if not self._hint_may_be_lost or flags & WOKEN or not flags & DRAINING:
            return None
        return (*state[:count], flags | WOKEN, held, used, asked, (*inbox, "wake"))

    def judge_end(self, state: State) -> None:
        """Raise when something is left to be done that nobody will do."""
        count = len(self.parties)
        flags, held, used, _, _ = state[count:]
        for party, node in zip(self.parties, state, strict=False):
            access = party.accesses[node]
            if access is not None and access[0] not in ("receive", "shared?"):
                raise _Broken(f"{party.name} waits for ever at {access}")
        if held or used:
            raise _Broken(f"all have left, and {_keys(held)} still hold it")
        if flags & DRAINING:
            raise _Broken("the last lease left a closed gate, and nobody told the registry")
        if flags & (DEAD | DECIDED) and (flags & TABLE or not flags & CLOSED):
            raise _Broken("the run has ended, and its gate is open")
        if not flags & (DEAD | FREED) and (flags & CLOSED or not flags & TABLE):
            raise _Broken("the run serves, and its gate is closed")

    def meaning(self, state: State) -> Shared:
        """Return what is shared in a state, without what the judge keeps."""
        flags, *rest = state[len(self.parties) :]
        return (flags & (CLOSED | DEAD | GATED | TABLE), *rest)  # type: ignore[return-value]

    def explore(self) -> Found:
        """Visit every state; raise WrongError with a history for the first claim that breaks."""
        found = Found()
        began = time.monotonic()
        path: list[_Visit] = []
        try:
            self._visit_all(path, found)
        except _Broken as broken:
            history = self.told([visit.state for visit in path])
            raise WrongError(f"{broken}\n{history}") from broken
        found.seconds = time.monotonic() - began
        found.marks = self.marks
        return found

    def _visit_all(self, path: list[_Visit], found: Found) -> None:
        """Go depth first; `path` is how the present state was come to."""
        histories: dict[State, int] = {}
        start = self.start()
        path.append(_Visit(start, self.following(start)))
        while path:
            visit = path[-1]
            step = next(visit.steps, None)
            if step is not None:
                found.steps += 1
                known = histories.get(step[2])
                if known is None:
                    path.append(_Visit(step[2], self.following(step[2])))
                else:
                    visit.histories += known
            elif visit.histories or self._is_over(visit, found):
                histories[visit.state] = visit.histories
                path.pop()
                (path[-1] if path else found).histories += visit.histories
        found.states = len(histories)

    def _is_over(self, visit: _Visit, found: Found) -> bool:
        """Judge a state that has no step, unless time goes on from it."""
        woken = self.woken(visit.state)
        if woken is not None:
            visit.steps = iter([(-1, None, woken)])
            return False
        self.judge_end(visit.state)
        found.finals.add(visit.state)
        visit.histories = 1
        return True

    def told(self, states: Sequence[State]) -> str:
        """Return a history as a line a step."""
        lines: list[str] = []
        for before, after in itertools.pairwise(states):
            for at, answer, reached in self.following(before):
                if reached == after:
                    access = self.parties[at].accesses[before[at]]
                    lines.append(f"{self.parties[at].name}: {access} -> {answer}")
                    break
            else:
                lines.append("time passes")
        return "\n".join(lines)
