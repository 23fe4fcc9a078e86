"""The judge of a simulated history: it shares no code with the core and believes only its rules.

`look` takes what there is to see after each step and raises `Wrong` for whatever must never be.
The rules are in `judging`; they are written from the design, each has a test that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulation.judging.book import HOLDING, Book
from simulation.judging.callers import Callers
from simulation.judging.eviction import Eviction
from simulation.judging.liveness import Liveness
from simulation.judging.published import differences
from simulation.judging.waiting import Waiting
from simulation.judging.world import World
from simulation.sight import SeenRow, Sight

FULL_EVERY = 64
"""Steps between two looks at everything, also where nothing seems to have changed."""


class Wrong(AssertionError):  # noqa: N818  it is said of a history
    """Something that must never be so: `sentences` say what, `step` when."""

    def __init__(self, sentences: list[str], step: int, what: str = "") -> None:
        super().__init__("\n".join([f"step {step} ({what}):", *(f"  {s}" for s in sentences)]))
        self.sentences = sentences
        self.step = step


class Judge:
    """Judges one history, step after step."""

    def __init__(self) -> None:
        self.book = Book()
        self.world = World(self.book)
        self.eviction = Eviction(self.book)
        self.callers = Callers(self.book, self.world)
        self.liveness = Liveness(self.book, self.world)
        self.waiting = Waiting(self.book, self.eviction)
        self._unwritten = 0
        self._compared: object = None

    def look(self, sight: Sight) -> None:
        """Judge one step; raise Wrong for whatever must never be."""
        wrong = list(self._step(sight))
        if wrong:
            raise Wrong(wrong, sight.step, sight.what)

    def _step(self, sight: Sight) -> Iterator[str]:
        self.book.step, self.book.now = sight.step, sight.now
        own = tuple(lease for lease in sight.leases if lease.owner in (0, sight.owner))
        if len(own) != len(sight.leases):
            sight = replace(sight, leases=own)
        for part in (self.world, self.eviction, self.callers, self.liveness):
            part.see(sight)
        delayed = self._unwritten > 0
        for row in sight.rows:
            yield from self._row(row, delayed=delayed)
        self._unwritten = sight.unwritten
        yield from self.world.check(sight)
        yield from self.eviction.check()
        yield from self.callers.check(sight)
        yield from self.liveness.check(sight)
        yield from self.waiting.check(sight)
        yield from self._published(sight)
        if sight.step % FULL_EVERY == 0:
            yield from self._whole()

    def _row(self, row: SeenRow, *, delayed: bool) -> Iterator[str]:
        self.callers.past.before(row)
        yield from self.eviction.before(row, delayed=delayed)
        self.book.fold(row)
        yield from self.book.wrong
        self.book.wrong.clear()
        yield from self.world.row(row)
        self.eviction.after(row, delayed)
        self.callers.after(row)
        yield from self.liveness.after(row)

    def _published(self, sight: Sight) -> Iterator[str]:
        """A state that was compared is compared again only now and then."""
        if sight.published is None or sight.unwritten:
            return
        full = sight.step % FULL_EVERY == 0
        if sight.rows or full or sight.published is not self._compared:
            self._compared = sight.published
            yield from differences(self.book, sight.published)

    def _whole(self) -> Iterator[str]:
        """The judge's own account must hold together, else its rules judge nothing."""
        book = self.book
        held = {port: run.run for run in book.runs.values() for port in run.ports}
        if held != book.held:
            yield f"ports {book.held} are held, but runs have {held}"
        missing = book.pool - book.free.keys() - book.held.keys()
        if missing or book.free.keys() & book.held.keys():
            yield f"ports {sorted(missing)} are lost, of {sorted(book.pool)}"
        for model in book.models.values():
            holding = [n for n in model.runs if book.runs[n].stage in HOLDING]
            if len(holding) > 1:
                yield f"runs {holding} of {model.name!r} hold room at once"
