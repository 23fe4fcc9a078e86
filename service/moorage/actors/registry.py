"""The registry: the one writer. Names, ports, room, LRU order and the queue belong to it alone.

`handle` is called with one message after another by a single thread. It decides on a draft,
closes the gates of whoever would go, looks again, appends, folds, and only then acts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from moorage.actors import callers, deadlines, effects, reports
from moorage.actors import messages as msg
from moorage.actors.desk import AnyTicket, Desk
from moorage.actors.hall import Hall
from moorage.actors.ledger import Ledger
from moorage.core import events as ev
from moorage.core import room
from moorage.core.draft import Draft
from moorage.core.lifecycle import Stage
from moorage.core.pace import Fetching
from moorage.core.room import Observed, Outcome, Usage
from moorage.core.state import State
from moorage.errors import LogUnavailableError
from moorage.protocols import Alarm, Clock, FoundProcess, Ports
from moorage.spec import ModelSpec

MAX_LOOKS = 12
"""How often a decision is made anew because a victim got busy, before it is put off."""

FACTS = (ev.RunLaunched, ev.RunExited, ev.RunSwept)
"""What was observed, lets nobody in and answers nobody: it is written with the next decision."""

Fact = Callable[[Draft, dict[int, Usage]], Any]
UsageMap = dict[int, Usage]


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Volatile:
    """What the log does not keep: it concerns waiting callers and this process only."""

    specs: dict[str, ModelSpec] = field(default_factory=dict[str, ModelSpec], repr=False)
    """Specs with their secrets."""
    fetching: dict[int, Fetching] = field(default_factory=dict[int, Fetching])
    fetch_steps: dict[int, int] = field(default_factory=dict[int, int])
    """How far a fetch was when the log last had to know."""
    stages: dict[int, tuple[Stage, float]] = field(default_factory=dict[int, tuple[Stage, float]])
    """Since when (monotonic) a run is in its stage, or swept in it."""
    spared: dict[tuple[int, int], frozenset[int]] = field(
        default_factory=dict[tuple[int, int], frozenset[int]]
    )
    """(victim, entry) to the leases for which its drain was undone."""
    port_tries: dict[str, int] = field(default_factory=dict[str, int])
    restarts: dict[str, float] = field(default_factory=dict[str, float])
    """When (monotonic) a model with restart="always" is started again."""
    unasked: set[int] = field(default_factory=set[int])
    """Runs begun without a request: they evict nobody."""
    retries: dict[int, float] = field(default_factory=dict[int, float])
    """When a stop that failed is looked at again."""
    forced: set[int] = field(default_factory=set[int])
    going: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    """Why (reason, error) a run was draining for good before its model was to be removed."""
    removers: dict[int, AnyTicket] = field(default_factory=dict[int, AnyTicket])
    """For whom the model of a run is to be removed."""
    noted_at: float = 0.0
    opened: int | None = None
    """The entry that says that this service was opened."""
    stale: int = 0
    """Messages about runs that had moved on."""
    closing: msg.Close | None = None
    closed: bool = False


class Registry:
    """See the module. All attributes belong to its thread, but `hall.table` and `state`."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        desk: Desk,
        hall: Hall,
        ports: Ports,
        clock: Clock,
        alarm: Alarm,
        tell_model: Callable[[str, msg.ToModel], None],
        end_model: Callable[[str], None],
        reap: Callable[[FoundProcess], None],
        new_nonce: Callable[[], str],
        later: Callable[[msg.ToRegistry], None],
    ) -> None:
        self.ledger = ledger
        self.desk = desk
        self.hall = hall
        self.ports = ports
        self.clock = clock
        self.alarm = alarm
        self.tell_model = tell_model
        self.end_model = end_model
        self.reap = reap
        self.new_nonce = new_nonce
        self.later = later  # puts a message to this registry at the end of its inbox
        self.volatile = Volatile(noted_at=clock.monotonic())
        self.look_at: float | None = None

    @property
    def state(self) -> State:
        """The folded state; safe to read from any thread, never changed once published."""
        return self.ledger.state

    def handle(self, message: msg.ToRegistry) -> None:
        """Handle one message and set the alarm for what is due next."""
        if self.volatile.closed and not isinstance(message, msg.FromCaller):
            return  # after service.closed the log says nothing more, and what was kept goes on
        match message:
            case msg.Wake():
                deadlines.wake(self)
            case (
                msg.FetchProgress()
                | msg.FetchDone()
                | msg.PrepareDone()
                | msg.LaunchDone()
                | msg.ReadyDone()
                | msg.Unhealthy()
                | msg.ExitSeen()
                | msg.StopDone()
                | msg.Reaped()
                | msg.Emptied()
                | msg.ActorDied()
            ):
                reports.hear(self, message)
            case (
                msg.Open()
                | msg.Want()
                | msg.Left()
                | msg.Define()
                | msg.Remove()
                | msg.Stop()
                | msg.Pin()
                | msg.Reset()
                | msg.SetLimits()
                | msg.Archive()
                | msg.Close()
            ):
                callers.answer(self, message)
            case _:
                assert_never(message)
        if self.volatile.closing is not None:
            callers.close_step(self)
        if self.desk.joint_left:
            self.desk.joint_left = False
            self.look_again(self.clock.monotonic())
        self.alarm.set(deadlines.next_due(self))

    # --- deciding ---

    def settle(self, fact: Fact, *, must: bool, then: Callable[[], None] = _nothing) -> bool:
        """Decide on a fact and on the room it leaves, append, fold and act.

        With `must`, nothing happens unless all of it is durable: LogUnavailableError. Without, an
        observed fact is folded at once and written when the disk lets it; one of FACTS alone goes
        with the next decision, or soon. Errors of the tree that
        `fact` raises leave everything as it was. `fact` may be called more than once, on new
        drafts; `then` is called once, when it is decided and before it is acted upon. Room is put
        off when its victims keep getting busy; False when the fact's own victims are.
        """
        try:
            for look in range(MAX_LOOKS + 1):
                draft, outcome, usage = self._decide(fact, alone=look == MAX_LOOKS)
                self.hall.close(self._leaving(draft))
                if not (self.hall.busy(self._idle_victims(draft)) or self._left(draft, usage)):
                    before = self.state
                    draft, outcome = self._commit(draft, outcome, usage, fact, must=must)
                    then()
                    self.hall.settle(self.state)
                    effects.act(self, before, draft.entries, outcome)
                    return True
        finally:
            self.hall.settle(self.state)
        self.look_again(self.clock.monotonic() + deadlines.LOOK_AGAIN_S)
        return False

    def _decide(self, fact: Fact, *, alone: bool) -> tuple[Draft, Outcome, UsageMap]:
        usage = self.hall.observe()
        draft = self.ledger.draft()
        fact(draft, usage)
        outcome = Outcome()
        if alone:
            outcome.look_again(self.clock.monotonic() + deadlines.LOOK_AGAIN_S)
        elif self.volatile.closing is None:
            outcome = room.schedule(draft, self.observed(draft.state, usage))
        return draft, outcome, usage

    def observed(self, state: State, usage: UsageMap) -> Observed:
        """Return what decisions about room look at beside the state."""
        return Observed(
            now=self.clock.monotonic(),
            usage=usage,
            kept=self._kept(state),
            spared=self._spared(),
            blocked=self._blocked,
            immobile=frozenset(self.volatile.unasked),
            unproven=frozenset(run for run in usage if self.hall.unproven(run)),
        )

    def _kept(self, state: State) -> dict[int, frozenset[int]]:
        """Runs that older joint requests have already, by queue entry."""
        joint = self.desk.joint()
        kept: dict[int, frozenset[int]] = {}
        for entry in state.queue if joint else ():
            # An entry that nobody waits for yet is that of the request being decided on.
            age = min((t.number for t in self.desk.waiting(entry)), default=float("inf"))
            kept[entry] = _runs_of(state, [ticket for ticket in joint if ticket.number <= age])
        return kept

    def awaited(self) -> frozenset[int]:
        """Runs that joint requests have already, and keep until the others are there."""
        return _runs_of(self.state, self.desk.joint())

    def _spared(self) -> frozenset[tuple[int, int]]:
        standing: set[tuple[int, int]] = set()
        for pair, leases in tuple(self.volatile.spared.items()):
            gate = self.hall.get(pair[0])
            if gate is None or pair[1] not in self.state.queue or not leases & set(gate.holders):
                del self.volatile.spared[pair]
            else:
                standing.add(pair)
        return frozenset(standing)

    def _blocked(self, port: int) -> ev.PortBlocked | None:
        found = self.ports.stranger(port)
        if found is None:
            return None
        return ev.PortBlocked(port=port, pid=found.pid, command=found.command)

    def _leaving(self, draft: Draft) -> list[int]:
        """Runs that are ready now and would not be."""
        ready = {r.run for r in draft.state.in_stage(Stage.READY)}
        return [run for run in self.state.lru if run not in ready]

    def _idle_victims(self, draft: Draft) -> list[int]:
        """Runs the draft stops because nobody uses them."""
        events = [entry.event for entry in draft.entries]
        anyway = {event.run for event in events if isinstance(event, ev.RunExited)}
        anyway |= self.volatile.forced
        return [
            event.run
            for event in events
            if isinstance(event, ev.RunStopping)
            and event.run in self.state.lru
            and event.run not in anyway
        ]

    def _left(self, draft: Draft, usage: UsageMap) -> bool:
        """Tell whether the last lease of a run to be drained left before its gate was closed.

        Nobody would say so later: a lease that leaves by an open gate gives no hint.
        """
        drains = {r.run for r in draft.state.in_stage(Stage.DRAINING)}
        leaving = (run for run in self._leaving(draft) if run in drains)
        return any(usage[r].leases and not self.hall.busy([r]) for r in leaving if r in usage)

    def _commit(
        self, draft: Draft, outcome: Outcome, usage: UsageMap, fact: Fact, *, must: bool
    ) -> tuple[Draft, Outcome]:
        if not must and self.ledger.unwritable is not None:
            return self._noted(fact, usage)  # its disk is tried again when that is due, not now
        try:
            if must or not all(isinstance(entry.event, FACTS) for entry in draft.entries):
                self.ledger.commit(draft)
            elif draft.entries:
                self.look_again(self.clock.monotonic() + deadlines.FACTS_S)
                self.ledger.note(draft)  # last: what is published now, gates do not say yet
        except LogUnavailableError:
            if must:
                self.look_again(self.clock.monotonic() + deadlines.DISK_RETRY_S)
                raise
            return self._noted(fact, usage)
        if outcome.look_at is not None:
            self.look_again(outcome.look_at)
        return draft, outcome

    def _noted(self, fact: Fact, usage: UsageMap) -> tuple[Draft, Outcome]:
        """Fold a fact at once and leave its writing to the next flush."""
        self.look_again(self.clock.monotonic() + deadlines.DISK_RETRY_S)
        draft = self.ledger.draft()
        fact(draft, usage)
        self.ledger.note(draft)
        return draft, Outcome()

    def look_again(self, at: float) -> None:
        """Be woken at this monotonic time at the latest."""
        self.look_at = at if self.look_at is None else min(self.look_at, at)

    def fail(self, make: Callable[[], BaseException]) -> None:
        """Die honestly: no more grants, every open ticket answered. Servers are kept."""
        self.hall.end_all()
        self.volatile.closed = True
        self.desk.fail_all(lambda _ticket: make())
        if self.volatile.closing is not None:
            self.volatile.closing.ticket.fail(make())


def _runs_of(state: State, tickets: Sequence[AnyTicket]) -> frozenset[int]:
    names = {name for ticket in tickets for name in ticket.names if name in state.names}
    runs = {state.models[state.names[name]].run for name in names}
    return frozenset(run for run in runs if run is not None)
