"""A service on fakes with manual time, callers on threads, and a judge over the whole log."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moorage import ModelService, ModelSpec, UnknownModelError
from moorage.core import events as ev
from moorage.core.fold import apply
from moorage.core.invariants import over_limits, violations
from moorage.core.lifecycle import HOLDING
from moorage.core.state import State
from moorage.log.rows import to_entry
from moorage.testing import (
    FakeBackends,
    FakeClock,
    FakeFetcher,
    FakePorts,
    FakeProcesses,
    MemoryLog,
    fake_parts,
)

WAIT_S = 20.0
"""No wait of a test lasts longer."""
POOL = range(18000, 18010)


def spec(name: str, **changes: Any) -> ModelSpec:
    """Return a spec that the fakes accept."""
    return ModelSpec(name=name, backend="fake", **changes)


class Bench:
    """Opens a service, runs callers, waits for events; `close` judges the log as a whole."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.clock: FakeClock = options.pop("clock", None) or FakeClock()
        self.options: dict[str, Any] = {"ports": POOL, "max_loaded": 2, **options}
        self.log = MemoryLog()
        self.processes = FakeProcesses()
        self.ports = FakePorts(self.processes)
        self.backends = FakeBackends()
        self.fetcher = FakeFetcher()
        self.lowered = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self.service = self._open()

    def _open(self) -> ModelService:
        parts = fake_parts(
            log=self.log,
            processes=self.processes,
            ports=self.ports,
            backends=self.backends,
            fetcher=self.fetcher,
            clock=self.clock,
        )
        service = ModelService.open(self.folder, parts=parts, **self.options)
        service.subscribe(self._hear)
        return service

    def reopen(self, **options: Any) -> ModelService:
        """Close what there is and open the same log and world again."""
        self.service.close(drain_s=0)
        self.log = self.log.reopened()
        self.options |= options
        self.service = self._open()
        return self.service

    def define(self, *names: str, **changes: Any) -> None:
        """Define models that differ in their names only."""
        self.service.define(*(spec(name, **changes) for name in names))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.service.close(drain_s=0)
        for thread in self._threads:
            thread.join(WAIT_S)
        if error is None:
            self.judge()

    # --- callers ---

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run a blocking call on a thread of its own."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  the test looks at it
                future.set_exception(error)

        thread = threading.Thread(target=run, name=f"caller-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return future

    def lease(self, *names: str, timeout_s: float = WAIT_S) -> Future[Any]:
        """Lease on a thread of its own, and return once the registry knows of it."""
        known = threading.Event()

        def work() -> Any:
            try:
                if len(names) == 1:
                    return self.service.lease(names[0], timeout_s)
                return self.service.lease_all(*names, timeout_s=timeout_s)
            finally:
                known.set()

        before = self.service.status().waiting
        future = self.call(work)
        self.until(lambda: known.is_set() or self.service.status().waiting > before)
        self.settle()
        return future

    def result(self, future: Future[Any]) -> Any:
        """Return what a caller got, within the bound."""
        return future.result(WAIT_S)

    def error(self, future: Future[Any]) -> BaseException:
        """Return the error a caller got, within the bound."""
        error = future.exception(WAIT_S)
        if error is None:
            raise AssertionError(f"no error, but {future.result()}")
        return error

    # --- waiting ---

    def settle(self) -> None:
        """Return when the registry has handled all that it was told before."""
        self.service.set_limits()

    def settle_now(self) -> None:
        """As `settle`, for a log that cannot be written."""
        with contextlib.suppress(UnknownModelError):
            self.service.lease("no model of this name")

    def advance(self, seconds: float) -> None:
        """Let time pass, and let the registry do what is due by then."""
        self.clock.advance(seconds)
        self.settle_now()

    def advance_until(self, condition: Callable[[], bool], step_s: float = 30.0) -> None:
        """Let time pass in steps until it is so."""

        def stepped() -> bool:
            if not condition():
                self.advance(step_s)
            return condition()

        self.until(stepped)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it is so; looked at after every committed entry."""
        with self._changed:
            waited = 0
            while not condition():
                # What no entry announces (a caller that comes) is looked for, in steps.
                self._changed.wait(0.002)
                waited += 1
                if waited > WAIT_S / 0.002:
                    raise AssertionError(f"it did not come to this; the log:\n{self.told()}")

    def until_state(self, model: str, *states: str) -> None:
        """Wait until a model is in one of these states."""
        self.until(lambda: self.state(model) in states)

    def _hear(self, _item: object) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- looking ---

    def entries(self) -> Iterator[ev.Entry]:
        """Yield what is durable, also after the service was closed."""
        return (to_entry(row, "memory") for row in self.log.rows)

    def state(self, model: str) -> str:
        """Return a model's state."""
        return self.service.model(model).state

    def events(self, *kinds: type[ev.Event], **fields: Any) -> list[Any]:
        """Return the events of these kinds that have these values."""
        return [
            entry.event
            for entry in self.entries()
            if (not kinds or isinstance(entry.event, kinds))
            and all(getattr(entry.event, key, None) == value for key, value in fields.items())
        ]

    def told(self) -> str:
        """Return the log, a line an entry."""
        return "\n".join(f"{e.seq} <{e.cause} {e.event}" for e in self.entries())

    @property
    def lru(self) -> tuple[str, ...]:
        """Models that are ready or drain, least recently used first, as last noted."""
        state = self.service._runtime.registry.state
        return tuple(state.runs[run].model for run in state.lru)

    # --- judging ---

    def prefixes(self) -> Iterator[tuple[State, ev.Entry]]:
        """Yield the state after each entry of the log."""
        state = State()
        for entry in self.entries():
            apply(state, entry)
            yield state, entry

    def judge(self) -> None:
        """Raise for anything in the log that must never be so."""
        state = State()
        for state, entry in self.prefixes():
            wrong = violations(state)
            if wrong or (over_limits(state) and not self.lowered):
                over = f"{sum(1 for _ in state.holding())} loaded"
                raise AssertionError(f"after {entry}: {wrong or over}\n{self.told()}")
            _evicted_while_leased(state, entry)
        if state.open:
            raise AssertionError("the log does not end with service.closed")
        twice = {m: n for m, n in self.processes.most_alive.items() if n > 1}
        if twice:
            raise AssertionError(f"more than one server alive at once of {twice}")
        stuck = [r for r in state.runs.values() if r.stage in HOLDING]
        if not stuck and (state.held or self.processes.alive()):
            raise AssertionError(f"left: {state.held}, {self.processes.alive()}")


def _evicted_while_leased(state: State, entry: ev.Entry) -> None:
    event = entry.event
    if isinstance(event, ev.RunStopping) and event.reason in ("room", "memory", "idle"):
        run = state.runs[event.run]
        if state.models[run.model].pinned:
            raise AssertionError(f"a pinned model was evicted: {entry}")
