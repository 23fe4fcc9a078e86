"""The judge's own account of the log: what the rows add up to, by the design and not the core.

Whatever a row says that cannot be is a sentence in `wrong`; the account goes on as well as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.sight import SeenRow

HOLDING = ("reserved", "launching", "loading", "ready", "draining", "stopping", "stop_failed")
"""Stages in which a run has its ports and its room."""
LENT = ("ready", "draining")
"""Stages in which somebody may hold a lease."""
FOR_ROOM = ("room", "memory", "idle", "limits")
"""Why a run is stopped that nobody asked to stop."""

# Which kinds may come in which stages, and where they lead; "" is before the first of them.
_FOLLOWS: dict[str, tuple[tuple[str, ...], str]] = {
    "run.fetching": (("",), "fetching"),
    "run.fetched": (("fetching",), "fetching"),
    "run.queued": (("", "fetching"), "queued"),
    "run.abandoned": (("fetching", "queued"), "ended"),
    "run.reserved": (("queued",), "reserved"),
    "run.launching": (("reserved",), "launching"),
    "run.launched": (("launching", "stopping"), "loading"),
    "run.ready": (("loading",), "ready"),
    "run.evicting": (("ready",), "draining"),
    "run.draining": (("ready", "draining"), "draining"),
    "run.reopened": (("draining",), "ready"),
    "run.stopping": (
        ("launching", "loading", "ready", "draining", "stopping", "stop_failed"),
        "stopping",
    ),
    "run.exited": (("loading", "ready", "draining", "stopping", "stop_failed"), "stopping"),
    "run.swept": (("stopping", "stop_failed"), "stopping"),
    "run.stop_failed": (("stopping",), "stop_failed"),
    "run.released": (("reserved", "launching", "stopping"), "ended"),
    "run.adopted": (("loading", "ready"), "same"),
}


@dataclass(slots=True)
class Run:
    """One attempt, as the rows tell it."""

    run: int
    model: str
    step: int
    """When the judge saw its first row."""
    now: float
    stage: str = ""
    since: int = 0
    """The step at which it came to this stage ..."""
    since_now: float = 0.0
    """... and the time."""
    ports: tuple[int, ...] = ()
    room_bytes: int | None = None
    nonce: str = ""
    pid: int | None = None
    boot_id: str = ""
    exited: bool = False
    swept: bool = False
    broke_step: int | None = None
    """When it was known to have failed ..."""
    broke_stage: str = ""
    """... and at what."""
    gone_step: int | None = None
    """When it began to drain or to stop: whoever comes now waits for another one."""
    reload: bool = False
    """It drained or stopped so that it is loaded anew, whatever came of it then."""
    reason: str = ""
    """Why it drains or stops."""
    for_run: int | None = None
    """For whom it gives way."""
    ready_at: str = ""
    ready_now: float | None = None
    was_ready: bool = False
    asked: bool = True
    """False when it was begun to restart what had ended."""
    overtaken: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class Model:
    """A defined model, as the rows tell it."""

    name: str
    spec: Mapping[str, Any]
    spec_hash: str = ""
    pinned: bool = False
    status: str = "stopped"
    attempts: int = 0
    until: str = ""
    """When it may be tried again."""
    runs: list[int] = field(default_factory=list[int])
    """Its open runs, oldest first."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.spec["aliases"])


def expand(ranges: Iterable[Iterable[int]]) -> list[int]:
    """Return the ports of inclusive ranges."""
    return [port for first, last in ranges for port in range(first, last + 1)]


class Book:
    """Folds rows. `ends` are the runs that ended, with how."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.seq = 0
        self.at = ""
        self.log_id = ""
        self.opened = 0
        self.kept: set[int] = set()
        """Runs that the last close left running."""
        self.open = False
        self.pool: set[int] = set()
        self.max_loaded = 1
        self.memory_limit: int | None = None
        self.min_residency_s = 0.0
        self.models: dict[str, Model] = {}
        self.names: dict[str, str] = {}
        self.runs: dict[int, Run] = {}
        self.next_run = 1
        self.ends: dict[int, str] = {}
        self.began: dict[int, int] = {}
        """Every run to the step that saw its first row."""
        self.last: Run | None = None
        """The run that ended last."""
        self.gave_way: dict[int, int | None] = {}
        """Runs that were to go for room, to the run that was to have it."""
        self.lru: list[int] = []
        self.queue: list[int] = []
        self.free: dict[int, None] = {}
        self.held: dict[int, int] = {}
        self.step = 0
        self.now = 0.0
        self._folds: dict[str, Callable[[SeenRow], None]] = {
            kind: getattr(self, "_" + kind.replace(".", "_"))
            for kind in (
                *("log.created", "service.opened", "service.closed", "limits.set"),
                *("model.defined", "model.removed", "model.pinned", "model.unpinned"),
                *("model.held", "model.backoff", "model.failed", "model.reset"),
                *("run.reserved", "run.launching", "run.launched", "run.ready", "run.adopted"),
                *("run.queued", "run.abandoned", "run.exited", "run.swept", "run.released"),
                *("run.evicting", "run.draining", "run.stopping", "run.reopened"),
                *("port.blocked", "usage.noted"),
            )
        }

    def complain(self, row: SeenRow, sentence: str) -> None:
        """Note what cannot be."""
        self.wrong.append(f"row {row.seq} {row.kind}: {sentence}")

    def holding(self) -> Iterator[Run]:
        """Yield the runs that have ports and room."""
        return (run for run in self.runs.values() if run.stage in HOLDING)

    # --- folding ---

    def fold(self, row: SeenRow) -> None:
        """Take one row into account."""
        if row.seq != self.seq + 1:
            self.complain(row, f"it follows row {self.seq}: rows are lost or written twice")
        if row.cause is not None and not 1 <= row.cause < row.seq:
            self.complain(row, f"its cause {row.cause} is no earlier row")
        if row.at < self.at:
            self.complain(row, f"it is dated {row.at}, before the one before ({self.at})")
        self.seq, self.at = row.seq, row.at
        if row.run is not None and row.kind in _FOLLOWS:
            self._move(row, row.run)
        fold = self._folds.get(row.kind)
        if fold is not None:
            fold(row)

    def _move(self, row: SeenRow, number: int) -> None:
        stages, to = _FOLLOWS[row.kind]
        run = self.runs.get(number)
        if run is None:
            run = self._begin(row, number)
        if run.model != row.model:
            self.complain(row, f"run {number} is one of {run.model!r}, not of {row.model!r}")
        if run.stage not in stages:
            self.complain(row, f"it cannot come while run {number} is {run.stage or 'unknown'}")
        run.rows[row.kind] = run.rows.get(row.kind, 0) + 1
        if to != "same" and not (row.kind == "run.launched" and run.stage == "stopping"):
            if run.stage != to:
                run.since, run.since_now = self.step, self.now
            run.stage = to
            if to in ("draining", "stopping"):
                run.gone_step = self.step if run.gone_step is None else run.gone_step
            else:
                run.gone_step = None
        if row.data.get("stage") and run.broke_step is None:
            run.broke_step, run.broke_stage = self.step, row.data["stage"]

    def _begin(self, row: SeenRow, number: int) -> Run:
        if number in self.ends:
            self.complain(row, f"run {number} has ended before ({self.ends[number]})")
        elif number != self.next_run:
            self.complain(row, f"run {number} begins where {self.next_run} would be the next")
        self.next_run = max(self.next_run, number + 1)
        run = self.runs[number] = Run(number, row.model or "", self.step, self.now)
        self.began[number] = self.step
        model = self.models.get(run.model)
        if model is None:
            self.complain(row, f"run {number} is one of {row.model!r}, which is not defined")
            return run
        # A start makes an attempt; who waited for a run already waits for what takes its place.
        started = str(row.data.get("requested_by", "")).startswith("start(")
        replaced = self.last is not None and (self.last.model, self.last.since) == (
            model.name,
            self.step,
        )
        meant = started or model.runs or replaced
        if model.status == "held" or (model.status == "failed" and not meant):
            self.complain(row, f"run {number} begins while {model.name!r} is {model.status}")
        if any(
            self.runs[other].stage not in ("stopping", "stop_failed", "draining")
            for other in model.runs
        ):
            self.complain(row, f"run {number} begins beside {model.runs} of {model.name!r}")
        model.runs.append(number)
        return run

    def _finish(self, row: SeenRow, outcome: str) -> None:
        run = self.last = self.runs.pop(row.run or 0)
        self.ends[run.run] = outcome
        for queue in (self.queue, self.lru):
            if run.run in queue:
                queue.remove(run.run)
        model = self.models.get(run.model)
        if model is not None and run.run in model.runs:
            model.runs.remove(run.run)

    # --- log and service ---

    def _log_created(self, row: SeenRow) -> None:
        self.log_id = row.data["log_id"]

    def _service_opened(self, row: SeenRow) -> None:
        self.opened += 1
        self.kept = set()
        self.open = True
        ports = expand(row.data["ports"])
        self.pool = set(ports)
        kept = {port: None for port in self.free if port in self.pool}
        new = {port: None for port in ports if port not in kept and port not in self.held}
        self.free = kept | new
        self._limits_set(row)

    def _service_closed(self, row: SeenRow) -> None:
        self.open = False
        kept = self.kept = set(row.data["kept"])
        left = {run.run for run in self.runs.values() if run.stage != "stopping"}
        if row.data["reason"] == "keep" and not kept <= left:
            self.complain(row, f"it keeps {sorted(kept - left)}, which do not run")

    def _limits_set(self, row: SeenRow) -> None:
        self.max_loaded = row.data["max_loaded"]
        self.memory_limit = row.data["memory_limit"]
        self.min_residency_s = row.data["min_residency_s"]

    # --- models ---

    def _model_defined(self, row: SeenRow) -> None:
        name, spec = row.model or "", row.data["spec"]
        model = self.models.get(name)
        for each in (name, *spec["aliases"]):
            if self.names.get(each, name) != name:
                self.complain(row, f"the name {each!r} belongs to {self.names[each]!r}")
        if model is None:
            model = self.models[name] = Model(name, spec)
        else:
            self._forget_names(name)
        model.spec, model.spec_hash = spec, row.data["spec_hash"]
        self.names |= dict.fromkeys(model.names, name)

    def _forget_names(self, model: str) -> None:
        for each in [each for each, owner in self.names.items() if owner == model]:
            del self.names[each]

    def _model_removed(self, row: SeenRow) -> None:
        model = self.models.pop(row.model or "", None)
        if model is None:
            self.complain(row, f"{row.model!r} is not defined")
            return
        if model.runs:
            self.complain(row, f"its runs {model.runs} have not ended")
        self._forget_names(model.name)

    def _model(self, row: SeenRow) -> Model:
        model = self.models.get(row.model or "")
        if model is None:
            self.complain(row, f"{row.model!r} is not defined")
            return Model(row.model or "", {"aliases": (), "crash_budget": 0, "memory": None})
        return model

    def _model_pinned(self, row: SeenRow) -> None:
        self._model(row).pinned = True

    def _model_unpinned(self, row: SeenRow) -> None:
        self._model(row).pinned = False

    def _model_held(self, row: SeenRow) -> None:
        self._model(row).status = "held"

    def _model_reset(self, row: SeenRow) -> None:
        model = self._model(row)
        model.status, model.attempts, model.until = "stopped", 0, ""

    def _model_backoff(self, row: SeenRow) -> None:
        self._failed_start(row, "backoff")

    def _model_failed(self, row: SeenRow) -> None:
        self._failed_start(row, "failed")

    def _failed_start(self, row: SeenRow, status: str) -> None:
        model, run = self._model(row), row.run or 0
        outcome = self.ends.get(run, "")
        if not outcome.startswith("failed") or outcome == "failed: port":
            self.complain(row, f"run {run} counts as a failure, but ended as {outcome!r}")
        if row.data["attempts"] not in (model.attempts + 1, 1):
            self.complain(row, f"attempt {row.data['attempts']} follows {model.attempts}")
        model.attempts, model.until = row.data["attempts"], row.data.get("until", "")
        if model.status != "held":  # what was stopped on purpose stays so
            model.status = status
        spent = model.attempts >= model.spec["crash_budget"]
        if spent != (status == "failed"):
            budget = model.spec["crash_budget"]
            self.complain(row, f"{model.attempts} failures, the budget is {budget}")

    # --- runs ---

    def _run_queued(self, row: SeenRow) -> None:
        self.queue.append(row.run or 0)
        self.runs[row.run or 0].asked = row.data.get("requested_by") != "restart"
        if row.data["place"] != len(self.queue):
            self.complain(row, f"place {row.data['place']} in a queue of {len(self.queue)}")

    def _run_abandoned(self, row: SeenRow) -> None:
        self._finish(row, row.data["outcome"])

    def _run_reserved(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.ports = (row.port or 0, *row.data["more_ports"])
        run.room_bytes = row.data["room_bytes"]
        self._take_ports(row, run)
        if run.run in self.queue:
            self.queue.remove(run.run)
        self._check_room(row, run)
        for other in row.data["displaced"]:
            if self.gave_way.get(other) != run.run:
                self.complain(row, f"it displaced {other}, which did not give way for it")
        others = [o.run for o in self.holding() if o.model == run.model and o is not run]
        if others:
            self.complain(row, f"{run.model!r} has run {others[0]} holding already")

    def _take_ports(self, row: SeenRow, run: Run) -> None:
        for port in run.ports:
            if port in self.held:
                self.complain(row, f"port {port} is held by run {self.held[port]}")
            elif port not in self.free:
                self.complain(row, f"port {port} is not in the pool")
            else:
                longest = next(iter(self.free))
                if port != longest:
                    self.complain(row, f"port {port} was taken before {longest}, free for longer")
                del self.free[port]
            self.held[port] = run.run

    def _check_room(self, row: SeenRow, run: Run) -> None:
        declared = self._model(row).spec["memory"]
        if declared is not None and run.room_bytes != declared:
            self.complain(row, f"it takes {run.room_bytes} bytes, {declared} are declared")
        holding = list(self.holding())
        if len(holding) > self.max_loaded:
            self.complain(row, f"{len(holding)} runs hold room for {self.max_loaded}")
        limit = self.memory_limit
        if limit is None:
            return
        total = sum(limit if r.room_bytes is None else r.room_bytes for r in holding)
        if total > limit and len(holding) > 1:
            self.complain(row, f"{total} bytes are held of {limit}")

    def _run_launching(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.nonce = row.data["nonce"]
        if not run.nonce:
            self.complain(row, "it has no nonce")
        self._same_port(row, run)

    def _same_port(self, row: SeenRow, run: Run) -> None:
        if (row.port,) != run.ports[:1]:
            self.complain(row, f"run {run.run} has ports {run.ports}, not {row.port}")

    def _run_launched(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.pid, run.boot_id = row.pid, row.data["boot_id"]
        self._same_port(row, run)

    def _run_ready(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.ready_at, run.ready_now, run.was_ready = row.at, self.now, True
        self._same_port(row, run)
        self.lru.append(run.run)
        model = self._model(row)
        model.status, model.until = "stopped", ""

    def _run_adopted(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        if row.pid != run.pid:
            self.complain(row, f"pid {row.pid} is not that of its launch ({run.pid})")
        if row.data["state"] != run.stage:
            self.complain(row, f"adopted as {row.data['state']}, but it was {run.stage}")

    def _run_evicting(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.reason, run.for_run = row.data["reason"], row.data["for_run"]
        self.gave_way[run.run] = run.for_run

    def _run_draining(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.reason, run.for_run = row.data["reason"], None
        run.reload = run.reason == "reload"
        self.gave_way.pop(run.run, None)

    def _run_reopened(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.reason, run.for_run, run.reload = "", None, False
        self.gave_way.pop(run.run, None)

    def _run_stopping(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        run.reason = row.data["reason"]
        run.reload = run.reload or run.reason == "reload"
        self._leave_order(run)

    def _leave_order(self, run: Run) -> None:
        if run.run in self.lru:
            self.lru.remove(run.run)

    def _run_exited(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        if run.exited:
            self.complain(row, "its leader exits a second time")
        run.exited = True
        if not row.data["wanted"]:
            run.reason = "exited"
        self._leave_order(run)

    def _run_swept(self, row: SeenRow) -> None:
        self.runs[row.run or 0].swept = True

    def _run_released(self, row: SeenRow) -> None:
        run = self.runs[row.run or 0]
        self._same_port(row, run)
        launched = run.rows.get("run.launched", 0)
        if launched and not run.exited:
            self.complain(row, "no exit of its leader was recorded")
        if launched and not run.swept:
            self.complain(row, "no end of its tree was recorded")
        for port in run.ports:
            if self.held.get(port) == run.run:
                del self.held[port]
                if port in self.pool:
                    self.free[port] = None
        if row.data["outcome"] == "ok" and run.model in self.models:
            self.models[run.model].attempts = 0
        self._finish(row, row.data["outcome"])

    # --- the world and the callers ---

    def _port_blocked(self, row: SeenRow) -> None:
        if row.port in self.free:  # it is as if handed out and given back: the last to be tried
            del self.free[row.port]
            self.free[row.port] = None

    def _usage_noted(self, row: SeenRow) -> None:
        order = list(row.data["order"])
        if sorted(order) != sorted(self.lru):
            self.complain(row, f"order {order}, but {self.lru} are ready")
        self.lru = order
