"""What of a simulated moment decides what can follow, so that histories which meet are one.

Left out is what only counts or dates: rows, numbers of tickets and pids, times of the past. What
is yet to come is kept as the seconds until then. Where a task stands is told by its frames.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from moorage.actors.desk import Desk
from moorage.actors.tickets import Ticket
from moorage.core.snapshot import state_to_data
from simulation.scheduler import SimFlag, SimQueue, Task

if TYPE_CHECKING:
    from simulation.small import SmallWorld

_COUNTS = frozenset(
    {
        *("seq", "at", "cause", "first_seq", "last_seq", "opened", "stale", "noted_at", "stages"),
        *("began_at", "reserved_at", "launched_at", "ready_at", "pid", "group", "session"),
        *("start_ticks", "nonce", "token", "argv", "log_file", "identity", "spec", "specs"),
        *("number", "until", "process", "plan", "look_at", "owner", "report", "log_id"),
    }
)
"""Fields that count or date, or that follow from others."""
FAR_S = 1_000.0
"""What is due later than this is not waited for."""


def fingerprint(world: SmallWorld) -> bytes:
    """Return eight bytes that are the same where the same can follow."""
    return _digest(tuple(_parts(world)))


def outline(world: SmallWorld) -> bytes:
    """Return the same for what is there, without who is on the way to do what."""
    return _digest((_state(world), _world(world), _callers(world)))


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).digest()


def _parts(world: SmallWorld) -> Iterator[object]:
    yield _state(world)
    yield _world(world)
    yield _callers(world)
    walk = _Walk(world)
    scheduler = world.scheduler
    yield sorted(each.name if isinstance(each, Task) else each.what for each in scheduler.ready)
    yield sorted(
        (round(timer.at - scheduler.now, 3), timer.what)
        for _, _, timer in scheduler._timers
        if not timer.off and timer.at - scheduler.now < FAR_S
    )
    process = world._process
    for task in process.tasks if process is not None else ():
        if not task.greenlet.dead:
            yield (task.name, task.ready, tuple(_stands(task.greenlet.gr_frame)))
    for actor in process.actors if process is not None else ():
        yield walk(actor.actor_inbox)
        logic: Any = getattr(actor, "_logic")  # noqa: B009  of either kind of actor
        if not hasattr(logic, "volatile"):
            yield walk(logic._runs)
            continue
        yield walk(logic.volatile)
        yield tuple(_gates(logic.hall, walk))
        yield walk(logic.desk)
        yield [entry.event.kind for entry in logic.ledger._backlog]


def _state(world: SmallWorld) -> object:
    runtime = world.opener.runtime if world.opener is not None else None
    if runtime is None:
        return [row.kind for row in world.world.storage.rows]
    data = state_to_data(runtime.registry.state)
    models = [_kept(model) for model in data["models"]]
    runs = [_kept(run) for run in data["runs"]]
    rest = ("open", "max_loaded", "names", "lru", "queue", "free", "held", "next_run")
    return (models, runs, [data[name] for name in rest])


def _kept(data: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [(name, value) for name, value in data.items() if name not in _COUNTS]


def _world(world: SmallWorld) -> object:
    servers = [
        (s.model, s.run, s.leader_alive, len(s.others), len(s.dying), s.bound, s.answers)
        for s in world.world.servers.values()
    ]
    return (servers, sorted(world.world.strangers), world.left())


def _callers(world: SmallWorld) -> object:
    return [
        (
            caller.acted,
            [(lease.run, lease.lost) for lease in caller.leases()],
            (caller.call.verb, caller.call.names, caller.call.heard) if caller.call else None,
        )
        for caller in world.small_callers
    ]


def _gates(hall: Any, walk: _Walk) -> Iterator[object]:
    """Yield each gate, with the order of use in place of its times."""
    order = sorted({gate.used_at for gate in hall._gates.values()})
    for run, gate in sorted(hall._gates.items()):
        owners = sorted(walk.who(owner) for owner in gate.owners())
        place = order.index(gate.used_at)
        yield (run, gate.closed, gate.dead, owners, place, hall.unproven(run))
    yield sorted((name, gate.run) for name, gate in hall.table.items())


def _stands(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """Yield where a task stands, innermost first; in a queue it waits for what is in there."""
    while frame is not None:
        if frame.f_code.co_name not in ("_switch", "block", "pause", "wait_for"):
            yield (frame.f_code.co_name, frame.f_lasti if frame.f_code.co_name != "get" else 0)
        frame = frame.f_back


class _Walk:
    """Makes plain data of what actors keep. What was met before is told by its place."""

    def __init__(self, world: SmallWorld) -> None:
        self._owners = {id(caller.owner): caller.number for caller in world.small_callers}
        self._tickets = {
            id(caller.ticket): caller.number for caller in world.small_callers if caller.ticket
        }
        self._met: dict[int, int] = {}

    def who(self, owner: object) -> int:
        """Return the number of a caller, 0 for nobody who is here."""
        return self._owners.get(id(owner), 0)

    def __call__(self, value: Any) -> object:
        match value:
            case None | bool() | int() | str() | bytes():
                return value
            case float() | Enum():
                return "time" if isinstance(value, float) else value.value
            case list() | tuple() | deque():
                return [self(item) for item in value]
            case dict():
                return [(self(key), self(item)) for key, item in value.items()]
            case set() | frozenset():
                return sorted(repr(self(item)) for item in value)
            case _:
                return self._once(value)

    def _once(self, value: Any) -> object:
        met = self._met.get(id(value))
        if met is not None:
            return ("met", met)
        self._met[id(value)] = len(self._met)
        return (type(value).__name__, *self._inside(value))

    def _inside(self, value: Any) -> Iterator[object]:
        match value:
            case Ticket():
                yield (self._tickets.get(id(value), 0), value.asked, value.answered, value.open)
            case SimFlag():
                yield value.is_set()
            case SimQueue():
                yield self(value.items)
            case FunctionType():
                yield value.__qualname__
                yield from (self(cell.cell_contents) for cell in value.__closure__ or ())
            case Desk():
                yield from self._waiting(value)
            case _ if is_dataclass(value):
                names = (each.name for each in fields(value) if each.name not in _COUNTS)
                yield from ((name, self(getattr(value, name))) for name in names)
            case _:  # an envelope, a worker; of anything else that it is there
                kept = (name for name in ("message", "_queue") if hasattr(value, name))
                yield from (self(getattr(value, name)) for name in kept)

    def _waiting(self, desk: Desk) -> Iterator[object]:
        for run, tickets in desk._by_run.items():
            yield (run, [self(ticket) for ticket in tickets.values()])
        for run, ends in desk._ends.items():
            yield (run, [self(ticket) for ticket in ends])
