"""Nobody waits in the queue for what is there, and no more wait than may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulation.judging.book import LENT, Book, Run
from simulation.judging.eviction import Eviction
from simulation.judging.liveness import WANTS
from simulation.sight import Sight

NOTICED_STEPS = 10
"""What is there is given to who waits within so many steps ..."""
NOTICED_S = 4.0
"""... or so many seconds, whichever is later: a slow disk may keep the registry twice for one."""
PROVEN_S = 45.0
"""What was adopted as ready has answered by then, or it goes."""


class _Since(NamedTuple):
    what: object
    step: int
    now: float


class _Lasting:
    """Tells what is so for longer than anybody needs to notice it."""

    def __init__(self) -> None:
        self._since: _Since | None = None

    def longer(self, what: object, sight: Sight) -> float:
        """Return for how many seconds the same thing was so, 0 while it may be unnoticed."""
        since = self._since
        if what is None or since is None or since.what != what:
            self._since = None if what is None else _Since(what, sight.step, sight.now)
            return 0.0
        lasts = sight.now - since.now
        return lasts if sight.step > since.step + NOTICED_STEPS and lasts > NOTICED_S else 0.0


class Waiting:
    """Judges the first of the queue, where places are counted and everybody asks for one model."""

    def __init__(self, book: Book, eviction: Eviction) -> None:
        self.book = book
        self.eviction = eviction
        self._forgotten = _Lasting()
        self._crowded = _Lasting()
        self._owner = 0
        self._opened = _Since(None, 0, 0.0)
        """The last step before the owner was there: the age of what it adopted begins anew."""

    def check(self, sight: Sight) -> Iterator[str]:
        """Say who waits for what has been there for long, and whether too many wait."""
        if sight.owner != self._owner or not sight.open:
            self._owner, self._opened = sight.owner, _Since(None, sight.step, sight.now)
        found = self._found(sight) if self.book.queue else None
        if seconds := self._forgotten.longer(found, sight):
            there = f"run {found[1]} is idle" if found and found[1] else "a place is free"
            yield f"run {found and found[0]} waits since {seconds} s though {there}"
        waiting = sum(call.heard and call.verb in WANTS for call in sight.calls)
        if self._crowded.longer(True if waiting > sight.max_waiting else None, sight):
            yield f"{waiting} callers wait, of whom {sight.max_waiting} may"

    def _found(self, sight: Sight) -> tuple[int, int] | None:
        """Return who waits, and the run whose place he could have; 0 for a free one."""
        book = self.book
        works = sight.open and sight.log_works and not sight.dead and not sight.unwritten
        joint = any(call.verb in ("lease_all", "close") for call in sight.calls)
        if not works or joint or book.memory_limit is not None:
            return None
        stages = [run.stage for run in book.holding()]
        if {"stopping", "stop_failed"} & {*stages} or len(stages) > book.max_loaded:
            return None
        first = self._first()
        if first is None or book.models[first.model].spec["ports"] > self._ports(sight):
            return None
        if len(stages) < book.max_loaded:
            return first.run, 0
        return next(((first.run, n) for n in book.lru if self._idle(book.runs[n], sight)), None)

    def _first(self) -> Run | None:
        """Return the first of the queue that waits for no other run of its model."""
        for number in self.book.queue:
            run = self.book.runs[number]
            model = self.book.models.get(run.model)
            if run.asked and model is not None and model.runs[:1] == [number]:
                return run
        return None

    def _ports(self, sight: Sight) -> int:
        return sum(port not in sight.strangers for port in self.book.free)

    def _idle(self, run: Run, sight: Sight) -> bool:
        model = self.book.models.get(run.model)
        age = sight.now - max(run.ready_now or 0.0, self._opened.now)
        old = run.was_ready and age >= self.book.min_residency_s
        proven = run.step > self._opened.step or age >= PROVEN_S
        return (
            run.stage in LENT
            and model is not None
            and not model.pinned
            and old
            and proven
            and not self.eviction.holders[run.run]
        )
