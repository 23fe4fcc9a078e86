"""Nobody waits in the queue for what is there: a place that is free, or one that is only idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulation.judging.book import LENT, Book, Run
from simulation.judging.eviction import Eviction
from simulation.judging.world import World
from simulation.sight import Sight

NOTICED_STEPS = 10
"""What is there is given to who waits within so many steps ..."""
NOTICED_S = 1.4
"""... or so many seconds, whichever is later."""


class _Since(NamedTuple):
    what: tuple[int, int]
    """Who waits, and whose place he could have; 0 for a free one."""
    step: int
    now: float


class Waiting:
    """Judges the first of the queue, where places are counted and everybody asks for one model."""

    def __init__(self, book: Book, world: World, eviction: Eviction) -> None:
        self.book = book
        self.world = world
        self.eviction = eviction
        self._since: _Since | None = None

    def check(self, sight: Sight) -> Iterator[str]:
        """Say who waits for what has been there for long."""
        found = self._found(sight) if self.book.queue else None
        if found is None:
            self._since = None
        elif self._since is None or self._since.what != found:
            self._since = _Since(found, sight.step, sight.now)
        elif (
            sight.step > self._since.step + NOTICED_STEPS
            and sight.now > self._since.now + NOTICED_S
        ):
            number, idle = found
            there = f"run {idle} is idle" if idle else "a place is free"
            yield f"run {number} waits since {sight.now - self._since.now} s though {there}"

    def _found(self, sight: Sight) -> tuple[int, int] | None:
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
        old = run.ready_now is not None and sight.now >= run.ready_now + self.book.min_residency_s
        return (
            run.stage in LENT
            and model is not None
            and not model.pinned
            and old
            and not self.eviction.holders[run.run]
            and run.run not in self.world.silent
        )
