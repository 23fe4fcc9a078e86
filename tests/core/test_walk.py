"""Random histories: whatever is decided in whatever order, no invariant breaks at any prefix."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from core.making import Core, spec
from moorage.core import codec, decide, room
from moorage.core import events as ev
from moorage.core.draft import Draft
from moorage.core.fold import apply, replay
from moorage.core.invariants import over_limits, violations
from moorage.core.lifecycle import Stage
from moorage.core.snapshot import state_from_data, state_to_data
from moorage.core.state import State
from moorage.errors import MoorageError

NAMES = ("a", "b", "c", "d")
Fact = Callable[[Draft], Any]


class Walk:
    """Turns numbers into decisions. Every one may come at any time; what does not fit is nothing.

    `lowered` while more may be loaded than the limits allow, because they were lowered.
    """

    def __init__(self, seed: int, **limits: Any) -> None:
        self.random = random.Random(seed)
        self.core = Core(ports=(18000, 18005), **limits)
        self.core.define(*NAMES)
        self.lowered = False

    def step(self) -> None:
        core, pick = self.core, self.random
        core.now += pick.choice((0.0, 0.5, 7.0, 70.0))
        for run in core.usage:
            if pick.random() < 0.3:
                core.use(run, pick.choice((0, 0, 1)))
        draft = core.draft()
        try:
            self.fact()(draft)
            if pick.random() < 0.9:
                room.schedule(draft, core.observed(**self.looks()))
        except MoorageError:
            return  # refused: nothing of it may stay
        self.check(draft)
        core.keep(draft)

    def looks(self) -> dict[str, Any]:
        runs = list(self.core.state.runs)
        few = {run for run in runs if self.random.random() < 0.1}
        queue = self.core.state.queue
        return {
            "kept": {entry: frozenset(few) for entry in queue if self.random.random() < 0.1},
            "spared": frozenset((v, e) for v in few for e in queue),
            "blocked": self.blocked,
            "immobile": frozenset(few),
            "unproven": frozenset(few),
        }

    def blocked(self, port: int) -> ev.PortBlocked | None:
        if self.random.random() < 0.9:
            return None
        return ev.PortBlocked(port=port, pid=None, command="stranger")

    def run(self) -> int:
        runs = list(self.core.state.runs)
        return self.random.choice(runs) if runs else 99

    def leases(self, run: int) -> int:
        seen = self.core.usage.get(run)
        return seen.leases if seen else 0

    def fact(self) -> Fact:
        makers = (
            (self.forward,) * 20
            + (self.asked,) * 6
            + (self.ended,) * 4
            + (self.operated,) * 3
            + (self.changed,)
        )
        return self.random.choice(makers)()

    def forward(self) -> Fact:
        """What brings a run on its way, or what breaks it there."""
        run, pick = self.run(), self.random
        stage = self.core.state.runs[run].stage if run in self.core.state.runs else None
        if pick.random() < 0.15:
            return self.broken(run)
        leases = pick.randrange(2)
        onward: dict[Stage | None, Fact] = {
            Stage.FETCHING: lambda d: decide.fetched(
                d, run, path="p", commit="c", files=(("f", 1, "h"),), fetched_bytes=1
            ),
            Stage.RESERVED: lambda d: decide.prepared(d, run, argv=("x",), nonce="n", log_file="f"),
            Stage.LAUNCHING: lambda d: decide.launched(
                d, run, pid=run, group=run, session=run, start_ticks=1, boot_id="boot"
            ),
            Stage.LOADING: lambda d: decide.ready(d, run, leases),
        }
        if stage is Stage.DRAINING and not self.leases(run):
            return lambda d: decide.drained(d, run)
        return onward.get(stage) or self.gone(run)

    def broken(self, run: int) -> Fact:
        return self.random.choice(
            (
                lambda d: decide.fetch_failed(d, run, "no network"),
                lambda d: decide.not_spawned(d, run, "launch", "no executable"),
                lambda d: decide.not_ready(d, run, "port", "a stranger"),
                lambda d: decide.not_ready(d, run, "ready", "silent"),
                lambda d: decide.stop_failed(d, run, (run,), "it lives"),
                lambda d: decide.unhealthy(d, run, "no answer", leases=self.leases(run)),
                lambda d: decide.stop_again(d, run, "operator"),
            )
        )

    def gone(self, run: int) -> Fact:
        launching = Stage.LAUNCHING  # its exit cannot be told before its launch was
        state = self.core.state
        if run in state.runs and state.runs[run].stage in (launching, Stage.RESERVED):
            return lambda d: decide.cancel(d, run, "test")
        return self.random.choice(
            (
                lambda d: decide.exited(d, run, code=1, signal=None, log_tail=("x",)),
                lambda d: decide.swept(d, run, pids=(1,), seconds=0.1, peak_bytes=50),
            )
        )

    def asked(self) -> Fact:
        name, start = self.random.choice((*NAMES, "x")), self.random.random() < 0.2
        return lambda d: decide.request(d, name, "test", start=start)

    def ended(self) -> Fact:
        run = self.run()
        leases, force = self.leases(run), self.random.random() < 0.3
        return self.random.choice(
            (
                lambda d: decide.stop(d, run, "operator", force=force, leases=leases),
                lambda d: decide.cancel(d, run, "nobody waits"),
                lambda d: decide.reopen(d, run, "test"),
                lambda d: room.expire(d, run, self.core.observed()),
                lambda d: room.note_usage(d, self.core.observed()),
                self.gone(run),
            )
        )

    def operated(self) -> Fact:
        name, yes = self.random.choice(NAMES), self.random.random() < 0.5
        model = self.core.state.models.get(name)
        leases = self.leases(model.run or 0) if model else 0
        return self.random.choice(
            (
                lambda d: decide.pin(d, name, pinned=yes),
                lambda d: decide.hold(d, name, "test"),
                lambda d: decide.reset(d, name, "test"),
                lambda d: decide.remove(d, name, force=yes, leases=leases),
            )
        )

    def changed(self) -> Fact:
        pick = self.random
        name = pick.choice(NAMES)
        new = spec(
            name,
            aliases=pick.choice(((), (f"{name}{name}",))),
            args=pick.choice(((), ("--x",))),
            repo=pick.choice((None, "org/m")),
            ports=pick.choice((1, 1, 2)),
            memory=pick.choice((None, 30, 60)),
            pinned=pick.random() < 0.2,
            ttl_s=pick.choice((None, 5.0)),
            crash_budget=pick.choice((2, 5)),
        )
        return pick.choice((lambda d: self.redefine(d, new), self.limit, self.reopened))

    def redefine(self, draft: Draft, new: Any) -> None:
        old = draft.state.models.get(new.name)
        if decide.define(draft, new, ""):
            for run in decide.outdated(draft, draft.state.models[new.name], old):
                decide.stop(draft, run.run, "reload", force=False, leases=self.leases(run.run))

    def limit(self, draft: Draft) -> None:
        draft.emit(
            ev.LimitsSet(
                max_loaded=self.random.choice((1, 2, 3)),
                memory_limit=self.random.choice((None, 60, 100)),
                min_residency_s=self.random.choice((0.0, 10.0)),
            )
        )

    def reopened(self, draft: Draft) -> None:
        """Its owner is killed, and the next one opens the log."""
        boot = self.random.choice(("boot", "another"))
        draft.emit(
            replace(next(e.event for e in self.core.entries if e.seq == 2), boot_id=boot)  # type: ignore[type-var]
        )
        for run in tuple(draft.state.runs.values()):
            same = run.boot_id in ("", boot)
            alive = same and run.pid is not None and not run.exited
            decide.recover(
                draft, run.run, same_boot=same, alive=alive and self.random.random() < 0.7
            )

    # --- what must hold ---

    def check(self, draft: Draft) -> None:
        state = self.core.state.fork()
        for entry in draft.entries:
            was_over = over_limits(state)
            apply(state, entry)
            wrong = violations(state)

            assert not wrong, (wrong, entry)
            assert codec.decode(entry.event.kind, entry.event.version, *_stored(entry)) == (
                entry.event
            )
            lowering = isinstance(entry.event, ev.LimitsSet | ev.ServiceOpened)
            self.lowered = (self.lowered or lowering) and over_limits(state)
            assert self.lowered or not over_limits(state), entry
            if isinstance(entry.event, ev.RunReserved):
                assert not was_over, entry
                assert not over_limits(state), entry
            if isinstance(entry.event, ev.RunEvicting):
                assert not state.models[entry.event.model].pinned, entry
        assert state == draft.state


def _stored(entry: ev.Entry) -> tuple[dict[str, Any], dict[str, Any]]:
    columns, data = codec.encode(entry.event)
    return columns, json.loads(json.dumps(data))


def _through_json(state: State) -> State:
    return state_from_data(json.loads(json.dumps(state_to_data(state))))


@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 120),
    memory_limit=st.sampled_from((None, 100)),
)
def test_no_invariant_breaks_at_any_prefix_of_any_history(
    seed: int, steps: int, memory_limit: int | None
) -> None:
    walk = Walk(seed, memory_limit=memory_limit)
    for _ in range(steps):
        walk.step()
    core = walk.core

    assert replay(core.entries) == core.state
    assert _through_json(core.state) == core.state
    assert violations(_through_json(core.state)) == ()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1))
def test_a_snapshot_at_any_point_leads_to_the_same_state_as_the_whole_history(
    seed: int, cut: float
) -> None:
    walk = Walk(seed)
    for _ in range(100):
        walk.step()
    entries = walk.core.entries
    at = int(cut * len(entries))
    cached = _through_json(replay(entries[:at]))

    assert replay(entries[at:], cached) == walk.core.state
