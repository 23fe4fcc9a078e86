"""Histories told by hand, to see what the judge lets pass and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulation.judge import Judge, Wrong
from simulation.judging.book import Book
from simulation.sight import SeenAnswer, SeenCall, SeenLease, SeenRow, SeenServer, Sight

LOG_ID = "00000000000000aa"
POOL = ((18000, 18002),)
SPEC: dict[str, Any] = {
    "aliases": [],
    "pinned": False,
    "crash_budget": 2,
    "ports": 1,
    "restart": "on-demand",
    "ttl_s": None,
    "memory": None,
    "load_timeout_s": 600.0,
    "stop_timeout_s": 10.0,
}
_DATA: dict[str, dict[str, Any]] = {
    "log.created": {"log_id": LOG_ID},
    "service.opened": {
        "ports": POOL,
        "max_loaded": 2,
        "memory_limit": None,
        "min_residency_s": 0.0,
    },
    "service.closed": {"reason": "stop", "kept": ()},
    "run.fetching": {"repo": "x/y"},
    "run.queued": {"place": 1},
    "run.reserved": {"more_ports": (), "room_bytes": None, "displaced": ()},
    "run.launched": {"boot_id": "boot", "group": 1, "session": 1, "start_ticks": 1},
    "run.ready": {"leases": 0},
    "run.evicting": {"reason": "room", "for_run": None, "leases": 0, "skipped": ()},
    "run.draining": {"reason": "operator", "leases": 0},
    "run.stopping": {"reason": "operator", "stage": "", "error": ""},
    "run.exited": {"wanted": True, "stage": "", "code": 0},
    "run.swept": {"pids": ()},
    "run.stop_failed": {"pids": ()},
    "run.released": {"outcome": "ok"},
    "run.abandoned": {"outcome": "cancelled"},
    "model.held": {"reason": "stopped on purpose"},
    "usage.noted": {"leases": ()},
}


def at(seconds: float) -> str:
    """Return a time of the log."""
    minutes, rest = divmod(seconds, 60)
    return f"2026-01-01T00:{int(minutes):02}:{rest:09.6f}Z"


class Tale:
    """Tells rows, servers, leases and calls; `look` shows them to a judge, a step at a time."""

    def __init__(self, *models: str, spec: Mapping[str, Any] | None = None, **limits: Any) -> None:
        self.judge = Judge()
        self.book = Book()
        self.step = 0
        self.now = 0.0
        self.owner = 1
        self.open = True
        self.calm = False
        self.servers: dict[int, SeenServer] = {}
        self.leases: list[SeenLease] = []
        self.calls: list[SeenCall] = []
        self._rows: list[SeenRow] = []
        self._answers: list[SeenAnswer] = []
        self._seq = 0
        self.row("log.created").row("service.opened", **limits)
        for model in models:
            self.define(model, **(spec or {}))
        self.look()

    # --- rows ---

    def row(self, kind: str, model: str | None = None, run: int | None = None, **data: Any) -> Tale:
        """Tell a row; the columns are found from what was told of its run."""
        self._seq += 1
        seq = data.pop("seq", self._seq)
        known = self.book.runs.get(run or 0)
        where: dict[str, Any] = {
            "model": model if model is not None or known is None else known.model,
            "run": run,
            "port": known.ports[0] if known is not None and known.ports else None,
            "pid": known.pid if known is not None else None,
            "cause": self._seq - 1 or None,
            "at": at(self.now),
        }
        where |= {key: data.pop(key) for key in tuple(where) if key in data}
        values = {**_DATA.get(kind, {}), **data}
        if kind in ("run.evicting", "usage.noted"):
            values = {"order": tuple(self.book.lru)} | values
        row = SeenRow(seq=seq, kind=kind, data=values, **where)
        self.book.step, self.book.now = self.step + 1, self.now
        self.book.fold(row)
        self._rows.append(row)
        return self

    def define(self, model: str, **spec: Any) -> Tale:
        """Tell that a model was defined."""
        return self.row("model.defined", model, spec=SPEC | spec, spec_hash="h")

    def queue(self, model: str, run: int) -> Tale:
        """Tell that a run waits, at the end of the queue."""
        return self.row("run.queued", model, run, place=len(self.book.queue) + 1)

    def reserve(self, run: int, **data: Any) -> Tale:
        """Tell that a run has port and room: the port that was free longest."""
        return self.row("run.reserved", run=run, **{"port": next(iter(self.book.free))} | data)

    def launch(self, run: int) -> Tale:
        """Tell that a run is about to be spawned, and let it begin in the world."""
        self.row("run.launching", run=run, nonce=f"n{run}").look()
        self.serve(run)
        return self.row("run.launched", run=run, pid=1000 + run).look()

    def serve(self, run: int, **changes: Any) -> Tale:
        """Let the server of a run live."""
        told = self.book.runs[run]
        server = SeenServer(
            model=told.model,
            run=run,
            token=f"{LOG_ID}:{run}:n{run}",
            leader=1000 + run,
            leader_alive=True,
            others=(),
            ports=told.ports,
            memory_bytes=0,
        )
        self.servers[run] = replace(server, **changes)
        return self

    def load(self, model: str, run: int, **reserved: Any) -> Tale:
        """Tell a whole load, until it is ready."""
        self.queue(model, run).reserve(run, **reserved).look()
        return self.launch(run).row("run.ready", run=run).look()

    def end(self, run: int, **released: Any) -> Tale:
        """Tell that a stopping run exits, leaves nothing, and is released."""
        self.servers.pop(run, None)
        self.row("run.exited", run=run).row("run.swept", run=run)
        return self.row("run.released", run=run, **released)

    def stop(self, run: int, reason: str = "operator") -> Tale:
        """Tell a whole stop."""
        self.row("run.draining", run=run, reason=reason)
        return self.row("run.stopping", run=run, reason=reason).look().end(run).look()

    # --- callers ---

    def call(self, verb: str, *names: str, caller: int = 1, **more: Any) -> SeenCall:
        """Let a caller ask for something."""
        values = {"deadline": self.now + 60.0, "heard": True} | more
        call = SeenCall(caller=caller, verb=verb, names=names, asked_at=self.now, **values)
        self.calls.append(call)
        return call

    def answer(self, call: SeenCall, error: str = "", **more: Any) -> Tale:
        """Let a call come to its end."""
        self.calls.remove(call)
        asked = {name: getattr(call, name) for name in ("caller", "verb", "names", "asked_at")}
        self._answers.append(
            SeenAnswer(**asked, answered_at=self.now, error=error, options=call.options, **more)
        )
        return self

    def ask(self, verb: str, *names: str, error: str = "", **more: Any) -> Tale:
        """Let a caller ask, and be answered in the same step."""
        return self.answer(self.call(verb, *names, **more), error)

    def held(self, run: int, caller: int = 1, **more: Any) -> SeenLease:
        """Return a lease of a run."""
        told = self.book.runs[run]
        values: dict[str, Any] = {"model": told.model, "port": told.ports[0], "lost": False}
        return SeenLease(caller=caller, run=run, **values | more)

    def lease(self, name: str, run: int, caller: int = 1, **more: Any) -> Tale:
        """Let a caller have a lease of a run."""
        lease = self.held(run, caller, **more)
        self.leases.append(lease)
        return self.answer(self.call("lease", name, caller=caller), leases=(lease,))

    def release(self, run: int) -> Tale:
        """Let every lease of a run end."""
        self.leases = [lease for lease in self.leases if lease.run != run]
        return self

    # --- showing ---

    def look(self, seconds: float = 0.0, **changes: Any) -> Tale:
        """Show a step to the judge, which raises Wrong for what must not be."""
        self.judge.look(self.sight(seconds, **changes))
        return self

    def wrong(self, seconds: float = 0.0, **changes: Any) -> str:
        """Show a step that must be refused, and return what the judge says of it."""
        try:
            self.look(seconds, **changes)
        except Wrong as wrong:
            return "\n".join(wrong.sentences)
        return "nothing"

    def sight(self, seconds: float = 0.0, **changes: Any) -> Sight:
        """Return the next step as it is seen."""
        self.step += 1
        self.now += seconds
        rows, self._rows = self._rows, []
        answers, self._answers = self._answers, []
        seen = Sight(
            step=self.step,
            what="told",
            now=self.now,
            owner=self.owner,
            open=self.open,
            rows=rows,
            answers=answers,
            servers=list(self.servers.values()),
            leases=tuple(self.leases),
            calls=tuple(self.calls),
            published=published(self.book) if self.open else None,
            calm=self.calm,
        )
        return replace(seen, **changes)


def published(book: Book) -> dict[str, Any]:
    """Return what a service with these rows would publish."""
    models = [
        {
            "name": m.name,
            "status": m.status,
            "pinned": m.pinned,
            "attempts": m.attempts,
            "until": m.until,
            "run": m.runs[0] if m.runs else None,
            "next_run": m.runs[1] if len(m.runs) > 1 else None,
        }
        for m in book.models.values()
    ]
    fields = ("run", "model", "stage", "ports", "room_bytes", "pid", "nonce", "exited", "swept")
    runs = [
        {name: getattr(run, name) for name in (*fields, "reason")} for run in book.runs.values()
    ]
    plain = ("seq", "open", "max_loaded", "memory_limit", "min_residency_s", "next_run")
    return {name: getattr(book, name) for name in plain} | {
        "models": models,
        "runs": runs,
        "names": dict(book.names),
        "lru": tuple(book.lru),
        "queue": tuple(book.queue),
        "free": list(book.free),
        "held": list(book.held.items()),
    }
