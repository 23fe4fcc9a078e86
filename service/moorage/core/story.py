"""Which entries explain another one: its run's past, what led to it, and what gave way for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from moorage.core import events as ev
from moorage.core.draft import seconds_between
from moorage.core.lifecycle import LifecycleError, Stage, step

Role = Literal["subject", "history", "cause", "displaced"]


class Look(Protocol):
    """Finds entries of one log."""

    def entry(self, seq: int) -> ev.Entry | None:
        """Return an entry, None when there is none."""
        ...

    def run(self, number: int) -> Sequence[ev.Entry]:
        """Return all entries of a run, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """An entry of a story. `history` is of the subject's run, `displaced` of one evicted for it.

    `after_s` are the seconds since the entry before it of the same run, None for the first.
    """

    entry: ev.Entry
    role: Role
    after_s: float | None


def story(subject: ev.Entry, look: Look) -> tuple[Part, ...]:
    """Return all that explains an entry, in the order it happened, the entry itself last."""
    found: dict[int, tuple[ev.Entry, Role]] = {subject.seq: (subject, "subject")}
    for entry in _history(subject, look):
        found.setdefault(entry.seq, (entry, "history"))
    for entry, _ in tuple(found.values()):
        for cause in _causes(entry, look, found):
            found[cause.seq] = (cause, "cause")
        for given in _given_way(entry, look):
            found.setdefault(given.seq, (given, "displaced"))
    ordered = [found[seq] for seq in sorted(found)]
    return tuple(Part(entry, role, _after_s(entry, look)) for entry, role in ordered)


def stages(entries: Sequence[ev.Entry]) -> tuple[tuple[Stage, float], ...]:
    """Return how long a run was in each stage it has left, given all of its entries, in order."""
    spent: dict[Stage, float] = {}
    stage: Stage | None = None
    since = ""
    for entry in entries:
        try:
            following = step(stage, entry.event.kind)
        except LifecycleError:
            continue  # what only mentions the run: a port, a backoff
        if stage is not None:
            spent[stage] = spent.get(stage, 0.0) + seconds_between(since, entry.at)
        stage, since = following, entry.at
    return tuple(spent.items())


def run_of(event: ev.Event) -> int | None:
    """Return the number of the run an event is about."""
    number: int | None = getattr(event, "run", None)
    return number


def _history(subject: ev.Entry, look: Look) -> Iterator[ev.Entry]:
    number = run_of(subject.event)
    if number is not None:
        yield from (entry for entry in look.run(number) if entry.seq < subject.seq)


def _causes(
    entry: ev.Entry, look: Look, known: dict[int, tuple[ev.Entry, Role]]
) -> Iterator[ev.Entry]:
    seen = entry
    while seen.cause is not None and seen.cause not in known and seen.cause < seen.seq:
        cause = look.entry(seen.cause)
        if cause is None:
            return
        yield cause
        seen = cause


def _given_way(entry: ev.Entry, look: Look) -> Iterator[ev.Entry]:
    """Yield how the runs that a reservation displaced went, from their eviction to their end."""
    if not isinstance(entry.event, ev.RunReserved):
        return
    for number in entry.event.displaced:
        past = [e for e in look.run(number) if e.seq < entry.seq]
        chosen = [e.seq for e in past if isinstance(e.event, ev.RunEvicting)]
        yield from (e for e in past if chosen and e.seq >= chosen[-1])


def _after_s(entry: ev.Entry, look: Look) -> float | None:
    number = run_of(entry.event)
    before = [e.at for e in look.run(number) if e.seq < entry.seq] if number is not None else ()
    return seconds_between(before[-1], entry.at) if before else None
