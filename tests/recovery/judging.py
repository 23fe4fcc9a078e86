"""What an owner that was killed left, and whether its heir does with it what is promised."""

# The whole of /proc is read again and again; through a Path that takes up to twice as long.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moorage import ModelService, NotALogError, Parts
from moorage.core.events import Entry, Event
from moorage.core.fold import replay
from moorage.core.lifecycle import HOLDING, TABLE, Stage
from moorage.core.state import Run, State
from moorage.hub import HubAccess, HubFetcher
from moorage.log.reader import LogReader
from recovery.dying import NOWHERE, Life, Point, Told, Trigger, die, tell
from recovery.leaving import alive, killed
from recovery.owner import answered_by
from support.services import check_log, settle, state_of

PASSING = {
    *(Stage.FETCHING, Stage.QUEUED, Stage.RESERVED, Stage.LAUNCHING, Stage.LOADING),
    *(Stage.DRAINING, Stage.STOPPING),
}
FOR_ROOM = {"room", "memory", "limits", "idle"}
"""Reasons of drains that end with the owner; all others are wanted by somebody."""


@dataclass(frozen=True)
class Place:
    """Where owners come one after another."""

    folder: Path
    pool: range
    access: HubAccess

    def live(
        self, live: Callable[[Life], None], point: Point = NOWHERE, after_s: float | None = None
    ) -> Told:
        """Live a life up to a point, for some time, or to its end."""

        def work() -> None:
            trigger = Trigger(point)
            live(Life(self.folder, self.pool, trigger, self.access))
            tell("finished", trigger.seen)
            die()

        return Told.read(killed(work, after_s=after_s))

    def read(self) -> list[Entry]:
        """Return what is durable; nothing where an owner was killed while it made the log."""
        if not (self.folder / "moorage.db").exists():
            return []
        try:
            with LogReader(self.folder) as reader:
                return list(reader.read())
        except NotALogError:
            with sqlite3.connect(self.folder / "moorage.db") as database:
                assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
            database.close()
            return []


def found_of(log_id: str) -> list[tuple[int, int]]:
    """Return run and pid of every process with a token of this log; a zombie shows none."""
    mark = f"MOORAGE_RUN={log_id}:".encode()
    found: list[tuple[int, int]] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")
        except OSError:
            continue
        runs = (int(each.split(b":")[1]) for each in environ if each.startswith(mark))
        found += ((run, int(pid)) for run in runs)
    return found


@dataclass(frozen=True)
class Left:
    """What there was when an owner had been killed."""

    state: State
    entries: list[Entry]
    living: set[int]
    """Open runs whose leader lived."""

    @classmethod
    def look(cls, place: Place) -> Left:
        entries = place.read()
        state = State()
        replay(entries, state)
        living = {run.run for run in state.runs.values() if run.pid and alive(run.pid)}
        left = cls(state, entries, living)
        left.check_world()
        return left

    def check_world(self) -> None:
        """At no time are there two runs of one model."""
        models = {getattr(e.event, "run", 0): getattr(e.event, "model", "") for e in self.entries}
        runs = {run for run, _ in found_of(self.state.log_id)}
        assert len({models[run] for run in runs}) == len(runs), runs

    def events(self, kind: str) -> list[Event]:
        return [entry.event for entry in self.entries if entry.event.kind == kind]

    def holds(self, told: Told, *, limits: bool) -> None:
        """Nothing that was acknowledged is missing."""
        pids = {(e.model, e.run): e.pid for e in self.events("run.launched")}
        granted = {(e.model, e.run, pids[e.model, e.run]) for e in self.events("run.ready")}
        assert told.granted <= granted
        ended = {e.run for e in (*self.events("run.released"), *self.events("run.abandoned"))}
        assert told.ended <= ended
        assert all(Path(path).exists() for path in told.archived)
        for key, values in told.promised.items():
            if key == "max_loaded" and not limits:
                continue
            if not key.startswith("spec ") and self.was_removed(key, told):
                continue
            assert value_of(self.state, *key.split()) in values, (key, values)

    def was_removed(self, key: str, told: Told) -> bool:
        """Tell whether what was promised of a model went with the model."""
        name = key.rsplit(maxsplit=1)[-1]
        return name not in self.state.models and None in told.promised.get(f"spec {name}", ())


def value_of(state: State, what: str, name: str = "") -> object:
    """Return what a state says about that which an owner was promised."""
    model = state.models.get(name)
    match what:
        case "spec":
            return model and model.spec_hash
        case "pinned":
            return bool(model and model.pinned)
        case "held":
            return bool(model and model.status == "held")
        case _:
            return state.max_loaded


def at_rest(service: ModelService) -> bool:
    """Tell whether nothing goes on any more: stops are over, survivors answer, strays are gone."""
    state = state_of(service)
    table = service._hall.table
    return (
        not any(run.stage in PASSING for run in state.runs.values())
        and all(table.get(run.model) for run in state.in_stage(Stage.READY))
        and all(run.exited or not run.pid for run in state.in_stage(Stage.STOP_FAILED))
        and all(model.run for model in state.models.values() if model.spec.restart == "always")
        and {run for run, _ in found_of(state.log_id)} <= {run.run for run in state.holding()}
    )


def recovers(life: Life) -> None:
    """Do what every owner does that finds the servers of another one."""
    life.arm()
    life.open(max_loaded=2)
    settle(lambda: at_rest(life.service))


def expected(run: Run, *, lived: bool) -> tuple[str, ...]:
    """Return what the recovery of a run begins with; see `said`."""
    wanted = run.stage in (Stage.STOPPING, Stage.STOP_FAILED) or (
        run.stage is Stage.DRAINING and run.reason not in FOR_ROOM
    )
    if run.stage in (Stage.FETCHING, Stage.QUEUED):
        return ("run.abandoned lost",)
    if run.stage is Stage.RESERVED:
        return ("run.released lost",)
    if wanted:
        return (f"run.stopping {run.reason}",)
    if run.stage is Stage.LAUNCHING or not lived:
        return ("run.stopping recovery",)
    if run.stage is Stage.DRAINING:
        return ("run.reopened its owner ended", f"run.adopted {Stage.READY}")
    return (f"run.adopted {run.stage}",)


def said(event: Event) -> str:
    facts = (getattr(event, name, "") for name in ("outcome", "reason", "state"))
    return f"{event.kind} {next(filter(None, facts), '')}"


def may_end_alone(run: Run, left: Left, told: Told) -> bool:
    """Tell whether its leader may have ended since it was looked at: nobody signals it."""
    args = left.state.models[run.model].spec.args
    return run.run in told.mortal or bool(told.strangers or {"--exit", "--die-after"} & {*args})


def check_recovery(left: Left, entries: list[Entry], told: Told) -> None:
    """Every run that was open came to what its stage and the life of its leader ask for."""
    for run in left.state.runs.values():
        events = [e.event for e in entries if getattr(e.event, "run", None) == run.run]
        mine = tuple(map(said, events))
        lived = run.run in left.living
        starts = {expected(run, lived=lived)}
        if may_end_alone(run, left, told):
            starts.add(expected(run, lived=False))
        assert any(mine[: len(start)] == start for start in starts), (run, mine)
        if mine[0] == "run.stopping recovery":
            assert mine[-1] in ("run.released lost", "run.stop_failed "), (run, mine)


def check_survivors(service: ModelService, left: Left) -> None:
    """Who was ready and is not gone is lent with its pid, and answers for itself."""
    for run in tuple(state_of(service).in_stage(Stage.READY)):
        with service.lease(run.model) as lease:
            assert lease.run == run.run
            assert service.model(run.model).pid == run.pid
            assert answered_by(lease.port) == run.model
        was = left.state.runs.get(run.run)
        assert was is None or was.pid in (None, run.pid)


def check_stuck(service: ModelService, told: Told) -> None:
    """What cannot be proved ours is shown and not signalled; once it has ended, it is released."""
    quarantined = [run.left_pids for run in state_of(service).in_stage(Stage.STOP_FAILED)]
    assert quarantined == [(pid,) for pid in told.stuck if alive(pid)]
    for pid in told.stuck:
        os.kill(pid, signal.SIGKILL)
    settle(lambda: not any(state_of(service).in_stage(Stage.STOP_FAILED)))


def check_use(service: ModelService) -> None:
    """Every model can be had."""
    for model in tuple(state_of(service).models.values()):
        service.unpin(model.name)
        service.reset(model.name)
        with service.lease(model.name, 20) as lease:
            assert answered_by(lease.port) == model.name


def take_over(place: Place, told: Told, *, usable: bool = True, limits: bool = True) -> None:
    """Open what a killed owner left and hold it to everything that is promised.

    `usable` models can be started; `limits` are those that the owner was told.
    """
    left = Left.look(place)
    left.holds(told, limits=limits)
    parts = Parts(fetcher=HubFetcher(place.access))
    with ModelService.open(place.folder, ports=place.pool, max_loaded=2, parts=parts) as service:
        settle(lambda: at_rest(service))
        now = Left.look(place)
        now.holds(told, limits=False)
        check_recovery(left, now.entries[len(left.entries) :], told)
        assert {run for run, _ in found_of(now.state.log_id)} <= {
            run.run for run in now.state.runs.values() if run.stage in HOLDING
        }
        check_survivors(service, left)
        check_stuck(service, told)
        assert [f for f in service.audit() if f.kind != "stranger-on-port"] == []
        if usable:
            check_use(service)
    check_end(place, told)


def check_end(place: Place, told: Told) -> None:
    """Closed, it leaves nothing: no port, no process, but whom it has nothing to do with."""
    check_log(place.folder)
    end = Left.look(place)
    assert not end.state.runs
    assert not end.state.held
    assert found_of(end.state.log_id) == []
    for pid in told.strangers:
        assert alive(pid), "a stranger was signalled"
        os.kill(pid, signal.SIGKILL)


def steps(place: Place, told: Told) -> set[tuple[Stage | None, str]]:
    """Return the steps of the lifecycle that were appended while the life was armed."""
    entries, state = place.read(), State()
    armed = {seq for first, last in told.appends for seq in range(first, last + 1)}
    taken: set[tuple[Stage | None, str]] = set()
    for entry in entries:
        run = state.runs.get(getattr(entry.event, "run", 0))
        if entry.seq in armed and entry.event.kind in {kind for _, kind in TABLE}:
            taken.add((run.stage if run else None, entry.event.kind))
        replay([entry], state)
    return taken
