"""The state is rebuilt from the log; a snapshot only saves the way there."""

from __future__ import annotations

import pytest

from moorage.actors.ledger import SNAPSHOT_EVERY, Ledger
from moorage.core import events as ev
from moorage.core.draft import Draft
from moorage.core.fold import FOLD_VERSION, replay
from moorage.core.snapshot import state_from_data, state_to_data
from moorage.core.state import State
from moorage.protocols import Snapshot
from moorage.testing import FakeClock, MemoryLog


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    draft = Draft(State(), FakeClock().now())
    draft.emit(ev.LogCreated(log_id=log.log_id, program="1"))
    log.append(draft.entries)
    return log


def loaded(log: MemoryLog) -> State:
    return Ledger(log, FakeClock(), lambda entries: None).state


def put(log: MemoryLog, data: dict[str, object]) -> None:
    draft = Draft(loaded(log), FakeClock().now())
    limits = ev.LimitsSet(max_loaded=3, memory_limit=None, min_residency_s=0.0)
    draft.emit(limits)
    log.append(draft.entries, snapshot=Snapshot(draft.state.seq, FOLD_VERSION, data))


def test_a_snapshot_is_where_the_fold_begins(log: MemoryLog) -> None:
    changed = loaded(log)
    changed.seq, changed.max_loaded = 2, 7
    put(log, state_to_data(changed))

    assert loaded(log).max_loaded == 7


def nested(levels: int) -> list[object]:
    found: list[object] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    "damage",
    [{}, {"models": 3}, {"runs": [{}]}, {"seq": 1}, {"pool": nested(600)}],
    ids=["nothing", "models", "runs", "seq", "nested too deeply"],
)
def test_a_snapshot_that_does_not_fit_is_passed_over(
    log: MemoryLog, damage: dict[str, object]
) -> None:
    put(log, state_to_data(loaded(log)) | damage if damage else {})

    assert loaded(log).max_loaded == 3
    assert loaded(log).seq == 2


def limits(ledger: Ledger, count: int) -> Draft:
    draft = ledger.draft()
    for number in range(count):
        draft.emit(ev.LimitsSet(max_loaded=number + 1, memory_limit=None, min_residency_s=0.0))
    return draft


def test_a_snapshot_is_the_state_after_the_entry_that_it_is_of(log: MemoryLog) -> None:
    ledger = Ledger(log, FakeClock(), lambda entries: None)
    ledger.note(limits(ledger, SNAPSHOT_EVERY // 2))
    ledger.commit(limits(ledger, SNAPSHOT_EVERY))
    by_decision = log.snapshot(FOLD_VERSION)
    ledger.note(limits(ledger, SNAPSHOT_EVERY))
    ledger.flush()
    by_flush = log.snapshot(FOLD_VERSION)

    for snapshot, seq in ((by_decision, ledger.state.seq - SNAPSHOT_EVERY), (by_flush, log.head)):
        assert snapshot is not None
        assert snapshot.seq == seq
        assert state_from_data(snapshot.state) == replay(log.read(limit=seq))
