"""Who may be evicted, in which order, and that the order of use is what callers did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from simulation.judging.book import FOR_ROOM, LENT, Book, Run
from simulation.sight import ORIGIN, SeenLease, SeenRow, Sight

OVERTAKEN = 5
"""More requests than this never pass one for which there is not enough of something yet."""
TIGHT_S = 1e-6
LOOK_S = 0.1
"""A decision may have looked at use so long before it was dated: meanwhile others go on."""


def seconds_between(first: str, last: str) -> float:
    """Return the seconds from one time of the log to another."""
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


class Eviction:
    """Keeps the last use of every ready run as callers did it, and judges who had to go."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.used: dict[int, float] = {}
        """Runs to when they were last entered or left, -1.0 when an earlier owner saw it."""
        self.surely: dict[int, float] = {}
        """The same at the earliest: an answer is granted some time before it is heard."""
        self.tried: dict[int, float] = {}
        """Runs to when somebody asked for them last, as who finds a gate closed was announced, or
        had lost a lease of them that nobody had found."""
        self.holders: Counter[int] = Counter()
        """Runs to how many leases that are not lost callers hold now."""
        self._leases: Sequence[SeenLease] = ()
        self._each: Counter[tuple[int, int]] = Counter()
        self._unlost: Counter[tuple[int, int]] = Counter()
        self._owner = 0
        self._victims: list[SeenRow] = []
        self._passed: list[tuple[int, int]] = []
        """Who was admitted in this step, and past whom."""

    def see(self, sight: Sight) -> None:
        """Take over what callers hold; before the rows of the step are folded."""
        if sight.owner != self._owner:
            self._owner = sight.owner
            self.used = dict.fromkeys(self.used, -1.0)
            self.surely.clear()
            self.tried.clear()
            self._each.clear()  # what they held of an earlier owner's, they do not leave now
            self._leases = ()
            self._unlost.clear()
            self.holders.clear()
        for answer in sight.answers:
            for lease in answer.leases:
                self.used[lease.run] = sight.now
                before = self.surely.get(lease.run, -1.0)
                self.surely[lease.run] = max(before, answer.asked_at)
        self._see_tries(sight)
        if sight.leases != self._leases:
            self._leases = sight.leases
            each = Counter((lease.caller, lease.run) for lease in sight.leases)
            for key in each.keys() | self._each.keys():
                if each[key] != self._each[key]:
                    self.used[key[1]] = sight.now
                if each[key] < self._each[key]:
                    self.surely[key[1]] = sight.now
            self._hold(each, sight.leases)
            self._each = each

    def _see_tries(self, sight: Sight) -> None:
        for call in (*sight.calls, *sight.answers):
            if call.verb in ("lease", "lease_all"):
                self._try(call.names, sight.now)
        for run in sight.lingering:
            self.tried[run] = sight.now

    def _try(self, names: Sequence[str], now: float) -> None:
        for name in names:
            model = self.book.models.get(self.book.names.get(name, ""))
            for run in model.runs if model is not None else ():
                self.tried[run] = now

    def _hold(self, each: Counter[tuple[int, int]], leases: Sequence[SeenLease]) -> None:
        """Count who holds what: a lease that is lost in this very step was held when it began."""
        was, self._unlost = (
            self._unlost,
            Counter((lease.caller, lease.run) for lease in leases if not lease.lost),
        )
        self.holders.clear()
        for key, count in each.items():
            self.holders[key[1]] += max(self._unlost[key], min(count, was[key]))

    def before(self, row: SeenRow, *, delayed: bool = False) -> Iterator[str]:
        """Judge a row that is about to be folded; one that is `delayed` says what was so before."""
        run = self.book.runs.get(row.run or 0)
        if row.kind == "usage.noted" and not delayed:
            yield from self._order(row)
        elif run is None:
            return
        elif row.kind == "run.evicting":
            self._victims.append(row)
            yield from self._victim(row, run)
        elif (
            row.kind == "run.stopping"
            and row.data["reason"] in FOR_ROOM
            and run.stage in LENT  # else it goes on, as a stop that failed does
        ):
            yield from self._gone(row, run)
        elif row.kind == "run.reserved":
            yield from self._overtaking(run)

    def after(self, row: SeenRow, delayed: bool) -> None:
        """Note what a folded row says of use."""
        if row.kind == "run.ready" and row.run is not None:
            # Of what was written late, only the callers know when it was.
            self.used.setdefault(row.run, -1.0 if delayed else self.book.now)
        elif row.kind == "run.released" and row.run is not None:
            self.used.pop(row.run, None)
            self.surely.pop(row.run, None)
            self.tried.pop(row.run, None)

    def _order(self, row: SeenRow) -> Iterator[str]:
        order = row.data["order"]
        if list(order) == self.book.lru and len(order) < 2:
            return
        place = {run: at for at, run in enumerate(self.book.lru)}
        seen_until = seconds_between(ORIGIN, row.at) - LOOK_S
        for older, younger in pairwise(order):
            used, last = self.used.get(older, -1.0), self.used.get(younger, -1.0)
            first = self.surely.get(older, used)
            unseen = used == last == -1.0
            latest = max(last, self.tried.get(younger, -1.0))
            if latest + TIGHT_S < first <= seen_until and last >= 0:
                yield f"order {order}, but {older} was used at {used}, {younger} at {last}"
            elif unseen and place.get(older, -1) > place.get(younger, -1):
                yield f"order {order}: {older} and {younger} changed places unused"

    def _victim(self, row: SeenRow, run: Run) -> Iterator[str]:
        data, book = row.data, self.book
        model = book.models.get(run.model)
        if data["reason"] not in FOR_ROOM:
            yield f"run {run.run} is evicted for {data['reason']!r}"
        if model is not None and model.pinned:
            yield f"run {run.run} of {run.model!r} is evicted, which is pinned"
        if data["reason"] != "idle" and not self._same_order(data["order"]):
            yield f"the eviction saw the order {data['order']}, but it is {book.lru}"
        held = self.holders[run.run]
        if data["leases"] == 0 and held:
            yield f"run {run.run} is evicted as if idle, {held} leases on it are held"
        if data["leases"] and data["reason"] == "idle":
            yield f"run {run.run} is evicted for idleness with {data['leases']} leases"
        yield from self._age(row, run)
        if data["reason"] == "idle":
            yield from self._idleness(run)
        else:
            yield from self._need(row)

    def _same_order(self, order: Sequence[int]) -> bool:
        """Tell whether it is the order, perhaps from before other victims of this step left."""
        left = [run for run in order if run not in self.book.lru]
        kept = [run for run in order if run in self.book.lru]
        runs = self.book.runs
        now = all(run in runs and runs[run].since == self.book.step for run in left)
        return kept == self.book.lru and now

    def _age(self, row: SeenRow, run: Run) -> Iterator[str]:
        least = self.book.min_residency_s
        if not least or run.ready_now is None:
            return
        age = max(self.book.now - run.ready_now, seconds_between(run.ready_at, row.at))
        if age + TIGHT_S < least:
            yield f"run {run.run} is evicted {age} s after it was ready, not {least}"

    def _idleness(self, run: Run) -> Iterator[str]:
        ttl = self.book.models[run.model].spec.get("ttl_s")
        used = self.surely.get(run.run, self.used.get(run.run, -1.0))
        if ttl is None:
            yield f"run {run.run} is evicted for idleness, {run.model!r} has no ttl_s"
        elif used >= 0 and self.book.now - used + TIGHT_S < ttl:
            yield f"run {run.run} is evicted idle for {self.book.now - used} s, not {ttl}"

    def _need(self, row: SeenRow) -> Iterator[str]:
        book, for_run = self.book, row.data["for_run"]
        waiting = book.runs.get(for_run or 0)
        if row.data["reason"] == "limits":
            if for_run is not None:
                yield f"run {row.run} is evicted for the limits and for run {for_run}"
        elif waiting is None or waiting.stage != "queued":
            yield f"run {row.run} is evicted for run {for_run}, which does not wait"
        elif book.memory_limit is None:
            ahead = book.queue.index(waiting.run) + 1
            if sum(1 for _ in book.holding()) + ahead <= book.max_loaded:
                yield f"run {row.run} is evicted for run {for_run}, for which there is room"

    def _gone(self, row: SeenRow, run: Run) -> Iterator[str]:
        held = self.holders[run.run]
        if held:
            yield (
                f"run {run.run} of {run.model!r} stops for {row.data['reason']}, "
                f"{held} leases on it are held"
            )
        if run.model in self.book.models and self.book.models[run.model].pinned:
            yield f"run {run.run} of {run.model!r} stops for {row.data['reason']}, it is pinned"

    def _overtaking(self, run: Run) -> Iterator[str]:
        for number in self.book.queue:
            if number == run.run:
                return
            self._passed.append((run.run, number))
            waiting = self.book.runs[number]
            model = self.book.models.get(waiting.model)
            if model is None or model.runs[:1] != [number] or not waiting.asked:
                continue  # it waits for its own model's last run to end, or evicts nobody
            waiting.overtaken += 1
            # Where only places count, what is enough for one is enough for the other.
            alike = self.book.memory_limit is None and model.spec["ports"] == 1
            if waiting.overtaken > (0 if alike else OVERTAKEN):
                yield f"run {number} of {waiting.model!r} was overtaken {waiting.overtaken} times"

    def check(self) -> Iterator[str]:
        """Judge the victims of this step together, and who went past whom."""
        if self._passed:
            yield from self._past()
        if self._victims:
            yield from self._chosen()

    def _past(self) -> Iterator[str]:
        for admitted, waiting in self._passed:
            for victim in self.book.runs.values():
                if victim.stage == "draining" and victim.for_run == waiting:
                    who = f"run {admitted} is admitted past {waiting}"
                    yield f"{who}, for which {victim.run} drains"
        self._passed.clear()

    def _chosen(self) -> Iterator[str]:
        chosen = {row.run for row in self._victims}
        for row in self._victims:
            if row.data["reason"] == "idle":
                continue
            named = {run for run, _ in row.data["skipped"]}
            for older in row.data["order"]:
                if older == row.run:
                    break
                run = self.book.runs.get(older)
                if run is not None and run.stage == "ready" and older not in named | chosen:
                    yield f"run {row.run} is evicted, the older run {older} is not, unsaid why"
            for skipped, reason in row.data["skipped"]:
                yield from self._skipped(skipped, reason)
        self._victims.clear()

    def _skipped(self, number: int, reason: str) -> Iterator[str]:
        run = self.book.runs.get(number)
        if reason != "pinned" or run is None or run.model not in self.book.models:
            return
        if not self.book.models[run.model].pinned:
            yield f"run {number} was skipped as pinned, which it is not"
