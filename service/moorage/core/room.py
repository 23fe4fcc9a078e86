"""Room: who is admitted, who is evicted or drained for whom, and who never can be.

One pass looks at the queue in order and reserves, evicts, drains and reopens until nothing more
can be done. An entry that fits once the stops under way have ended keeps its claim on that room;
the pass goes on behind it with what is left. Behind an entry that has to wait for leases it ends,
so nobody is overtaken for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from moorage.core import events as ev
from moorage.core.decide import reopen
from moorage.core.draft import Cause, Draft
from moorage.core.lifecycle import Stage
from moorage.core.space import (
    FOR_ROOM,
    NOTHING,
    Space,
    could_ever_fit,
    need,
    need_bytes,
    room_left,
    taken,
    total,
    who_holds,
)
from moorage.core.state import Run, State

KEPT = "kept for an older request"
LEASED = "leased"
SPARE = "its room is not needed"

Why = Literal["room", "memory", "idle", "limits"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What was seen of a ready run.

    `leases` held now, `granted` ever, monotonic times of last use and of readiness.
    """

    leases: int
    used_at: float
    ready_at: float
    granted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a decision about room looks at beside the state.

    `kept` are runs a queue entry must not displace (by its run), `spared` pairs of (victim,
    entry) whose drain was undone while the same leases stand, `blocked` ports on which strangers
    listen, `immobile` entries that may not evict anybody and wait where others are refused
    (restarts nobody asked for), `unproven` runs that were adopted and not seen to answer yet.
    """

    now: float
    usage: Mapping[int, Usage]
    kept: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    spared: frozenset[tuple[int, int]] = frozenset()
    blocked: Callable[[int], ev.PortBlocked | None] = lambda _port: None
    immobile: frozenset[int] = frozenset()
    unproven: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A queue entry that can never be admitted as things stand; it was abandoned."""

    run: int
    model: str
    why: Literal["room", "ports"]
    holders: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """What a pass left open: entries that never fit, and when to look again (monotonic)."""

    refused: list[NoRoom] = field(default_factory=list[NoRoom])
    look_at: float | None = None

    def look_again(self, at: float) -> None:
        """Keep the earliest time to look again."""
        self.look_at = at if self.look_at is None else min(self.look_at, at)


def lru_order(state: State, usage: Mapping[int, Usage]) -> tuple[int, ...]:
    """Return ready and draining runs, least recently used first, as seen."""
    at = {run: place for place, run in enumerate(state.lru)}

    def key(run: int) -> tuple[float, int]:
        seen = usage.get(run)  # None: it has only just become ready
        return (seen.used_at if seen else float("inf"), at[run])

    return tuple(sorted(state.lru, key=key))


# --- the pass ---


class _Pass:
    def __init__(self, draft: Draft, observed: Observed) -> None:
        self.draft = draft
        self.observed = observed
        self.outcome = Outcome()
        self.order = lru_order(draft.state, observed.usage)
        self.wanted: set[int] = set()  # runs whose drain for room still has a reason
        self.noted = False
        self._passed: set[int] = set()  # entries that hold up nobody behind them

    @property
    def state(self) -> State:
        return self.draft.state

    def run(self) -> Outcome:
        state = self.state
        real = room_left(state)
        coming = total(taken(state, r) for r in state.in_stage(Stage.STOPPING))
        over = not (real + coming).holds(NOTHING)
        fitting = self._fitting()  # pins may keep it over for ever: who cannot fit hears it now
        if over:
            self._converge(NOTHING - (real + coming))
        else:
            self._admit(fitting, real, real + coming)
        self._undo_drains()
        return self.outcome

    def _admit(self, fitting: Sequence[int], real: Space, virtual: Space) -> None:
        for number in fitting:
            run = self.state.runs[number]
            wanted = need(self.state, run.model)
            if virtual.holds(wanted):
                if real.holds(wanted) and not self._reserve(run):
                    if number not in self.state.runs or number in self._passed:
                        continue
                    return
            else:
                made = self._make_room(run, wanted - virtual)
                if made is None and number in self._passed:
                    continue
                if made is None:
                    return
                virtual += made
            real, virtual = real - wanted, virtual - wanted

    def _fitting(self) -> list[int]:
        """Return the queue, without those that have to wait for their model's former run.

        Those that nobody asked for come last.
        """
        fitting: list[int] = []
        for number in self.state.queue:
            name = self.state.runs[number].model
            if self.state.models[name].run != number:
                continue
            if could_ever_fit(self.state, name):
                fitting.append(number)
            elif number not in self.observed.immobile:  # nobody is there to be refused
                self._refuse(self.state.runs[number], "room", who_holds(self.state))
        # Else one that may evict nobody would take the room that was made for another.
        return sorted(fitting, key=lambda number: number in self.observed.immobile)

    def _refuse(self, run: Run, why: Literal["room", "ports"], holders: tuple[str, ...]) -> None:
        held = ", ".join(holders) or "the limits alone"
        self.draft.emit(
            ev.RunAbandoned(
                model=run.model, run=run.run, outcome="refused", error=f"no {why}, held by {held}"
            )
        )
        self.outcome.refused.append(NoRoom(run.run, run.model, why, holders))

    def _reserve(self, run: Run) -> bool:
        wanted = self.state.models[run.model].spec.ports
        ports, blocked = self._free_ports(wanted)
        if len(ports) < wanted and run.run in self.observed.immobile:
            self._passed.add(run.run)  # and says nothing of it: it may look again and again
            return False
        for found in blocked:
            self.draft.emit(found, run.last_seq)
        if len(ports) < wanted:
            if not any(self.state.in_stage(Stage.STOPPING)):
                self._refuse(run, "ports", _port_holders(self.state))
            return False
        self.draft.emit(
            ev.RunReserved(
                model=run.model,
                run=run.run,
                port=ports[0],
                more_ports=tuple(ports[1:]),
                room_bytes=need_bytes(self.state, run.model),
                displaced=run.displaced,
            )
        )
        return True

    def _free_ports(self, wanted: int) -> tuple[list[int], list[ev.PortBlocked]]:
        """Return free ports, and those passed over as strangers listen there."""
        ports: list[int] = []
        blocked: list[ev.PortBlocked] = []
        for port in self.state.free:
            if len(ports) == wanted:
                break
            found = self.observed.blocked(port)
            if found is None:
                ports.append(port)
            else:
                blocked.append(found)
        return ports, blocked

    def _make_room(self, run: Run, deficit: Space) -> Space | None:
        """Evict for a queue entry and return the room that is coming, or drain and return None."""
        if run.run in self.observed.immobile:
            self._passed.add(run.run)
            return None
        skipped: list[tuple[int, str]] = []
        able = [r for r in self.order if self._able(r, run.run, skipped)]
        idle = [r for r in able if self._leases(r) == 0]
        chosen = self._enough(idle, deficit)
        why: Why = "room" if deficit.slots > 0 else "memory"
        if chosen is not None:
            skipped += self._spare(able, chosen)
            for victim in chosen:
                self.evict(victim, run, why, skipped, stop=True)
            return total(taken(self.state, self.state.runs[v]) for v in chosen)
        leased = [r for r in able if self._leases(r) > 0 and not self._spared(r, run.run, skipped)]
        # Those that drain for it already come first, else the choice would hop about with use.
        leased.sort(key=lambda r: self.state.runs[r].for_run != run.run)
        chosen = self._enough(idle + leased, deficit)
        skipped += self._spare(able, chosen or ())
        for victim in chosen or ():
            self.wanted.add(victim)
            self.evict(victim, run, why, skipped, stop=False)
        if chosen is None and any(reason == KEPT for _, reason in skipped):
            self._passed.add(run.run)
        return None

    def _able(self, number: int, entry: int, skipped: list[tuple[int, str]]) -> bool:
        run = self.state.runs[number]
        if run.stage not in (Stage.READY, Stage.DRAINING):
            return False
        reason = self._unable(run, entry)
        if reason:
            skipped.append((number, reason))
        return not reason

    def _unable(self, run: Run, entry: int) -> str:
        if run.stage is Stage.DRAINING and run.reason not in FOR_ROOM:
            return f"drains already ({run.reason})"
        if self.state.models[run.model].pinned:
            return "pinned"
        if run.run in self.observed.kept.get(entry, frozenset()):
            return KEPT
        return self._too_new(run)

    def _too_new(self, run: Run) -> str:
        seen = self.observed.usage.get(run.run)
        if seen is None:  # it becomes ready in this very decision: its waiters come first
            self.outcome.look_again(self.observed.now)
            return "not observed"
        if run.run in self.observed.unproven:
            return "not seen to answer yet"
        old_enough = seen.ready_at + self.state.min_residency_s
        if self.observed.now < old_enough:
            self.outcome.look_again(old_enough)
            return "younger than min_residency_s"
        return ""

    def _leases(self, number: int) -> int:
        return self.observed.usage[number].leases

    def _spare(self, able: list[int], chosen: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yield those who stay though they could go and are older than who goes, and why."""
        last = max(map(able.index, chosen), default=0)
        idle = not any(map(self._leases, chosen))
        for number in able[:last]:
            if number not in chosen:
                yield number, LEASED if idle and self._leases(number) else SPARE

    def _spared(self, number: int, entry: int, skipped: list[tuple[int, str]]) -> bool:
        if (number, entry) not in self.observed.spared:
            return False
        skipped.append((number, "its drain for this request was undone"))
        return True

    def _enough(self, candidates: list[int], deficit: Space) -> list[int] | None:
        """Return the first candidates that cover the deficit, without those not needed."""
        chosen: list[int] = []
        rest = deficit
        for number in candidates:
            if NOTHING.holds(rest):
                break
            chosen.append(number)
            rest -= taken(self.state, self.state.runs[number])
        if not NOTHING.holds(rest):
            return None
        for number in tuple(chosen):
            without = rest + taken(self.state, self.state.runs[number])
            if NOTHING.holds(without):
                chosen.remove(number)
                rest = without
        return chosen

    def evict(
        self,
        number: int,
        entry: Run | None,
        why: Why,
        skipped: list[tuple[int, str]],
        *,
        stop: bool,
    ) -> None:
        run = self.state.runs[number]
        for_run = entry.run if entry is not None else None
        if run.stage is Stage.READY or run.for_run != for_run:
            self._note_usage()
            if run.stage is Stage.DRAINING:
                self.draft.emit(
                    ev.RunReopened(model=run.model, run=number, reason="wanted by another request")
                )
            self.draft.emit(
                ev.RunEvicting(
                    model=run.model,
                    run=number,
                    reason=why,
                    for_run=for_run,
                    for_model=entry.model if entry is not None else None,
                    leases=self._leases(number),
                    order=self.order,
                    skipped=tuple(skipped),
                ),
                entry.last_seq if entry is not None else "unset",
            )
        if stop:
            self.draft.emit(
                ev.RunStopping(
                    model=run.model,
                    run=number,
                    reason=why,
                    stop_timeout_s=self.state.models[run.model].spec.stop_timeout_s,
                )
            )

    def _note_usage(self) -> None:
        if not self.noted:
            note_usage(self.draft, self.observed)
        self.noted = True

    def _converge(self, deficit: Space) -> None:
        """Over the limits: evict the idle, drain the leased, oldest first."""
        if not self.observed.unproven.isdisjoint(self.order):
            return  # who does not answer goes anyway, and the others were used in another order
        skipped: list[tuple[int, str]] = []
        able = [r for r in self.order if self._able(r, 0, skipped)]
        idle = [r for r in able if self._leases(r) == 0]
        leased = [r for r in able if self._leases(r) > 0]
        leased.sort(key=lambda r: self.state.runs[r].stage is not Stage.DRAINING)
        rest = deficit
        chosen: list[int] = []
        for number in idle + leased:
            if NOTHING.holds(rest):
                break
            rest -= taken(self.state, self.state.runs[number])
            chosen.append(number)
        skipped += self._spare(able, chosen)
        self.wanted.update(chosen)
        for number in chosen:
            self.evict(number, None, "limits", skipped, stop=number in idle)

    def _undo_drains(self) -> None:
        for run in tuple(self.state.in_stage(Stage.DRAINING)):
            if run.reason in FOR_ROOM and run.run not in self.wanted:
                gone = run.for_run not in self.state.runs
                reason = "the request left" if gone else "room was found elsewhere"
                reopen(self.draft, run.run, reason, self._end_of(run.for_run))

    def _end_of(self, number: int | None) -> Cause:
        """Return the entry of this decision that ended a run, to be a cause."""
        for entry in self.draft.entries:
            if isinstance(entry.event, ev.RunAbandoned) and entry.event.run == number:
                return entry.seq
        return "unset"


def _port_holders(state: State) -> tuple[str, ...]:
    return tuple(f"{state.runs[run].model} ({port})" for port, run in sorted(state.held.items()))


def schedule(draft: Draft, observed: Observed) -> Outcome:
    """Make one pass over the queue, emitting what it decides."""
    return _Pass(draft, observed).run()


def note_usage(draft: Draft, observed: Observed) -> bool:
    """Fold the observed order and lease counts into the log, when they are not there yet."""
    order = lru_order(draft.state, observed.usage)
    leases: list[tuple[int, int]] = []
    for run in order:
        seen = observed.usage.get(run)
        since = seen.granted - draft.state.runs[run].leases if seen else 0
        if since > 0:
            leases.append((run, since))
    if order == draft.state.lru and not leases:
        return False
    draft.emit(ev.UsageNoted(order=order, leases=tuple(leases)))
    return True


def idle_at(state: State, run: Run, seen: Usage) -> float | None:
    """Return when a ready run has been idle for its `ttl_s`, None while it is to stay."""
    model = state.models[run.model]
    if model.spec.ttl_s is None or model.pinned or run.stage is not Stage.READY or seen.leases:
        return None
    return max(seen.used_at + model.spec.ttl_s, seen.ready_at + state.min_residency_s)


def expire(draft: Draft, number: int, observed: Observed) -> bool:
    """Evict an idle run whose `ttl_s` has passed."""
    run = draft.run(number)
    seen = observed.usage.get(number)
    due = idle_at(draft.state, run, seen) if run is not None and seen is not None else None
    if due is None or observed.now < due:
        return False
    _Pass(draft, observed).evict(number, None, "idle", [], stop=True)
    return True
