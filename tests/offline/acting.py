"""A service without a world: decisions made on a state, one after another, and their entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moorage.core import decide, room
from moorage.core import events as ev
from moorage.core.draft import Draft
from moorage.core.events import Entry
from moorage.core.room import Observed, Usage
from moorage.core.state import State
from moorage.spec import ModelSpec

LOG_ID = "00000000000000aa"
FIRST_PORT = 18_000


class Acting:
    """Decides as the registry does, with what it is told of the world; a second an entry group."""

    def __init__(self, *, max_loaded: int = 2, log_id: str = LOG_ID, pid: int = 100) -> None:
        self.state = State()
        self.entries: list[Entry] = []
        self.leased: dict[int, int] = {}
        self.second = 0
        with self.deciding() as draft:
            draft.emit(ev.LogCreated(log_id=log_id, program="0.1.0"))
            draft.emit(self._opened(max_loaded, pid))

    def _opened(self, max_loaded: int, pid: int, boot_id: str = "boot") -> ev.ServiceOpened:
        return ev.ServiceOpened(
            program="0.1.0",
            host="there",
            boot_id=boot_id,
            pid=pid,
            ports=((FIRST_PORT, FIRST_PORT + 99),),
            max_loaded=max_loaded,
            memory_limit=None,
            min_residency_s=0.0,
        )

    @contextmanager
    def deciding(self) -> Iterator[Draft]:
        """Make one decision; the queue is looked at in the same step."""
        self.second += 1
        minute, second = divmod(self.second, 60)
        draft = Draft(self.state, f"2026-03-02T08:{minute:02}:{second:02}.000000Z")
        yield draft
        usage = {run: Usage(self.leased.get(run, 0), 0.0, 0.0) for run in self.state.lru}
        room.schedule(draft, Observed(now=1e9, usage=usage))
        self.state = draft.state
        self.entries += draft.entries

    def define(self, *names: str, **more: object) -> None:
        with self.deciding() as draft:
            for name in names:
                spec = ModelSpec(name=name, backend="command", args=("serve",), **more)  # type: ignore[arg-type]
                decide.define(draft, spec, "")

    def ask(self, name: str) -> int:
        with self.deciding() as draft:
            return decide.request(draft, name, f"lease({name!r})", start=False).run

    def spawn(self, run: int, *, pid: int | None = None, boot_id: str = "boot") -> None:
        """Bring a run that has reserved to `loading`."""
        with self.deciding() as draft:
            decide.prepared(draft, run, argv=("serve",), nonce=f"n{run}", log_file=f"/l/{run}")
        with self.deciding() as draft:
            pid = pid or 5000 + run
            decide.launched(
                draft, run, pid=pid, group=pid, session=pid, start_ticks=7, boot_id=boot_id
            )

    def load(self, name: str) -> int:
        """Ask for a model and bring it to `ready`."""
        run = self.ask(name)
        for number in tuple(self.state.runs):
            if self.state.runs[number].stage == "stopping":
                self.end(number)
        self.spawn(run)
        with self.deciding() as draft:
            decide.ready(draft, run, 1)
        return run

    def end(self, run: int, *, signal: int | None = 15, log_tail: Sequence[str] = ()) -> None:
        """Let a leader exit and its tree be swept."""
        with self.deciding() as draft:
            decide.exited(draft, run, code=None, signal=signal, log_tail=tuple(log_tail))
        with self.deciding() as draft:
            decide.swept(draft, run, pids=(), seconds=0.01, peak_bytes=None)

    def reopen(self, survivors: Sequence[int] = (), *, pid: int = 200) -> None:
        """Let another owner take over."""
        with self.deciding() as draft:
            draft.emit(self._opened(self.state.max_loaded, pid))
            for run in tuple(draft.state.runs):
                decide.recover(draft, run, same_boot=True, alive=run in survivors)

    def last(self, kind: str) -> Entry:
        return next(e for e in reversed(self.entries) if e.event.kind == kind)

    def cause(self, kind: str) -> str | None:
        """Return the kind of what caused the last event of a kind."""
        seq = self.last(kind).cause
        return None if seq is None else self.entries[seq - 1].event.kind
