"""An owner that kills itself at a point of its life, and tells until then what it was promised.

Lines on its standard output, each a JSON list: see `Told`, which reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from moorage import Lease, LoadError, ModelService, ModelSpec, Parts, WaitTimeoutError
from moorage.hub import HubAccess, HubFetcher
from moorage.log.sqlite import SqliteLog
from moorage.world.processes import LocalProcesses
from support.servers import misbehave
from support.services import Outcome, Seen

BEFORE_AND_AFTER = ("before", "after")
KINDS = {
    "append": BEFORE_AND_AFTER,
    "head": ("before",),  # after it is after the append
    "archive": ("before",),  # steps of it, one after another
    "launch": BEFORE_AND_AFTER,
    "watch": BEFORE_AND_AFTER,
    "stop": BEFORE_AND_AFTER,
    "fetch": BEFORE_AND_AFTER,
    "progress": ("before",),
}
"""What an owner can be killed before and after."""


@dataclass(frozen=True)
class Point:
    """Before or after the Nth act of a kind, from when the life is armed."""

    kind: str = ""
    number: int = 0
    when: str = "before"

    def __str__(self) -> str:
        return f"{self.kind}-{self.number}-{self.when}"


NOWHERE = Point()
TOO_EARLY_S = 0.05
"""Before an act there is time for whoever was answered already to say so."""


def tell(*line: object) -> None:
    os.write(1, f"{json.dumps(line)}\n".encode())


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL was survived")


def unpromised(key: str) -> bool | None:
    """Return what is so of that which nobody has asked for: no spec, no pin, no hold."""
    return None if key.startswith("spec ") else False


class Trigger:
    """Kills this process at a point; counts from `arm` on."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._lock = threading.Lock()
        self.armed = False
        self.seen: Counter[str] = Counter()

    def arm(self) -> None:
        self.armed = True

    def __call__(self, kind: str, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        here = self._count(kind)
        if here and self._point.when == "before":
            threading.Event().wait(TOO_EARLY_S)
            die()
        result = work(*args, **more)
        if here:
            die()
        return result

    def _count(self, kind: str) -> bool:
        with self._lock:
            self.seen[kind] += self.armed
            here = (kind, self.seen[kind]) == (self._point.kind, self._point.number)
            return self.armed and here


class DyingLog(SqliteLog):
    trigger: Trigger

    def take(self, trigger: Trigger) -> None:
        self.trigger = trigger
        write = self._head_file.write
        self._head_file.write = lambda head: trigger("head", write, head)  # type: ignore[method-assign]

    def append(self, entries, *, snapshot=None):
        if self.trigger.armed and entries:
            tell("append", entries[0].seq, entries[-1].seq)
        self.trigger("append", super().append, entries, snapshot=snapshot)

    def archive(self, entry, **_):
        return super().archive(entry, reached=lambda _step: self.trigger("archive", bool))


class DyingProcesses(LocalProcesses):
    def __init__(self, trigger: Trigger) -> None:
        super().__init__()
        self._trigger = trigger
        self.before_launch: Callable[[str], None] = lambda _argv: None
        """Told the command line, and may keep the launch waiting."""

    def launch(self, order):
        self.before_launch(" ".join(order.argv))
        return self._trigger("launch", super().launch, order)

    def watch(self, process, on_exit, **more):
        self._trigger("watch", super().watch, process, on_exit, **more)

    def stop(self, *args, **more):
        return self._trigger("stop", super().stop, *args, **more)


class DyingFetcher(HubFetcher):
    def __init__(self, trigger: Trigger, access: HubAccess) -> None:
        super().__init__(access)
        self._trigger = trigger

    def fetch(self, spec, progress, cancelled):
        def step(now):
            self._trigger("progress", progress, now)

        return self._trigger("fetch", super().fetch, spec, step, cancelled)


class Life:
    """A service and what its caller does with it; tells what was asked and what was promised."""

    def __init__(self, folder: Path, pool: range, trigger: Trigger, access: HubAccess) -> None:
        self.folder = folder
        self.pool = pool
        self.arm = trigger.arm
        self._trigger = trigger
        self._access = access
        self._known: dict[str, Any] = {}

    def open(self, *, models: list[ModelSpec] | None = None, **options: Any) -> None:
        log = DyingLog.open(self.folder)
        log.take(self._trigger)
        self.processes = DyingProcesses(self._trigger)
        fetcher = DyingFetcher(self._trigger, self._access)
        parts = Parts(log=log, processes=self.processes, fetcher=fetcher)
        options = {"max_loaded": 1, "ports": self.pool, "parts": parts} | options
        for spec in models or ():
            self._asks(f"spec {spec.name}", spec.launch_hash())
        if "max_loaded" in self._known:
            self._asks("max_loaded", options["max_loaded"])
        self.service = ModelService.open(self.folder, models=models, **options)
        for spec in models or ():
            self._has(f"spec {spec.name}", spec.launch_hash())
        self._has("max_loaded", options["max_loaded"])
        self.seen = Seen(self.service)
        entries = list(self.service.events())  # some came before anybody listened
        opened = max(e.seq for e in entries if e.event.kind == "service.opened")
        for entry in entries[opened - entries[0].seq :]:
            self.seen.take(entry)

    def _asks(self, key: str, value: Any) -> None:
        tell("asks", key, value)

    def _has(self, key: str, value: Any) -> None:
        self._known[key] = value
        tell("has", key, value)

    @contextlib.contextmanager
    def _promise(self, key: str, value: Any) -> Iterator[None]:
        """What is asked for may be so from now on, and is so afterwards; refused, it is not."""
        self._asks(key, value)
        try:
            yield
        except BaseException:
            self._has(key, self._known.get(key, unpromised(key)))
            raise
        self._has(key, value)

    def define(self, *specs: ModelSpec) -> None:
        with contextlib.ExitStack() as promises:
            for spec in specs:
                promises.enter_context(self._promise(f"spec {spec.name}", spec.launch_hash()))
            self.service.define(*specs)

    def remove(self, name: str, **how: Any) -> None:
        run = self.run(name)
        self._asks(f"spec {name}", None)
        self.service.remove(name, **how)
        self._has(f"spec {name}", None)
        tell("ended", run)

    def remove_in_vain(self, name: str) -> None:
        """Remove a leased model, and give up; until that is in the log, it may go on."""
        with pytest.raises(WaitTimeoutError):
            self.remove(name, timeout_s=0.1)
        self.seen.wait("run.reopened")
        self._has(f"spec {name}", self._known[f"spec {name}"])

    def pin(self, name: str, *, pinned: bool = True) -> None:
        with self._promise(f"pinned {name}", pinned):
            (self.service.pin if pinned else self.service.unpin)(name)

    def limit(self, max_loaded: int) -> None:
        with self._promise("max_loaded", max_loaded):
            self.service.set_limits(max_loaded=max_loaded)

    def hold(self, name: str) -> None:
        run = self.run(name)
        with self._promise(f"held {name}", True):
            self.service.stop(name, hold=True)
        tell("ended", run)

    def reset(self, name: str) -> None:
        with self._promise(f"held {name}", False):
            self.service.reset(name)

    def stop(self, name: str, **how: Any) -> None:
        run = self.run(name)
        self.service.stop(name, **how)
        tell("ended", run)

    def start(self, name: str) -> int:
        """Start a model and return the pid."""
        found = self.service.start(name, 20)
        tell("granted", name, found.run, found.pid)
        assert found.pid is not None
        return found.pid

    def start_fails(self, name: str, stage: str) -> None:
        with pytest.raises(LoadError) as caught:
            self.service.start(name, 20)
        assert caught.value.stage == stage
        tell("ended", caught.value.run)

    def lease(self, name: str, timeout_s: float = 20) -> Lease:
        lease = self.service.lease(name, timeout_s)
        tell("granted", name, lease.run, self.service.model(name).pid)
        return lease

    def use(self, *names: str) -> None:
        for name in names:
            self.lease(name).release()

    def beside(self, work: Callable[[], Any], kind: str, **facts: Any) -> Outcome:
        """Do this in a thread, and return when it came to an event."""
        outcome = Outcome(work)
        self.seen.wait(kind, **facts)
        return outcome

    def archive(self) -> None:
        tell("archived", str(self.service.archive()))

    def close(self, how: str) -> None:
        self.service.close(how)
        for run in self.service.status().models:
            if how == "stop":
                tell("ended", run.run)

    def run(self, name: str) -> int | None:
        return self.service.model(name).run

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send the leader of a model's run a signal; return the run."""
        found = self.service.model(name)
        assert found.pid is not None
        assert found.run is not None
        if number == signal.SIGKILL:
            tell("mortal", found.run)
        os.kill(found.pid, number)
        return found.run

    def stranger(self, port: int) -> None:
        """Have a process of nobody's listen on a port; it outlives this one."""
        command = misbehave(port, "--name", "stranger")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        tell("stranger", process.pid)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"serving")


@dataclass
class Told:
    """What an owner said until it was killed."""

    promised: dict[str, set[Any]] = field(default_factory=dict)
    """What may be so, by what it is about: more than one where the owner died asking."""
    granted: set[tuple[str, int, int]] = field(default_factory=set)
    """Model, run and pid of every lease and start."""
    ended: set[int] = field(default_factory=set)
    mortal: set[int] = field(default_factory=set)
    """Runs whose leader was killed by somebody else."""
    archived: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    strangers: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)
    """Processes that cannot be proved to be ours."""
    appends: list[tuple[int, int]] = field(default_factory=list)
    finished: dict[str, int] | None = None
    """How many acts there were, when its end was reached."""

    @classmethod
    def read(cls, said: str) -> Told:
        told = cls()
        for line in map(json.loads, said.splitlines()):
            told._take(*line)
        assert not told.wrong
        return told

    def add(self, other: Told) -> None:
        """Take in what the next owner said."""
        self.promised |= other.promised
        self.granted |= other.granted

    def _take(self, what: str, *facts: Any) -> None:
        match what:
            case "asks":
                self.promised.setdefault(facts[0], {unpromised(facts[0])}).add(facts[1])
            case "has":
                self.promised[facts[0]] = {facts[1]}
            case "granted":
                self.granted.add((facts[0], facts[1], facts[2]))
            case "ended":
                self.ended |= {facts[0]} - {None}
            case "append":
                self.appends.append((facts[0], facts[1]))
            case "finished":
                self.finished = facts[0]
            case _:
                getattr(self, {"stranger": "strangers"}.get(what, what)).add(facts[0])
