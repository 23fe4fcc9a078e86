"""A log as a picture's content: which run was in which state when, and what stood out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from moorage.core import events as ev
from moorage.core.lifecycle import HOLDING, Stage
from moorage.core.state import Run, State

Shown = Literal["fetching", "queued", "loading", "ready", "draining", "stopping", "stuck"]
MarkKind = Literal[
    "eviction",
    "undone",
    "crash",
    "failure",
    "stuck",
    "blocked",
    "adopted",
    "reaped",
    "opened",
    "closed",
    "killed",
]

SHOWN: Final[dict[Stage, Shown]] = {
    Stage.FETCHING: "fetching",
    Stage.QUEUED: "queued",
    Stage.RESERVED: "loading",
    Stage.LAUNCHING: "loading",
    Stage.LOADING: "loading",
    Stage.READY: "ready",
    Stage.DRAINING: "draining",
    Stage.STOPPING: "stopping",
    Stage.STOP_FAILED: "stuck",
}
"""What a stage is called in the picture; a run that has ended is not in it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a run in one state; `start` and `end` are microseconds since the picture's."""

    shown: Shown
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A run. `held` is when it took its ports, None when it never did within the picture.

    `ended` is False when it goes on after the picture's end, or nobody knows how it ended.
    """

    run: int
    model: str
    spans: tuple[Span, ...]
    requested_by: str
    ports: tuple[int, ...] = ()
    pid: int | None = None
    held: int | None = None
    ended: bool = False
    outcome: str = ""
    error: str = ""
    first_seq: int = 0
    last_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that stands out at one moment; `text` says what."""

    kind: MarkKind
    seq: int
    at: int
    text: str
    run: int | None = None
    model: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a picture shows, from `start` to `end`, both UTC text.

    `events` is how many entries were looked at, `left_out` how many runs lie wholly outside.
    """

    log_id: str
    start: str
    end: str
    length: int
    models: tuple[str, ...]
    ports: tuple[int, ...]
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    events: int
    left_out: int


Fold = Callable[[State, ev.Entry], None]


def build(entries: Iterable[ev.Entry], fold: Fold, *, begin: str = "", end: str = "") -> Timeline:
    """Return the timeline of a log between two times, by default all of it.

    `fold` folds an entry into a state; what it raises comes through.
    """
    builder = _Builder(fold)
    for entry in entries:
        if end and entry.at > end:
            break
        builder.add(entry)
    return builder.finish(begin, end)


@dataclass(slots=True)
class _Open:
    """A run that has not ended: its spans so far as (state, start), in UTC text."""

    run: Run
    spans: list[tuple[Shown, str]] = field(default_factory=list[tuple[Shown, str]])
    held: str = ""


@dataclass(frozen=True, slots=True)
class _Done:
    open: _Open
    end: str
    outcome: str | None
    error: str
    last_seq: int


class _Builder:
    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._state = State()
        self._open: dict[int, _Open] = {}
        self._done: list[_Done] = []
        self._marks: list[tuple[str, MarkKind, int, str, Any]] = []
        self._first = ""
        self._latest = ""
        self._crashed: set[int] = set()

    def add(self, entry: ev.Entry) -> None:
        """Fold one entry and note what changed."""
        was_open = self._state.open
        self._fold(self._state, entry)
        if entry.at < self._latest:
            # The clock was set back. Drawn as if it had stood still, as nothing ends before it
            # begins, and a picture that ends where the clock is now would not show what was.
            entry = entry._replace(at=self._latest)
        self._latest = entry.at
        self._first = self._first or entry.at
        event: Any = entry.event
        told = _describe(event, was_open)
        if isinstance(event, ev.LogContinued):
            self._take_over(entry)
        number: int | None = getattr(event, "run", None)
        if told is not None and not (told[0] == "failure" and number in self._crashed):
            self._marks.append((entry.at, told[0], entry.seq, told[1], event))
        if told is not None and told[0] == "crash" and number is not None:
            self._crashed.add(number)  # its failure is the same thing again
        if number is not None:
            self._follow(entry, number)

    def _take_over(self, entry: ev.Entry) -> None:
        """Begin the runs that a segment found open, where the older ones are missing."""
        for run in self._state.runs.values():
            if run.run not in self._open:
                held = entry.at if run.stage in HOLDING else ""
                self._open[run.run] = _Open(run, [(SHOWN[run.stage], entry.at)], held)

    def finish(self, begin: str, end: str) -> Timeline:
        """Return what was built, cut to the window."""
        start = max(begin, self._first) if self._first else begin
        last = self._latest if not end else max(min(end, self._latest), start)
        if self._first and last < start:
            last = start
        scale = _Scale(start, last)
        done = [*self._done, *self._unfinished(last)]
        bars = [bar for bar in (_bar(one, scale) for one in done) if bar is not None]
        bars.sort(key=lambda bar: (bar.spans[0].start, bar.run))
        marks = [self._mark(mark, scale) for mark in self._marks if start <= mark[0] <= last]
        return Timeline(
            log_id=self._state.log_id,
            start=start,
            end=last,
            length=scale.length,
            models=_in_order(bar.model for bar in bars),
            ports=tuple(sorted(_ports(bars, marks))),
            bars=tuple(bars),
            marks=tuple(marks),
            events=self._state.seq,
            left_out=len(done) - len(bars),
        )

    def _follow(self, entry: ev.Entry, number: int) -> None:
        run = self._state.runs.get(number)
        if run is None:
            self._close(entry, number)
            return
        found = self._open.setdefault(number, _Open(run))
        found.run = run
        shown = SHOWN[run.stage]
        if not found.spans or found.spans[-1][0] != shown:
            found.spans.append((shown, entry.at))
        if run.stage in HOLDING and not found.held:
            found.held = entry.at

    def _close(self, entry: ev.Entry, number: int) -> None:
        found = self._open.pop(number, None)
        event: Any = entry.event
        if found is not None:
            error = event.error or found.run.error
            self._done.append(_Done(found, entry.at, event.outcome, error, entry.seq))

    def _unfinished(self, last: str) -> list[_Done]:
        return [
            _Done(found, last, None, found.run.error, found.run.last_seq)
            for found in self._open.values()
        ]

    def _mark(self, mark: tuple[str, MarkKind, int, str, Any], scale: _Scale) -> Mark:
        at, kind, seq, text, event = mark
        return Mark(
            kind=kind,
            seq=seq,
            at=scale.place(at),
            text=text,
            run=getattr(event, "run", None),
            model=getattr(event, "model", None),
            port=getattr(event, "port", None),
        )


_NEVER: Final = "0001-01-01T00:00:00Z"
"""Where a picture without a start begins: its log is empty, and nothing is placed on it."""


class _Scale:
    """Places UTC text on the picture, in microseconds since its start."""

    def __init__(self, start: str, end: str) -> None:
        self._start = _moment(start or _NEVER)
        self.length = self.place(end) if end else 0
        self.start_text, self.end_text = start, end

    def place(self, at: str) -> int:
        return (_moment(at) - self._start) // timedelta(microseconds=1)


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at)


def _bar(done: _Done, scale: _Scale) -> Bar | None:
    """Return a run as a bar, cut to the picture; None when it lies outside."""
    run, starts = done.open.run, done.open.spans
    if done.end < scale.start_text or starts[0][1] > scale.end_text:
        return None
    ends = [at for _, at in starts[1:]] + [done.end]
    spans = tuple(
        Span(shown, max(0, scale.place(at)), min(scale.length, scale.place(until)))
        for (shown, at), until in zip(starts, ends, strict=True)
        if until >= scale.start_text
    )
    held = max(0, scale.place(done.open.held)) if done.open.held else None
    return Bar(
        run=run.run,
        model=run.model,
        spans=spans,
        requested_by=run.requested_by,
        ports=run.ports,
        pid=run.pid,
        held=held,
        ended=done.outcome is not None,
        outcome=done.outcome or "",
        error=done.error,
        first_seq=run.first_seq,
        last_seq=done.last_seq,
    )


def _ports(bars: Iterable[Bar], marks: Iterable[Mark]) -> set[int]:
    found = {port for bar in bars for port in bar.ports}
    return found | {mark.port for mark in marks if mark.kind == "blocked" and mark.port}


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _describe(event: ev.Event, was_open: bool) -> tuple[MarkKind, str] | None:
    """Return what stands out about an event, None for the many that are as usual."""
    if isinstance(event, ev.ServiceOpened):
        who = f"opened by pid {event.pid} on {event.host}, Moorage {event.program}"
        return (
            ("killed", f"{who}; its last owner had not closed it") if was_open else ("opened", who)
        )
    found = _NOTABLE.get(type(event))
    return found(event) if found is not None else None


def _closed(event: ev.ServiceClosed) -> tuple[MarkKind, str]:
    kept = f", {len(event.kept)} runs kept" if event.kept else ""
    return "closed", f"closed ({event.reason}{kept})"


def _evicting(event: ev.RunEvicting) -> tuple[MarkKind, str]:
    reason = f"{event.model} had to go for {event.reason}"
    if event.for_model is not None:
        reason = f"{event.model} had to make {event.reason} for {event.for_model}"
        reason += f" (run {event.for_run})"
    skipped = ", ".join(f"run {run} {why}" for run, why in event.skipped)
    busy = f"; leases: {event.leases}" if event.leases else ""
    return "eviction", reason + busy + (f"; passed over: {skipped}" if skipped else "")


def _reopened(event: ev.RunReopened) -> tuple[MarkKind, str]:
    return "undone", f"ready again: {event.reason}"


def _exited(event: ev.RunExited) -> tuple[MarkKind, str] | None:
    if event.wanted:
        return None
    how = f" with status {event.code}" if event.code is not None else ""
    how = f" by signal {event.signal}" if event.signal is not None else how
    return "crash", f"{event.model} exited by itself{how}: {event.error}".rstrip(": ")


def _ended(event: ev.RunReleased | ev.RunAbandoned) -> tuple[MarkKind, str] | None:
    if not event.outcome.startswith("failed"):
        return None
    return "failure", f"{event.outcome.removeprefix('failed: ')}: {event.error}".rstrip(": ")


def _stop_failed(event: ev.RunStopFailed) -> tuple[MarkKind, str]:
    pids = ", ".join(map(str, event.pids))
    return "stuck", f"could not be stopped (pids {pids}): {event.error}"


def _blocked(event: ev.PortBlocked) -> tuple[MarkKind, str]:
    who = f"{event.command} (pid {event.pid})" if event.pid else "a stranger"
    return "blocked", f"port {event.port} was taken by {who}"


def _adopted(event: ev.RunAdopted) -> tuple[MarkKind, str]:
    return "adopted", f"taken over as {event.state}, pid {event.pid}"


def _reaped(event: ev.ProcessReaped) -> tuple[MarkKind, str]:
    return "reaped", f"killed process {event.pid} ({event.command}): {event.reason}"


_NOTABLE: Final[dict[type[ev.Event], Callable[[Any], tuple[MarkKind, str] | None]]] = {
    ev.ServiceClosed: _closed,
    ev.RunEvicting: _evicting,
    ev.RunReopened: _reopened,
    ev.RunExited: _exited,
    ev.RunReleased: _ended,
    ev.RunAbandoned: _ended,
    ev.RunStopFailed: _stop_failed,
    ev.PortBlocked: _blocked,
    ev.RunAdopted: _adopted,
    ev.ProcessReaped: _reaped,
}
