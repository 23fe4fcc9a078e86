"""What tests of the public face share: small servers, waits that end, and what a log keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from moorage import ModelService, ModelSpec
from moorage.core.fold import replay
from moorage.core.invariants import over_limits, violations
from moorage.core.state import State
from moorage.log.reader import LogReader
from support.servers import misbehave

LIMIT_S = 20.0
"""For every wait of a test; reached only when it fails."""


def ports() -> range:
    """Return a pool that no other test of this session uses at the same time."""
    from support import pools  # noqa: PLC0415  only who asks has a block of ports to himself

    return pools.ports()


def server(name: str, *flags: str, **more: Any) -> ModelSpec:
    """Return the spec of a small server that misbehaves as told."""
    template = tuple("{port}" if part == "0" else part for part in misbehave(0, *flags))
    return ModelSpec(name=name, backend="command", args=template, **more)


def start_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a thread of the test hangs"


@dataclass
class Outcome:
    """What a call in a thread of its own came to."""

    work: Callable[[], Any]
    value: Any = None
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = start_thread(self._run)

    def _run(self) -> None:
        try:
            self.value = self.work()
        except BaseException as error:  # noqa: BLE001  it is raised again by `get`
            self.error = error

    def get(self) -> Any:
        """Return its value or raise its error; bounded."""
        join(self.thread)
        if self.error is not None:
            raise self.error
        return self.value


class Seen:
    """Collects the committed entries and waits for some of them."""

    def __init__(self, service: ModelService) -> None:
        self._changed = threading.Condition()
        self.entries: list[Any] = []
        service.subscribe(self.take)

    def take(self, item: Any) -> None:
        """Have one more; runs in the service's thread."""
        with self._changed:
            self.entries.append(item)
            self._changed.notify_all()

    def wait(self, kind: str, **facts: Any) -> Any:
        """Return the first entry of this kind with these facts; bounded."""

        def fits(entry: Any) -> bool:
            event = entry.event
            return event.kind == kind and all(getattr(event, k) == v for k, v in facts.items())

        with self._changed:
            found = self._changed.wait_for(
                lambda: next((e for e in self.entries if fits(e)), None), LIMIT_S
            )
        assert found, f"no {kind} {facts} among {[e.event.kind for e in self.entries]}"
        return found


def settle(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for what nothing tells of, such as the end of a thread; bounded."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be so"
        pause.wait(0.002)


def gone(pid: int) -> bool:
    """Tell whether a process has ended; one that only waits for its parent to look has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def state_of(service: ModelService) -> State:
    """Return the live state."""
    return service._runtime.registry.state


def check_log(folder: Path, live: State | None = None) -> list[Any]:
    """Hold a log to what every log keeps: one end a run, one release a reserve, room, state."""
    with LogReader(folder) as reader:
        entries = list(reader.read())
    begun: set[int] = set()
    reserved: set[int] = set()
    ended: dict[int, str] = {}
    state = State()
    for entry in entries:
        replay([entry], state)
        assert violations(state) == (), entry
        kind, run = entry.event.kind, getattr(entry.event, "run", None)
        if kind in ("run.queued", "run.fetching"):
            begun.add(run)
        if kind == "run.reserved":
            assert run not in reserved
            reserved.add(run)
            assert not over_limits(state), entry
        if kind in ("run.released", "run.abandoned"):
            assert run not in ended, entry
            ended[run] = kind
    assert begun - set(state.runs) == set(ended)
    assert reserved - set(state.runs) == {r for r, k in ended.items() if k == "run.released"}
    if live is not None:
        assert state == live
    return entries
