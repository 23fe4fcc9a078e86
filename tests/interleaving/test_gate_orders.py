"""Every order in which users, registry, death and finalisers can take their steps at a gate.

The code is the real one: `ModelService.lease`, `Lease`, `Hall`, `Registry.handle` with decisions,
fold and log, and the exit watcher's part of a model. `steps` says how it is made to tell what it
does with what it shares; `explore` visits every state that any order leads to.
"""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interleaving import parties
from interleaving.explore import WrongError
from interleaving.live import Live
from interleaving.steps import FIXED, HINTS, WATCHED, Party, Small, WatchedGate, quiet_finalisers
from interleaving.worlds import SMALL, WHOLE, world
from moorage import Lease, ModelService
from moorage.actors import answers, effects, gate, hall
from moorage.actors.gate import Gate
from moorage.actors.hall import Hall
from moorage.actors.registry import Registry
from support import seeds

pytestmark = pytest.mark.timeout(180)
LIVE_HISTORIES = 10


@pytest.fixture(autouse=True)
def interrupts_only() -> Iterator[None]:
    """Finalisers may be interrupted, and paused where a run ends; nothing else goes wrong there."""
    with quiet_finalisers() as seen:
        yield
    assert {kind.__name__ for kind in seen if kind is not None} <= {"KeyboardInterrupt", "Pause"}


@pytest.mark.parametrize("named", SMALL)
def test_no_order_breaks_a_claim(named: str) -> None:
    found = world(named).explore()
    print(f"{named}: {found}")

    assert found.histories > 100_000
    assert found.finals
    assert {"using", "leaving", "decided", "stage"} <= found.marks


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("named", WHOLE)
def test_no_order_breaks_a_claim_in_a_large_world(named: str) -> None:
    found = world(named).explore()
    print(f"{named}: {found}")

    assert found.histories > 1_000_000


# --- faults that are known to be faults are found ---


def _looks_before_it_announces(monkeypatch: pytest.MonkeyPatch) -> None:
    def lease(self: Any, name: str) -> Lease:
        found = self._hall.table.get(name)
        if found is None or found.closed:
            raise parties.SlowWay
        return Lease(found, None)

    monkeypatch.setattr(ModelService, "lease", lease)


def _looks_before_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, close = Hall.busy, Hall.close

    def look_then_close(self: Hall, runs: Any) -> bool:
        found = busy(self, runs)
        close(self, runs)
        return found

    monkeypatch.setattr(Hall, "close", lambda _self, _runs: None)
    monkeypatch.setattr(Hall, "busy", look_then_close)


def _looks_at_the_gate_before_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: Lease) -> None:
        closed = self._gate.closed
        left = self._gate.holders.pop(self._key, None) is not None
        if left and closed and not self._gate.holders:
            self._gate.on_empty(1)

    monkeypatch.setattr(Lease, "release", release)


def _does_not_look_whether_the_last_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "_left", lambda *_: False)


def _takes_another_out_when_it_releases_again(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Lease.release

    def release(self: Lease) -> None:
        if self._key not in self._gate.holders:
            self._gate.holders.pop(3 - self._key, None)
        once(self)

    monkeypatch.setattr(Lease, "release", release)


def _forgets_that_the_run_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "lost", property(lambda self: self._key not in self._gate.holders))


def _hears_of_no_lost_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "partial", lambda *_: None)


def _does_not_reopen(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Hall.settle

    def keep_closed(self: Hall, state: Any) -> None:
        closed = self._gates[1].closed if 1 in self._gates else False
        settle(self, state)
        if closed and 1 in self._gates:
            self.close([1])
            self.publish(state)

    monkeypatch.setattr(Hall, "settle", keep_closed)


@pytest.mark.parametrize(
    ("named", "plant", "says"),
    [
        ("evict user", _looks_before_it_announces, "hold a run of which the registry"),
        ("stop user user", _looks_before_it_announces, "hold a run of which the registry"),
        ("evict user", _looks_before_it_closes, "hold a run of which the registry decided"),
        ("stop user user", _looks_before_it_closes, "hold a run of which the registry decided"),
        ("stop user", _looks_at_the_gate_before_it_leaves, "nobody told the registry"),
        ("stop user", _does_not_look_whether_the_last_has_left, "nobody told the registry"),
        ("evict user repeating", _takes_another_out_when_it_releases_again, "lost|nobody told"),
        ("stop user death", _forgets_that_the_run_is_dead, "is not told that the run is dead"),
        ("stop forgetful", _hears_of_no_lost_lease, "still hold it"),
        ("evict user leaver", _does_not_reopen, "the run serves, and its gate is closed"),
    ],
)
def test_a_planted_fault_is_found(
    named: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)

    with pytest.raises(WrongError, match=says) as caught:
        world(named).explore()

    assert len(str(caught.value).splitlines()) > 3  # the history that shows it


# --- the steps are all there are, and what was made of them loses nothing ---


def test_every_field_of_a_gate_is_a_step_or_decides_nothing() -> None:
    assert set(Gate.__slots__) == WATCHED | HINTS | FIXED
    assert all(isinstance(vars(WatchedGate)[name], property) for name in WATCHED)


def test_every_field_of_a_hall_is_a_step_or_belongs_to_the_registry() -> None:
    steps = {"table", "_gates"}
    registrys = {"_used_at", "_unproven", "_now", "_on_empty"}
    before_there_is_a_gate = {"_dead"}

    fields = set(vars(Hall(lambda: 0.0, lambda _run: None)))
    assert fields == steps | registrys | before_there_is_a_gate


@pytest.mark.parametrize("module", [gate, hall, effects, answers])
def test_fields_that_are_no_steps_are_never_written_once_a_gate_is_made(module: Any) -> None:
    written = {
        node.attr
        for function in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(function, ast.FunctionDef) and function.name != "__init__"
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }

    assert not written & FIXED


def test_a_task_takes_the_steps_that_a_thread_takes() -> None:
    thread = Small("user", parties.user(1), 1)
    task = Small("user", parties.user(1, parties.awaiting), 1)

    assert task.shape() == thread.shape()
    assert len(thread.accesses) > 10


class _Unmerged(Party):
    """Remembers all that was ever answered."""

    def _found(self, path: tuple[Any, ...], *, knows_keys: bool) -> int:
        self._points.clear()
        return super()._found(path, knows_keys=knows_keys)


def test_a_registry_that_forgets_answers_has_as_many_histories_as_one_that_does_not() -> None:
    forgetting = world("evict user death").explore()
    whole = world("evict user death", kind=_Unmerged).explore()

    assert forgetting.histories == whole.histories
    assert forgetting.states < whole.states


@pytest.mark.parametrize("named", ["evict user user", "stop user death"])
def test_steps_that_are_made_at_once_and_users_that_are_alike_change_no_end(named: str) -> None:
    merged = world(named)
    whole = world(named, merged=False)
    ends = merged.explore().finals
    all_ends = whole.explore().finals

    assert {merged.meaning(end) for end in ends} == {whole.meaning(end) for end in all_ends}


@pytest.mark.parametrize("scenario", parties.SCENARIOS)
def test_real_threads_at_a_real_gate_do_what_was_found(scenario: str) -> None:
    one = world(f"{scenario} user forgetful interrupted sharing death leaver")
    chance = random.Random(seeds.seed("ORDER"))
    steps = sum(Live(one.parties, chance).play() for _ in range(LIVE_HISTORIES))

    assert steps > 20 * LIVE_HISTORIES
