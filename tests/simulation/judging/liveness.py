"""Once faults stop, everything ends: no stage hangs, nothing is left, no row is one too many."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.judging.book import Book, Run
from simulation.judging.world import World
from simulation.sight import SeenRow, Sight

PASSING_S = {
    "fetching": 8 * 86_400.0,
    "reserved": 180.0,
    "launching": 180.0,
    "loading": 120.0,
    "stopping": 120.0,
    "stop_failed": 120.0,
    "draining": 120.0,
    "queued": 120.0,
}
"""How long a run may be in a stage when nothing keeps it there (beyond its own timeouts)."""
ROWS_A_RUN = 40
"""More rows a run, and an opening, are a loop."""
ROWS_A_CALL = 20
WANTS = ("lease", "lease_all", "start")


class Liveness:
    """Judges what should have happened by now."""

    def __init__(self, book: Book, world: World) -> None:
        self.book = book
        self.world = world
        self._calm_since: float | None = None
        self._owner = -1
        self._rows = 0
        self._allowed = 0
        self._asked = 0

    def see(self, sight: Sight) -> None:
        """Take over what bounds the rows of an opening; before its rows are folded."""
        if sight.owner != self._owner:
            self._owner = sight.owner
            self._rows = 0
            self._allowed = 100 + ROWS_A_RUN * (len(self.book.runs) + len(self.book.models))
        asked = len(sight.calls)
        self._allowed += ROWS_A_CALL * (max(asked - self._asked, 0) + len(sight.answers))
        self._asked = asked
        if not sight.calm:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = sight.now

    def after(self, row: SeenRow) -> Iterator[str]:
        """Count a row that was just folded."""
        if not row.kind.startswith(("run.", "model.backoff", "model.failed", "port.", "process.")):
            return  # what callers ask for, and do not ask for in a loop of ours
        self._rows += 1
        if row.kind == "run.exited" and not row.data["wanted"]:
            self._allowed += ROWS_A_CALL  # the crash budget bounds these
        run = self.book.runs.get(row.run or 0)
        if run is not None:
            times = run.rows.get(row.kind, 0)
            if times > ROWS_A_RUN + 4 * self.book.opened:
                yield f"run {run.run} has {times} rows {row.kind}"
        if self._rows > self._allowed:
            yield f"{self._rows} rows since the log was opened, for {self._allowed} that are due"

    def check(self, sight: Sight) -> Iterator[str]:
        """Judge a calm world."""
        if self._calm_since is None:
            return
        for run in self.book.runs.values():
            since = max(run.since_now, self._calm_since)
            limit = self._limit(run, sight)
            if limit is not None and sight.now > since + limit:
                yield (
                    f"run {run.run} of {run.model!r} is {run.stage} "
                    f"since {sight.now - since} s, which ends in {limit}"
                )
        if sight.end:
            if self.book.open:
                yield "the log does not end with service.closed"
            yield from self._left(sight)

    def _limit(self, run: Run, sight: Sight) -> float | None:
        spec = self.book.models[run.model].spec if run.model in self.book.models else {}
        limit = PASSING_S.get(run.stage)
        if limit is None or not sight.open or not sight.log_works or self._kept(run, sight):
            return None
        own = {"loading": "load_timeout_s", "stopping": "stop_timeout_s"}.get(run.stage, "")
        return limit + float(spec.get(own, 0.0))

    def _kept(self, run: Run, sight: Sight) -> bool:
        """Tell whether something keeps a run where it is."""
        match run.stage:
            case "stop_failed":
                return self.world.alive(run.run)
            case "draining":
                return any(x.run == run.run and not x.lost for x in sight.leases)
            case "queued":
                model = self.book.models.get(run.model)
                always = model is not None and model.spec["restart"] == "always"
                return always or self._wanted(run, sight)
            case _:
                return False

    def _wanted(self, run: Run, sight: Sight) -> bool:
        names = self.book.names
        return any(
            call.verb in WANTS and any(names.get(name) == run.model for name in call.names)
            for call in sight.calls
        )

    def _left(self, sight: Sight) -> Iterator[str]:
        book = self.book
        kept = {run.run for run in book.runs.values() if self._stays(run)}
        for run in book.runs.values():
            if run.run not in kept:
                yield f"run {run.run} of {run.model!r} is left {run.stage}"
        for port, number in book.held.items():
            if number not in kept:
                yield f"port {port} is left held by run {number}"
        for server in self.world.live.values():
            if server.run not in kept:
                yield f"a tree of run {server.run} is left: {server.leader}, {server.others}"
        for call in sight.calls:
            yield f"{call.verb}({', '.join(call.names)}) of caller {call.caller} is not answered"
        held = [lease for lease in sight.leases if not lease.lost]
        yield from (f"caller {lease.caller} still holds run {lease.run}" for lease in held)

    def _stays(self, run: Run) -> bool:
        if run.run in self.book.kept:
            return True
        return run.stage == "stop_failed" and self.world.alive(run.run)
