"""Who shares a gate: users, who sees a death, who leaves, and the registry. All run the real code.

Beside shared accesses they make marks, steps of no length that tell the judge what is meant:
`using` from the moment a lease is granted until `leaving`, `asks` and `told` around a question
whether it is lost, `decided` when the registry has it in its log that a run that lives is to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import weakref
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import CellType, FrameType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from interleaving.steps import Script, WatchedHall
from moorage import ModelService, ModelSpec
from moorage.actors import gate as gate_module
from moorage.actors import messages as msg
from moorage.actors.desk import Desk
from moorage.actors.gate import Lease
from moorage.actors.hall import Hall
from moorage.actors.ledger import Ledger
from moorage.actors.model import ModelLogic
from moorage.actors.registry import Registry
from moorage.actors.tickets import Ticket
from moorage.aio import AsyncFace
from moorage.core import events as ev
from moorage.core.lifecycle import Stage
from moorage.core.snapshot import state_to_data
from moorage.core.state import State
from moorage.protocols import ExitStatus, Identity, LaunchPlan, Readiness
from moorage.testing import FakeClock, FakePorts, FakeProcesses, MemoryLog
from moorage.testing.log import MemoryStorage
from support import collector

# --- users ---


class SlowWay(Exception):  # noqa: N818  no error: where the warm path ends
    """The gate was closed: the request goes to the registry."""


def _face(script: Script, key: int) -> Any:
    def slow(*_: Any, **__: Any) -> Any:
        raise SlowWay

    hall = WatchedHall(script, lambda _run: script.ask("send", "emptied"), key=key)
    return SimpleNamespace(_hall=hall, _want=slow, _call=slow, _acall=slow)


def blocking(face: Any) -> Lease:
    """Lease as a thread does."""
    return ModelService.lease(face, "a")


def awaiting(face: Any) -> Lease:
    """Lease as a task does: the warm path awaits nothing."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(AsyncFace._alease(face, "a", 1.0))
    finally:
        loop.close()


Take = Callable[[Any], Lease]


def _use(script: Script, lease: Lease) -> None:
    script.ask("mark", "using")
    script.ask("mark", "asks")
    lost = lease.lost
    script.ask("mark", "told", lost)


def _using(
    key: int, leave: Callable[[Script, Lease], None], take: Take = blocking
) -> Callable[[Script], None]:
    """Lease, use, leave as told, and lose the lease."""

    def work(script: Script) -> None:
        face = _face(script, key)
        script.armed = True
        try:
            lease = take(face)
        except SlowWay:
            return
        _use(script, lease)
        script.ask("mark", "leaving")
        leave(script, lease)
        del lease

    return work


def user(key: int, take: Take = blocking) -> Callable[[Script], None]:
    """Lease, use and release."""
    return _using(key, lambda _script, lease: lease.release(), take)


def forgetful(key: int) -> Callable[[Script], None]:
    """Lose the lease instead: its finaliser leaves, at any time later and in any thread."""
    return _using(key, lambda _script, _lease: None)


def repeating(key: int) -> Callable[[Script], None]:
    """Release twice, and lose it."""

    def leave(script: Script, lease: Lease) -> None:
        lease.release()
        lease.release()
        script.ask("mark", "released", lease.lost)

    return _using(key, leave)


def sharing(key: int) -> Callable[[Script], None]:
    """Hand the lease to another thread, `helper`, and release it here, too."""

    def work(script: Script) -> None:
        face = _face(script, key)
        script.armed = True
        try:
            lease = blocking(face)
        except SlowWay:
            return
        script.ask("mark", "using")
        script.ask("mark", "leaving")  # the other may release it from here on
        script.ask("mark", "shared")
        lease.release()

    return work


def helper(key: int) -> Callable[[Script], None]:
    """Release the lease that `sharing` handed over."""

    def work(script: Script) -> None:
        lease = Lease(_face(script, key)._hall.gate, None)
        script.armed = True
        script.ask("shared?")
        lease.release()

    return work


# --- interrupts ---

_OURS = frozenset(
    code.co_filename
    for code in (
        ModelService.lease.__code__,
        Lease.release.__code__,
        gate_module.Gate.owners.__code__,
    )
)


class _Interrupt:
    """Raises KeyboardInterrupt before one instruction of the package, counted from now."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __enter__(self) -> None:
        self._collector_off = collector.off()  # finalisers of what earlier runs left would count
        self._collector_off.__enter__()
        self._before = sys.gettrace()  # a debugger's, or that of who measures coverage
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._collector_off.__exit__(None, None, None)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "call":
            if frame.f_code.co_filename not in _OURS:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return self._trace


INSTRUCTIONS = 200
"""More than a lease, a question and a release have: the last ones do not interrupt."""


def interrupted(key: int) -> Callable[[Script], None]:
    """Be interrupted before any one instruction of leasing, using and releasing."""

    def work(script: Script) -> None:
        face = _face(script, key)
        with contextlib.suppress(SlowWay):
            blocking(face)  # a thread's first lease has more instructions than others
        script.armed = True
        at = script.ask("choose", INSTRUCTIONS)
        lease = None
        try:
            with _Interrupt(at):
                lease = blocking(face)
                _use(script, lease)
                script.ask("mark", "leaving")
                lease.release()
        except KeyboardInterrupt:
            if at == INSTRUCTIONS - 1:
                raise AssertionError("there are more instructions than foreseen") from None
        except SlowWay:
            return
        script.ask("mark", "leaving")
        del lease

    return work


# --- death, and who leaves ---


def death(script: Script) -> None:
    """See the run's leader end, as the exit watcher's thread does."""
    hall = WatchedHall(script, lambda _run: None, foreign=True)
    world = SimpleNamespace(died=hall.died, processes=None)
    run = SimpleNamespace(
        number=1, cancelled=SimpleNamespace(set=lambda: None), log_file="", unknown_secrets=False
    )
    logic: Any = SimpleNamespace(_world=world, _tell=lambda _message: script.ask("send", "exit"))
    script.armed = True
    ModelLogic._exited(logic, run, ExitStatus(signal=9))  # type: ignore[arg-type]


def leaver(script: Script) -> None:
    """Wait no more for the model that room was to be made for."""
    script.armed = True
    script.ask("send", "left")


# --- the registry ---


class _Alarm:
    def set(self, at: float | None) -> None:
        pass

    def close(self) -> None:
        pass


@cache
def _prepared(ttl_s: float | None) -> tuple[State, tuple[Any, ...]]:
    """Return a state in which `a` is ready as run 1, with room for it alone, and its rows."""
    log = MemoryLog()
    registry = _registry(log, Hall(lambda: 0.0, lambda _run: None), lambda _entries: None)
    specs = tuple(
        (ModelSpec(name=name, backend="fake", ttl_s=ttl_s if name == "a" else None), "")
        for name in "ab"
    )
    opened = ev.ServiceOpened(
        program="1", host="h", boot_id="boot", pid=1, ports=((18000, 18009),), max_loaded=1,
        memory_limit=None, min_residency_s=0.0,
    )  # fmt: skip
    created = ev.LogCreated(log_id=log.log_id, program="1")
    plan = LaunchPlan(argv=("server",), health_path="/", stop_signals=())
    leader = Identity(pid=10, group=10, session=10, start_ticks=1, boot_id="boot")
    for message in (
        msg.Open(Ticket("open"), opened, created, (), frozenset()),
        msg.Define(Ticket("define"), specs),
        msg.Want(Ticket("start", names=("a",))),
        msg.PrepareDone(1, plan, plan.argv, "log"),
        msg.LaunchDone(1, leader),
        msg.ReadyDone(1, Readiness("ready")),
    ):
        registry.handle(message)
    if registry.state.runs[1].stage is not Stage.READY:
        raise AssertionError(registry.state.runs)
    return registry.state, log.rows


def _registry(
    log: MemoryLog,
    hall: Hall,
    on_entries: Callable[[Sequence[ev.Entry]], None],
    state: State | None = None,
) -> Registry:
    clock = FakeClock()

    class Loaded(Ledger):
        def _load(self) -> State:
            return state if state is not None else super()._load()

    return Registry(
        ledger=Loaded(log, clock, on_entries),
        desk=Desk(10),
        hall=hall,
        ports=FakePorts(FakeProcesses()),
        clock=clock,
        alarm=_Alarm(),
        tell_model=lambda _model, _message: None,
        end_model=lambda _model: None,
        reap=lambda _found: None,
        new_nonce=lambda: "nonce",
        later=lambda _message: None,
    )


_PACKAGE = str(Path(gate_module.__file__).parent.parent)
_REBUILT = {"settle": ("draft", "outcome", "usage")}
"""Locals that are left from the look before and given anew by the next."""
_KNOWN = (Registry, Script, Hall, Desk, State, FakeClock, MemoryLog)
"""What `whereabouts` tells of by their fields, or what never changes."""


def whereabouts(one: Registry, ticket: Ticket[Any]) -> tuple[Any, bool]:
    """Return all that the registry's next steps depend on: its state, and where its code is.

    Beside it, whether that names keys of holders.
    """
    frames: list[Any] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_PACKAGE):
            rebuilt = _REBUILT.get(code.co_name, ())
            values = {n: _plain(v) for n, v in frame.f_locals.items() if n not in rebuilt}
            frames.append((code.co_qualname, frame.f_lasti, tuple(sorted(values.items()))))
        frame = frame.f_back
    desk = one.desk
    fields = (
        *(ticket.open, one.volatile, one.look_at, one.hall._used_at, one.hall._unproven),
        *(desk._by_run, desk._ends, desk._open, desk._deadlines, desk.joint_left),
        *(one.ledger._backlog, one.clock.monotonic(), state_to_data(one.state)),
    )
    return (tuple(frames), _plain(fields)), bool(one.volatile.spared)


def _plain(value: Any) -> Any:  # noqa: PLR0911
    """Return a value as something that can be compared and hashed."""
    if value is None or isinstance(value, bool | int | float | str | StrEnum):
        return value
    if isinstance(value, dict):
        return tuple((_plain(k), _plain(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_plain, value))
    if isinstance(value, Ticket):
        return ("ticket", value.number, value.open)
    if isinstance(value, weakref.ref):
        return _plain(value())
    if isinstance(value, type | FunctionType | MethodType | CellType):
        return getattr(value, "__qualname__", "cell")
    if isinstance(value, _KNOWN):
        return type(value).__name__
    if dataclasses.is_dataclass(value):
        named = [(f.name, _plain(getattr(value, f.name))) for f in dataclasses.fields(value)]
        return (type(value).__name__, *named)
    raise TypeError(f"{type(value)} is not known to be told in full")


SCENARIOS = ("evict", "stop", "remove", "expire", "close")
TTL_S = 0.001


def registry(scenario: str) -> Callable[[Script], None]:
    """Be asked for what ends or drains run 1, then hear what gates and others tell."""
    state, rows = _prepared(TTL_S if scenario == "expire" else None)

    def work(script: Script) -> None:
        lives = True

        def on_entries(entries: Sequence[ev.Entry]) -> None:
            nonlocal lives
            for entry in entries:
                mine = getattr(entry.event, "run", None) == 1
                lives = lives and not (mine and isinstance(entry.event, ev.RunExited))
                if mine and lives and isinstance(entry.event, ev.RunStopping):
                    script.ask("mark", "decided")

        hall = WatchedHall(script, lambda _run: None)
        hall.observing = lambda: script.point(lambda: whereabouts(one, ticket))
        log = MemoryLog(storage=MemoryStorage(list(rows)))
        one = _registry(log, hall, on_entries, state)
        ticket: Ticket[Any] = Ticket("asked", names=("b",), owner="asker", leases=True)
        ticket.number = 1
        one.desk.enter(ticket)
        hall.settle(state)
        script.armed = True
        _handle(script, one, _asked(scenario, ticket))
        while True:
            script.point(lambda: whereabouts(one, ticket))
            _handle(script, one, _heard(script.ask("receive"), ticket))

    return work


def _asked(scenario: str, ticket: Ticket[Any]) -> msg.ToRegistry:
    match scenario:
        case "evict":
            return msg.Want(ticket)
        case "stop":
            return msg.Stop(ticket, "a", force=False, hold=False)
        case "remove":
            return msg.Remove(ticket, "a", force=False)
        case "expire":
            return msg.Wake()
        case _:
            return msg.Close(ticket, keep=False, force_at=1e9)


def _heard(what: str, ticket: Ticket[Any]) -> msg.ToRegistry:
    match what:
        case "emptied":
            return msg.Emptied(1)
        case "exit":
            return msg.ExitSeen(1, ExitStatus(signal=9), ())
        case "wake":
            return msg.Wake()
        case _:
            ticket.abandon()
            return msg.Left(ticket)


def _handle(script: Script, one: Registry, message: msg.ToRegistry) -> None:
    if isinstance(message, msg.Wake):
        one.clock.advance(1.0)  # type: ignore[attr-defined]
    one.handle(message)
    run = one.state.runs.get(1)
    script.ask("mark", "stage", str(run.stage) if run is not None else "ended")
