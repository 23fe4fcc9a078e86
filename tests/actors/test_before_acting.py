"""What is durable, closed or looked at again before the registry acts, and open again if not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from actors.conftest import Open
from moorage import Lease, LogUnavailableError
from moorage.actors import messages as msg
from moorage.core import events as ev
from moorage.protocols import Snapshot


def test_a_spawn_is_ordered_once_its_intent_is_durable_and_not_before(bench: Open) -> None:
    b = bench()
    b.define("a")
    registry = b.service._runtime.registry
    pass_on = registry.tell_model
    durable: list[tuple[int, str]] = []
    ordered: list[tuple[int, str]] = []

    def tell(model: str, message: msg.ToModel) -> None:
        if isinstance(message, msg.Launch):
            ordered.append((message.run, message.nonce))
            durable.extend((e.run, e.nonce) for e in b.events(ev.RunLaunching))
        pass_on(model, message)

    registry.tell_model = tell
    b.service.start("a")

    assert [run for run, _ in ordered] == [1]
    assert durable == ordered


def test_a_cold_lease_waits_for_two_commits_before_the_spawn_and_for_one_before_its_grant(
    bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.define("a")
    append = b.log.append
    commits: list[tuple[str, ...]] = []

    def counted(entries: Sequence[ev.Entry], *, snapshot: Snapshot | None = None) -> None:
        commits.append(tuple(entry.event.kind for entry in entries))
        append(entries, snapshot=snapshot)

    monkeypatch.setattr(b.log, "append", counted)
    lease = b.service.lease("a")
    seen = tuple(commits)
    lease.release()

    assert seen == (
        ("run.queued", "run.reserved"),
        ("run.launching",),
        ("run.launched", "run.ready"),
    )


def test_a_victim_that_is_leased_right_before_its_gate_closes_stays(bench: Open) -> None:
    b = bench()
    b.define("a", "b", "c")
    for name in "ab":
        b.service.start(name)
        b.clock.advance(1)
    hall = b.service._runtime.hall
    close = hall.close
    late: list[Lease] = []

    def close_late(runs: Iterable[int]) -> None:
        leaving = list(runs)
        if leaving and not late:
            late.append(b.service.lease("a"))  # its gate is open still: nobody is asked
        close(leaving)

    hall.close = close_late  # type: ignore[method-assign]
    b.service.start("c")
    lost = [lease.lost for lease in late]
    for lease in late:
        lease.release()

    assert lost == [False]
    assert [e.model for e in b.events(ev.RunEvicting)] == ["b"]


def test_the_gate_of_a_victim_is_open_again_when_its_eviction_was_not_written(bench: Open) -> None:
    b = bench(max_loaded=1)
    b.define("a", "b")
    b.service.start("a")
    b.log.fail_next()
    error = b.error(b.call(lambda: b.service.lease("b")))
    closed = b.service._runtime.hall.table["a"].closed

    assert isinstance(error, LogUnavailableError)
    assert not closed
    assert b.state("a") == "ready"
