"""What callers were told: every answer must be true, allowed to its verb, and in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simulation.judging.book import FOR_ROOM, LENT, Book, Run
from simulation.judging.past import Past
from simulation.judging.reasons import ERRORS, Asked, Reasons
from simulation.judging.truths import Truths
from simulation.judging.world import World
from simulation.sight import SeenAnswer, SeenCall, SeenLease, SeenRow, Sight

GRACE_S = 2.0
"""Beyond its deadline, a call is answered by then."""
TOLD_STEPS = 60
"""What is known is told to whom it concerns within so many steps ..."""
TOLD_S = 5.0
"""... or so many seconds, whichever is later."""
WAITING = ("operator", "remove")
"""Reasons to stop that wait for leases, unless they are forced."""

_Key = tuple[int, str, tuple[str, ...], float]


class _Due(NamedTuple):
    """Why a call should have been answered, and since when."""

    why: str
    step: int
    now: float


class Callers:
    """Judges leases, answers and calls. `asked` are open calls to the step that saw them first."""

    def __init__(self, book: Book, world: World) -> None:
        self.book = book
        self.world = world
        self.past = Past(book)
        self.asked: dict[_Key, int] = {}
        self._calls: dict[_Key, SeenCall] = {}
        self._heard: dict[_Key, int] = {}
        self._held: dict[int, set[int]] = {}
        """Callers to the runs they held leases of one step ago."""
        self._due: dict[_Key, _Due] = {}
        self._gone: Counter[tuple[int, int, int]] = Counter()
        """Leases, of whom and of what, that were lost one step ago."""
        self._reasons: Mapping[int, str] = {}
        self._owner = 0
        self._closing = -1
        """The owner who was asked to close."""
        self._published: Mapping[str, Any] | None = None
        self._ended = 0
        """The last step in which there was a service that could grant."""
        self.truths = Truths(book, self.past)
        self.reasons = Reasons(book, self.past)

    # --- following ---

    def see(self, sight: Sight) -> None:
        """Take over calls and stages of this step; before its rows are folded."""
        self._see_service(sight)
        for call in sight.calls:
            self._see_call(call)
        if sight.published is not self._published:
            self._published = sight.published
            runs = sight.published["runs"] if sight.published is not None else ()
            self.truths.stages = {run["run"]: str(run["stage"]) for run in runs}
            self._reasons = {run["run"]: run["reason"] for run in runs}
            for run in runs:
                if run["stage"] in LENT:
                    self.past.note("served", run["model"])

    def _see_service(self, sight: Sight) -> None:
        self._owner = sight.owner
        if sight.unwritten or not sight.log_works:
            self.truths.behind = sight.step
        if sight.open and not sight.dead:
            self._ended = sight.step
        for so, what in (
            (not sight.log_works, "unwritable"),
            (not sight.open or sight.owner == self._closing, "closed"),
            (sight.dead, "dead"),
        ):
            if so:
                self.past.note(what)

    def _see_call(self, call: SeenCall) -> None:
        key = (call.caller, call.verb, call.names, call.asked_at)
        self.asked.setdefault(key, self.book.step)
        self._calls[key] = call
        if call.heard:
            self._heard.setdefault(key, self.book.step)
        if call.verb == "close":
            self.past.note("closed")
            self._closing = self._owner  # it goes on, also when its caller is interrupted
        self._see_force(call)
        if call.verb == "remove":
            for model in self.past.meanings(call.names[0], self.book.step):
                self.past.note("removing", model)

    def _see_force(self, asked: SeenCall | SeenAnswer) -> None:
        """Note that somebody forces a stop, which goes on when he has left."""
        if asked.options.get("force") is True:
            for model in self.past.meanings(asked.names[0], self.book.step):
                self.past.note("forced", model)

    def after(self, row: SeenRow) -> None:
        """Note a row that was just folded."""
        self.past.after(row)
        if row.kind == "run.ready":
            self._expect(row.model or "", self.book.step, f"run {row.run} was ready")
        elif row.kind in ("run.released", "run.abandoned"):
            outcome, run = row.data["outcome"], self.book.last
            counts = outcome.startswith("failed") and outcome != "failed: port"
            if counts and run is not None and not run.was_ready:
                known = self.book.step if run.broke_step is None else run.broke_step
                self._expect(run.model, known, f"run {run.run} failed", self._follows(run))

    def _follows(self, run: Run) -> int:
        """Return the first step at which whoever came waits for a run, and not for one before it.

        A run that is still to end answers those who came before it went, unless it is to be
        loaded anew or lost its port: they wait for the next one.
        """
        model = self.book.models.get(run.model)
        before = [self.book.runs[number] for number in model.runs] if model is not None else []
        gone = (
            each.gone_step
            for each in before
            if each.run < run.run and not each.reload and each.broke_stage != "port"
        )
        return max((step + 1 for step in gone if step is not None), default=0)

    def _expect(self, model: str, before: int, why: str, since: int = 0) -> None:
        """Let every request for a model that was heard in these steps be answered soon."""
        for key, heard in self._heard.items():
            _, verb, names, _ = key
            waits = since <= heard < before and verb in ("lease", "start")
            if waits and model in self.past.meanings(names[0], self.asked[key]):
                self._due.setdefault(key, _Due(why, self.book.step, self.book.now))

    def _refusals(self) -> None:
        """Let a lease that was heard just now be answered soon where it waits for nothing."""
        for key in (key for key, heard in self._heard.items() if heard == self.book.step):
            _, verb, names, _ = key
            model = self.book.models.get(self.book.names.get(names[0], "")) if names else None
            if verb == "lease" and model is not None:
                stuck = any(self.book.runs[run].stage == "stop_failed" for run in model.runs)
                refused = model.status in ("held", "failed") and not model.runs
                why = f"{model.name!r} is {'stop_failed' if stuck else model.status}"
                again = self._again(key[0], model.runs)
                if stuck or refused or again:
                    why = "he holds it already" if again else why
                    self._due.setdefault(key, _Due(why, self.book.step, self.book.now))

    def _again(self, caller: int, runs: Sequence[int]) -> bool:
        """Tell whether a caller holds a run of these that still serves."""
        held = self._held.get(caller, ())
        return any(run in held and self.truths.stages.get(run) in LENT for run in runs)

    # --- judging ---

    def check(self, sight: Sight) -> Iterator[str]:
        """Judge the answers of this step and the calls and leases that are open."""
        for answer in sight.answers:
            self._see_force(answer)
            key = (answer.caller, answer.verb, answer.names, answer.asked_at)
            yield from self._answer(answer, key, sight)
            for each in (self.asked, self._calls, self._heard):
                each.pop(key, None)
        if len(self.asked) > len(sight.calls):
            open_ = {(c.caller, c.verb, c.names, c.asked_at) for c in sight.calls}
            for key in [key for key in self.asked if key not in open_]:
                for each in (self.asked, self._calls, self._heard):
                    each.pop(key, None)
        if sight.leases:
            yield from self._leases(sight)
        yield from self._lost(sight)
        if self._heard:
            self._refusals()
        yield from self.truths.broken(sight)
        yield from self._late(sight)
        self._held = {}
        for lease in sight.leases:
            self._held.setdefault(lease.caller, set()).add(lease.run)

    def _answer(self, answer: SeenAnswer, key: _Key, sight: Sight) -> Iterator[str]:
        since = self.asked.get(key, sight.step)
        said = f"{answer.verb}({', '.join(answer.names)}) of caller {answer.caller}"
        if answer.error:
            if answer.error not in ERRORS[answer.verb]:
                yield f"{said} raised {answer.error}, which is not in its contract"
            elif not self.reasons.lawful(self._of(answer, key, since, sight)):
                yield f"{said} raised {answer.error}, for which there was no reason"
        elif answer.verb in ("lease", "lease_all"):
            for wrong in self._grant(answer, since, sight):
                yield f"{said}: {wrong}"
        else:
            wrong = self.truths.missing(answer, since, sight)
            if wrong:
                yield f"{said} was told success, but {wrong}"

    def _of(self, answer: SeenAnswer, key: _Key, since: int, sight: Sight) -> Asked:
        call = self._calls.get(key)
        return Asked(
            answer=answer,
            since=since,
            models=frozenset().union(*(self.past.meanings(n, since) for n in answer.names)),
            deadline=call.deadline if call is not None else sight.now,
            holds=frozenset(self._held.get(answer.caller, ())),
            keeps=frozenset(
                lease.run
                for lease in sight.leases
                if lease.caller == answer.caller and not lease.lost
            ),
            strangers=sight.strangers,
            blind=self.truths.behind >= since,
        )

    # --- leases ---

    def _grant(self, answer: SeenAnswer, since: int, sight: Sight) -> Iterator[str]:
        if since > self._ended:  # else it may have been granted before, and fetched now
            yield "granted by a service that is dead or closed"
        if not 1 <= len(answer.leases) <= len(answer.names):
            yield f"{len(answer.leases)} leases were granted"
        for name in answer.names:
            meant = self.past.meanings(name, since)
            if not any(lease.model in meant for lease in answer.leases):
                yield f"granted no model that {name!r} stood for, but {answer.leases}"
        for lease in answer.leases:
            yield from self._granted(lease, since, sight)

    def _granted(self, lease: SeenLease, since: int, sight: Sight) -> Iterator[str]:
        run = self.book.runs.get(lease.run)
        nested = lease.run in self._held.get(lease.caller, ())
        if run is None:
            if not (lease.run in self.book.ends and lease.lost):
                yield f"granted run {lease.run}, which is {self.book.ends.get(lease.run, 'none')}"
            return
        if run.model != lease.model or lease.port != run.ports[0]:
            yield f"granted {lease}, but run {run.run} is {run.model!r} on {run.ports}"
        live = self.truths.stages.get(run.run, run.stage)
        known = live in LENT or lease.lost  # it may have ended since, unwritten like its readiness
        if not run.was_ready and not (sight.unwritten and known):
            yield f"granted run {run.run}, which was never ready"
        if run.run in self.world.silent:
            yield f"granted run {run.run}, which was taken over and did not answer yet"
        drains = run.stage == live == "draining" and run.since < since
        if drains and not nested and not lease.lost:
            yield f"granted run {run.run}, which drains for {run.reason}"
        model = self.book.models.get(lease.model)
        refuses = model is not None and model.status == "held" and not nested
        if refuses and not self.past.was("stopped", lease.model, since):
            yield f"granted a lease of {lease.model!r}, which is held"

    def _leases(self, sight: Sight) -> Iterator[str]:
        if sight.published is None:
            return
        for lease in sight.leases:
            stage = self.truths.stages.get(lease.run)
            if not lease.lost and stage not in LENT:
                yield f"caller {lease.caller} holds a lease of run {lease.run}: {stage or 'ended'}"

    def _lost(self, sight: Sight) -> Iterator[str]:
        """Yield leases that were lost in this step though their server lives, and nobody forced."""
        lost = Counter(_held(lease) for lease in sight.leases if lease.lost)
        living = {server.run for server in sight.servers if server.leader_alive}
        if sight.open and self._closing != sight.owner:
            for held in (held for held in lost if lost[held] > self._gone[held]):
                owner, caller, number = held
                run = self.book.runs.get(number)
                if run is not None and owner in (0, sight.owner) and number in living:
                    reason = self._reasons.get(number, "")
                    forced = self.past.was("forced", run.model, run.step)
                    if reason in (*FOR_ROOM, "reload", "") or (reason in WAITING and not forced):
                        yield f"caller {caller} lost run {number}, which lives ({reason})"
        self._gone = lost

    # --- in time ---

    def _late(self, sight: Sight) -> Iterator[str]:
        for call in sight.calls:
            if sight.now > call.deadline + GRACE_S:
                yield (
                    f"{call.verb}({', '.join(call.names)}) of caller {call.caller} is not "
                    f"answered {sight.now - call.deadline} s after its deadline"
                )
        for key, due in tuple(self._due.items()):
            if key not in self.asked:
                del self._due[key]
            elif sight.step > due.step + TOLD_STEPS and sight.now > due.now + TOLD_S:
                yield f"{key[1]}({', '.join(key[2])}) of caller {key[0]} waits though {due.why}"


def _held(lease: SeenLease) -> tuple[int, int, int]:
    return (lease.owner, lease.caller, lease.run)
