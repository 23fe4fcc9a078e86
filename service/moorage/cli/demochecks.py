"""What must hold after a demo, judged by its log and by the processes of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from moorage.core import events as ev
from moorage.core.events import Entry
from moorage.core.invariants import fold, over_limits, violations
from moorage.core.state import State
from moorage.log.reader import LogReader
from moorage.world.processes import LocalProcesses

Check = tuple[bool, str]


def checked(folder: Path, after: int) -> list[Check]:
    """Judge the log from `after` on, and what it left; each check says what it found."""
    with LogReader(folder) as reader:
        path, log_id = reader.path, reader.log_id
        entries = tuple(reader.read())
    state, broken = State(), list[str]()
    for entry in entries:
        fold(state, entry, path)
        if entry.seq > after:
            broken += (f"event {entry.seq}: {problem}" for problem in _problems(state))
    recent = entries[after:]
    return [
        _sound(broken, len(recent)),
        _balanced(entries),
        _evicted(recent),
        _ports(state),
        _servers(log_id),
    ]


def _problems(state: State) -> Iterable[str]:
    yield from violations(state)
    if over_limits(state):
        yield "more is loaded than the limit allows"


def _sound(broken: list[str], events: int) -> Check:
    if broken:
        return False, broken[0]
    return True, f"the limit and every invariant held after each of {events} events"


def _balanced(entries: Iterable[Entry]) -> Check:
    """Judge the whole log: what an earlier demo reserved may have been released at this opening."""
    events = [entry.event for entry in entries]
    reserved = Counter(event.run for event in events if isinstance(event, ev.RunReserved))
    released = Counter(event.run for event in events if isinstance(event, ev.RunReleased))
    once = reserved == released and set(released.values()) == {1}
    word = "each released it once" if once else f"{released.total()} times one was released"
    return once, f"{len(reserved)} runs reserved a port, {word}"


def _evicted(entries: Iterable[Entry]) -> Check:
    count = sum(isinstance(entry.event, ev.RunEvicting) for entry in entries)
    return count > 0, f"{count} eviction{'' if count == 1 else 's'}, with the reason in the log"


def _ports(state: State) -> Check:
    held, free = len(state.held), len(state.free)
    return not held and not state.runs, f"{held} ports are held, {free} are free"


def _servers(log_id: str) -> Check:
    with closing(LocalProcesses()) as processes:
        left = processes.find(log_id)
    named = f" ({', '.join(str(found.pid) for found in left)})" if left else ""
    return not left, f"{len(left)} servers are left{named}"
