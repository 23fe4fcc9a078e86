"""One thread that plays many: tasks are greenlets, and time is a number."""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pykka
from greenlet import getcurrent, greenlet

from moorage.actors.threads import Threads
from moorage.actors.tickets import Ticket
from simulation.choices import Choices

Work = Callable[[], None]


class KilledError(Exception):
    """The process of this task was killed: whatever it tries comes to nothing."""


class NoThreadError(RuntimeError):
    """As the system says it when it has no thread left."""

    def __init__(self) -> None:
        super().__init__("can't start new thread")


class Process:
    """A process that owns tasks: they live and die together."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.dead = False
        self.doomed = False
        """It is to be killed before anything else happens."""
        self.tasks: list[Task] = []
        self.actors: list[pykka.Actor] = []


class Timer:
    """Something that is due at a time, unless it is called off."""

    __slots__ = ("at", "off", "what", "work")

    def __init__(self, at: float, what: str, work: Work) -> None:
        self.at = at
        self.what = what
        self.work = work
        self.off = False


class Task:
    """Stands for a thread."""

    __slots__ = ("at", "greenlet", "name", "process", "ready", "timer", "waits", "woken")

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.greenlet: greenlet
        self.at = 0.0
        """Since when it can go on."""
        self.ready = False
        self.waits = False
        self.woken = False
        self.timer: Timer | None = None

    @property
    def over(self) -> bool:
        return self.greenlet.dead


class Scheduler:
    """Runs one task at a time, each until it waits. Who runs next is for others to choose."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 0.0
        self.ready: list[Task | Timer] = []
        """Who can go on, in the order in which they could; a timer is a call that is due."""
        self.current: Task | None = None
        self.preempts = 0
        """How often (per mille) a task is made to wait where a thread could be."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._hub = getcurrent()
        self._polled: list[tuple[Callable[[], bool], Task]] = []

    # --- from outside ---

    def spawn(self, name: str, work: Work, process: Process) -> Task:
        """Make a task that can run."""
        task = Task(name, process)
        task.greenlet = greenlet(partial(self._run, task, work), self._hub)
        process.tasks.append(task)
        self._make_ready(task)
        return task

    @staticmethod
    def _run(task: Task, work: Work) -> None:
        try:
            work()
        except Exception:
            if not task.process.dead:  # else nobody is there to hear of it
                raise

    def at(self, when: float, what: str, work: Work) -> Timer:
        """Call at a time."""
        timer = Timer(when, what, work)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def soon(self, what: str, work: Work, process: Process | None = None) -> None:
        """Call as if from a thread of its own, when its turn comes."""

        def unless_dead() -> None:
            if process is None or not process.dead:
                work()

        self.ready.append(Timer(self.now, what, unless_dead))

    def run(self, place: int) -> str:
        """Let one that is ready go on until it waits; return who it was."""
        chosen = self.ready.pop(place)
        if isinstance(chosen, Timer):
            if not chosen.off:
                chosen.work()
            self._poll()
            return chosen.what
        chosen.ready = False
        self.current = chosen
        try:
            chosen.greenlet.switch()
        finally:
            self.current = None
        self._poll()
        return chosen.name

    def waited(self) -> float:
        """Return how long the first who can go on has waited for his turn."""
        return self.now - self.ready[0].at

    def next_at(self) -> float | None:
        """Return when something is due next."""
        while self._timers and self._timers[0][2].off:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def pass_time(self, until: float) -> str:
        """Let time pass, and do what is due by then; return what that was."""
        self.now = max(self.now, until)
        done: list[str] = []
        while (due := self.next_at()) is not None and due <= self.now:
            timer = heapq.heappop(self._timers)[2]
            done.append(timer.what)
            timer.work()
        self._poll()
        return ", ".join(done)

    def kill(self, process: Process) -> None:
        """End every task of a process where it stands."""
        process.dead = True
        for task in process.tasks:
            self._end(task)
        self.ready = [
            each for each in self.ready if isinstance(each, Timer) or each.process is not process
        ]
        self._polled = [(_, task) for _, task in self._polled if task.process is not process]
        for actor in process.actors:
            pykka.ActorRegistry.unregister(actor.actor_ref)
        process.tasks.clear()
        process.actors.clear()

    def _end(self, task: Task) -> None:
        if task.timer is not None:
            task.timer.off = True
        self.current = task
        try:
            for _ in range(100):
                if task.greenlet.dead:
                    return
                with contextlib.suppress(KilledError):  # one that never began lets it through
                    task.greenlet.throw(KilledError)
        finally:
            self.current = None
        raise RuntimeError(f"{task.name} cannot be ended")

    def interrupt(self, task: Task, error: BaseException) -> None:
        """Raise an error in a task that waits, as a signal handler would."""
        self._unwait(task)
        if task.ready:
            self.ready.remove(task)
            task.ready = False
        self.current = task
        try:
            task.greenlet.throw(error)
        finally:
            self.current = None
        self._poll()

    def _make_ready(self, task: Task) -> None:
        if not task.ready and not task.process.dead:
            task.ready = True
            task.at = self.now
            self.ready.append(task)

    def _poll(self) -> None:
        for each in tuple(self._polled):
            if each[0]():
                self._polled.remove(each)
                self.wake(each[1])

    # --- from within a task ---

    def wake(self, task: Task) -> None:
        """Let a task that waits go on."""
        if task.waits:
            self._unwait(task)
            task.woken = True
            self._make_ready(task)

    def _unwait(self, task: Task) -> None:
        task.waits = False
        if task.timer is not None:
            task.timer.off = True
            task.timer = None

    def _time_out(self, task: Task) -> None:
        task.timer = None
        task.waits = False
        self._make_ready(task)

    def block(self, until: float | None = None, what: str = "") -> bool:
        """Wait until woken or until a time; tell whether it was woken."""
        task = self._me()
        task.waits = True
        task.woken = False
        if until is not None:
            name = what or task.name
            task.timer = self.at(max(until, self.now), name, partial(self._time_out, task))
        self._switch(task)
        return task.woken

    def pause(self) -> None:
        """Let others go first."""
        task = self._me()
        self._make_ready(task)
        self._switch(task)

    def preempt(self) -> None:
        """Wait perhaps, as a thread may anywhere."""
        task = self.current
        if not self.preempts or task is None or task.process.dead:
            return  # what is killed may still run finalisers
        if self.choices.happens(self.preempts):
            self.pause()

    def sleep(self, seconds: float) -> None:
        """Wait some time."""
        self.block(self.now + seconds)

    def wait_for(self, lists: Iterable[list[Task]], until: float | None) -> None:
        """Wait until one of these who are told of changes, or until a time."""
        task = self._me()
        told = tuple(lists)
        for each in told:
            each.append(task)
        try:
            self.block(until)
        finally:
            for each in told:
                each.remove(task)

    def until(self, condition: Callable[[], bool], until: float | None) -> bool:
        """Wait until it is so, looked at after every step, or until a time."""
        if condition():
            return True
        task = self._me()
        self._polled.append((condition, task))
        try:
            self.block(until)
        finally:
            self._polled = [each for each in self._polled if each[1] is not task]
        return condition()

    def _me(self) -> Task:
        task = self.current
        if task is None:
            raise RuntimeError("only a task can wait")
        if task.process.dead:
            raise KilledError
        return task

    def _switch(self, task: Task) -> None:
        self._hub.switch()
        if task.process.dead:
            raise KilledError


class SimQueue:
    """A queue for one taker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.items: deque[Any] = deque()
        self._scheduler = scheduler
        self._taker: list[Task] = []
        self.before_get: Work | None = None

    def put(self, item: Any) -> None:
        self.items.append(item)
        for task in self._taker:
            self._scheduler.wake(task)

    def get(self) -> Any:
        if self.before_get is not None:
            self.before_get()
        if self.items:
            self._scheduler.pause()  # each item is a step of its own
        while not self.items:
            self._scheduler.wait_for([self._taker], None)
        return self.items.popleft()

    def empty(self) -> bool:
        return not self.items


class SimFlag:
    """A flag that tasks wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self.waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in tuple(self.waiters):
            self._scheduler.wake(task)

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else self._scheduler.now + timeout
        while not self._set:
            self._scheduler.wait_for([self.waiters], until)
            if until is not None and self._scheduler.now >= until:
                break
        return self._set


class SimThreads(Threads):
    """Tasks in place of threads."""

    def __init__(self, scheduler: Scheduler, process: Process, refused: Callable[[], bool]) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._process = process
        self._refused = refused
        self._tasks: list[Task] = []

    def run(self, name: str, work: Work) -> None:
        if name.startswith(("model-", "worker-")) and self._refused():
            raise NoThreadError
        actor = getattr(work, "__self__", None)
        if isinstance(actor, pykka.Actor):
            self._process.actors.append(actor)
        self._tasks = [task for task in self._tasks if not task.over]
        self._tasks.append(self._scheduler.spawn(name, work, self._process))

    def apart(self, name: str, work: Work) -> None:
        work()  # nothing interrupts a task

    def queue(self) -> Any:
        return SimQueue(self._scheduler)

    def flag(self) -> Any:
        return SimFlag(self._scheduler)

    def wait(self, waited: Any, timeout_s: float) -> bool:
        scheduler = self._scheduler
        until = scheduler.now + timeout_s if timeout_s >= 0 else None
        if isinstance(waited, Ticket):
            task = scheduler.current
            waited.when_answered(lambda: scheduler.wake(task))
            while not waited.answered and (until is None or scheduler.now < until):
                scheduler.block(until)
            return waited.answered
        return scheduler.until(waited.is_set, until)

    def me(self) -> object:
        return self._scheduler.current

    def close(self, timeout_s: float) -> None:
        current = self._scheduler.current
        mine = [task for task in self._tasks if task is not current]
        self._scheduler.until(
            lambda: all(task.over for task in mine), self._scheduler.now + timeout_s
        )
