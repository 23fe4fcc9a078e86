"""A small world of the core alone: decisions one after another, without actors or time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moorage.core import decide, room
from moorage.core import events as ev
from moorage.core.draft import Draft, later
from moorage.core.lifecycle import Stage
from moorage.core.room import Observed, Outcome, Usage
from moorage.core.state import Run, State
from moorage.spec import ModelSpec

START = "2026-01-01T00:00:00.000000Z"


def spec(name: str, **changes: Any) -> ModelSpec:
    return ModelSpec(name=name, backend="fake", **changes)


class Core:
    """Decides on drafts and keeps what was decided: `entries`, and `state` after them."""

    def __init__(self, *, ports: tuple[int, int] = (18000, 18003), **limits: Any) -> None:
        self.state = State()
        self.entries: list[ev.Entry] = []
        self.now = 0.0
        self.usage: dict[int, Usage] = {}
        self.looks: dict[str, Any] = {}
        self.decide(lambda draft: draft.emit(ev.LogCreated(log_id="aa", program="test")))
        self.open(ports, **limits)

    def open(
        self,
        ports: tuple[int, int] = (18000, 18003),
        *,
        max_loaded: int = 2,
        memory_limit: int | None = None,
        min_residency_s: float = 0.0,
    ) -> None:
        event = ev.ServiceOpened(
            program="test",
            host="here",
            boot_id="boot",
            pid=1,
            ports=(ports,),
            max_loaded=max_loaded,
            memory_limit=memory_limit,
            min_residency_s=min_residency_s,
        )
        self.decide(lambda draft: draft.emit(event))

    @property
    def at(self) -> str:
        return later(START, self.now)

    def draft(self) -> Draft:
        return Draft(self.state, self.at)

    def decide(self, fact: Callable[[Draft], Any]) -> Any:
        """Decide alone, without looking at room."""
        draft = self.draft()
        answer = fact(draft)
        self.keep(draft)
        return answer

    def keep(self, draft: Draft) -> None:
        self.entries += draft.entries
        self.state = draft.state
        self._see()

    def _see(self) -> None:
        ready = {r.run for r in self.state.in_stage(Stage.READY, Stage.DRAINING)}
        self.usage = {
            run: self.usage.get(run, Usage(0, self.now, self.now, 0)) for run in sorted(ready)
        }

    def observed(self, **looks: Any) -> Observed:
        return Observed(now=self.now, usage=self.usage, **(self.looks | looks))

    def schedule(self, **looks: Any) -> Outcome:
        outcome: Outcome = self.decide(lambda draft: room.schedule(draft, self.observed(**looks)))
        return outcome

    # --- shortcuts ---

    def define(self, *names: str, **changes: Any) -> None:
        for name in names:
            self.decide(lambda draft, n=name: decide.define(draft, spec(n, **changes), ""))

    def want(self, name: str, *, start: bool = False, **looks: Any) -> int:
        """Ask for a model and look at room; return its run."""
        run: Run = self.decide(lambda draft: decide.request(draft, name, "test", start=start))
        self.schedule(**looks)
        return run.run

    def launch(self, run: int) -> None:
        self.decide(lambda d: decide.prepared(d, run, argv=("x",), nonce="n", log_file="f"))
        self.decide(
            lambda d: decide.launched(
                d, run, pid=run, group=run, session=run, start_ticks=run, boot_id="boot"
            )
        )

    def load(self, name: str, *, leases: int = 0) -> int:
        """Have a model ready; return its run."""
        run = self.want(name)
        self.launch(run)
        self.decide(lambda d: decide.ready(d, run, leases))
        self.now += 1
        return run

    def exit(self, run: int, code: int | None = 0) -> None:
        self.decide(lambda d: decide.exited(d, run, code=code, signal=None, log_tail=("end",)))

    def sweep(self, run: int, peak: int | None = None) -> None:
        self.decide(lambda d: decide.swept(d, run, pids=(), seconds=0.0, peak_bytes=peak))

    def end(self, run: int, peak: int | None = None) -> None:
        self.exit(run)
        self.sweep(run, peak)

    def use(self, run: int, leases: int) -> None:
        """Let a ready run be used now, and held by so many leases from now on."""
        seen = self.usage[run]
        self.usage[run] = replace(
            seen, leases=leases, used_at=self.now, granted=seen.granted + max(1, leases)
        )

    def stage(self, name: str) -> str | None:
        run = self.state.models[name].run
        return self.state.runs[run].stage.value if run is not None else None

    def told(self, *kinds: type[ev.Event]) -> list[Any]:
        return [entry.event for entry in self.entries if isinstance(entry.event, kinds)]
