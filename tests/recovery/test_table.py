"""Rows of the recovery table with real servers: what an owner left and what the next one does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage import ModelService
from moorage.actors import effects
from moorage.world.procfs import ProcSystem
from recovery.leaving import alive, events_of, lease_anew, left_behind, run_of, serves
from recovery.owner import answered_by
from support.services import LIMIT_S, Outcome, check_log, server, settle, state_of

Reopen = Callable[..., ModelService]

TWO_READY = """
service = open_()
service.define(server("a", "--name", "a"), server("b", "--name", "b"))
for name in "ab":
    print(service.start(name).pid)
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "ADOPT_S", 3.0)


@pytest.fixture
def two_ready(folder: Path, pool: range) -> list[int]:
    """Two servers whose owner was killed; their pids."""
    return [int(pid) for pid in left_behind(folder, pool, TWO_READY).split()]


def test_a_changed_spec_takes_over_the_survivor_and_drains_it_as_a_reload(
    reopen: Reopen, two_ready: list[int], folder: Path
) -> None:
    service = reopen()
    settle(serves(service, "a"))
    with service.lease("a") as lease:
        service.define(server("a", "--name", "new"))
        assert service.model("a").pid == two_ready[0]
        assert answered_by(lease.port) == "a"
        assert not lease.lost
        old = lease.run
    with service.lease("a") as lease:
        assert lease.run != old
        assert answered_by(lease.port) == "new"

    assert [e.reason for e in events_of(folder, "run.draining", run=old)] == ["reload"]
    assert len(events_of(folder, "run.adopted", run=old)) == 1


def test_a_spec_changed_while_opening_drains_the_survivor_as_a_reload(
    reopen: Reopen, two_ready: list[int], folder: Path
) -> None:
    service = reopen(models=[server("a", "--name", "new"), server("b", "--name", "b")])
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "new"
    with service.lease("b") as lease:
        assert service.model("b").pid == two_ready[1]

    assert [e.reason for e in events_of(folder, "run.draining", model="a")] == ["reload"]
    assert not alive(two_ready[0])


def test_fewer_places_than_survivors_admit_nothing_and_evict_the_least_recently_used(
    reopen: Reopen, two_ready: list[int], folder: Path
) -> None:
    service = reopen(max_loaded=1)
    settle(lambda: service.model("a").state == "stopped")

    settle(serves(service, "b"))
    evicted = events_of(folder, "run.evicting")
    assert [(e.model, e.reason) for e in evicted] == [("a", "limits")]
    assert service.model("b").pid == two_ready[1]
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"
    service.close()
    check_log(folder)


def test_a_port_outside_the_new_pool_is_kept_until_its_run_is_released(
    reopen: Reopen, two_ready: list[int], pool: range
) -> None:
    new = range(pool[50], pool[60])
    service = reopen(ports=new)
    settle(serves(service, "a"))
    old = service.model("a").ports[0]
    with service.lease("a") as lease:
        assert lease.port == old
        assert old not in new
    assert old in service.status().ports_held
    service.stop("a")

    assert old not in service.status().ports_held
    assert service.status().ports_free == len(new)
    assert service.start("a").ports[0] in new


@pytest.mark.parametrize("how", ["stop", "remove"])
def test_a_drain_that_an_operator_asked_for_goes_on(
    reopen: Reopen, folder: Path, pool: range, how: str
) -> None:
    pid = left_behind(
        folder,
        pool,
        f"""
        service = open_()
        service.define(server("a"))
        seen = Seen(service)
        lease = service.lease("a")
        print(service.model("a").pid, flush=True)
        threading.Thread(target=lambda: service.{how}("a"), daemon=True).start()
        seen.wait("run.draining")
        """,
    )
    service = reopen()
    settle(lambda: not state_of(service).runs)

    assert not alive(int(pid))
    reason = {"stop": "operator", "remove": "remove"}[how]
    assert {e.reason for e in events_of(folder, "run.stopping")} == {reason}
    assert not events_of(folder, "run.adopted")
    assert [e.outcome for e in events_of(folder, "run.released")] == ["ok"]
    assert bool(events_of(folder, "model.removed")) == (how == "remove")


def test_a_drain_for_room_is_undone(reopen: Reopen, folder: Path, pool: range) -> None:
    pid = left_behind(
        folder,
        pool,
        """
        service = open_(max_loaded=1)
        service.define(server("a"), server("b"))
        seen = Seen(service)
        lease = service.lease("a")
        print(service.model("a").pid, flush=True)
        threading.Thread(target=lambda: service.lease("b"), daemon=True).start()
        seen.wait("run.evicting")
        """,
    )
    service = reopen(max_loaded=1)
    settle(serves(service, "a"))

    assert service.model("a").pid == int(pid)
    assert service.status().lru == ("a",)
    assert service.status().queue == ()
    assert [e.outcome for e in events_of(folder, "run.abandoned")] == ["lost"]


def test_a_load_goes_on_with_a_new_deadline(
    reopen: Reopen, folder: Path, pool: range, tmp_path: Path
) -> None:
    """The server's files come after its first owner's deadline and within the second's."""
    file = tmp_path / "ready"
    left_behind(
        folder,
        pool,
        """
        service = open_()
        service.define(server("a", "--ready-file", arguments[0], "--name", "a"))
        seen = Seen(service)
        threading.Thread(target=lambda: service.start("a"), daemon=True).start()
        print(seen.wait("run.launched").event.pid, flush=True)
        """,
        file,
    )
    service = reopen()
    run = run_of(service, "a")
    assert run is not None
    assert run.stage == "loading"
    waiting = Outcome(lambda: service.lease("a", LIMIT_S))
    file.touch()

    with waiting.get() as lease:
        assert lease.run == run.run
        assert answered_by(lease.port) == "a"


def test_a_launch_whose_pid_is_not_known_is_swept_and_never_adopted(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    pid = left_behind(
        folder,
        pool,
        """
        from moorage.world.processes import LocalProcesses
        class Dying(LocalProcesses):
            def launch(self, order):
                print(super().launch(order).pid, flush=True)
                die()
        service = open_(parts=Parts(processes=Dying()))
        service.define(server("a", "--daemon"))
        service.start("a")
        """,
    )
    service = reopen()
    settle(lambda: not state_of(service).runs)

    assert not alive(int(pid))
    assert not events_of(folder, "run.adopted")
    assert [e.outcome for e in events_of(folder, "run.released")] == ["lost"]


def test_another_boot_takes_every_run_with_it_and_signals_nobody(
    reopen: Reopen, two_ready: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pids of the log are those of strangers then: here of the servers of before."""
    monkeypatch.setattr(ProcSystem, "boot_id", lambda _self: "another-boot")
    monkeypatch.setattr(ProcSystem, "chain", lambda _self, _pid: ())
    service = reopen()

    assert state_of(service).runs == {}
    assert all(alive(pid) for pid in two_ready)
    assert [e.outcome for e in events_of(folder, "run.released")] == ["lost", "lost"]
    for pid in two_ready:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("impatient")
def test_a_survivor_that_does_not_answer_delays_neither_open_nor_the_others(
    reopen: Reopen, two_ready: list[int], folder: Path
) -> None:
    os.kill(two_ready[0], signal.SIGSTOP)
    began = time.monotonic()
    service = reopen()
    with service.lease("b", LIMIT_S):
        took = time.monotonic() - began
    assert took < effects.ADOPT_S, "it waited for the server that does not answer"
    assert service.model("a").pid == two_ready[0]

    with lease_anew(service, "a") as lease:
        assert answered_by(lease.port) == "a"
    assert service.model("a").pid != two_ready[0]
    assert not alive(two_ready[0])
    assert [e.reason for e in events_of(folder, "run.draining")] == ["unhealthy"]


def test_a_survivor_that_died_meanwhile_is_swept_and_released_as_lost(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    script = """
    service = open_()
    service.define(server("a", "--detached", "--name", "a"))
    print(service.start("a").pid)
    print(*[p.pid for p in service._runtime._processes.find(service._runtime.log.log_id)])
    """
    leader, *tree = map(int, left_behind(folder, pool, script).split())
    os.kill(leader, signal.SIGKILL)
    service = reopen()
    with service.lease("a") as lease:
        assert answered_by(lease.port) == "a"

    assert len(set(tree)) == 2
    assert not any(map(alive, tree))
    assert [e.outcome for e in events_of(folder, "run.released")] == ["lost"]
    assert service.model("a").attempts == 0


def test_a_stop_that_failed_stays_so_and_is_tried_again(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    pid = left_behind(
        folder,
        pool,
        """
        from moorage.protocols import StopReport
        from moorage.world.processes import LocalProcesses
        class Powerless(LocalProcesses):
            def stop(self, process, signals, **more):
                pid = process.identity.pid
                return StopReport(swept=(), remaining=(pid,), unproven=(), ports_open=(),
                                  seconds=0, peak_bytes=None)
        service = open_(parts=Parts(processes=Powerless()))
        service.define(server("a"))
        print(service.start("a").pid, flush=True)
        try:
            service.stop("a")
        except StopFailedError:
            pass
        """,
    )
    assert alive(int(pid))
    service = reopen()
    settle(lambda: not state_of(service).runs)

    assert not alive(int(pid))
    kinds = [e.kind for e in events_of(folder, "run.", run=1)]
    assert kinds[-5:].count("run.stop_failed") == 1
    assert kinds[-1] == "run.released"


def test_a_kill_during_recovery_and_again_changes_nothing(
    reopen: Reopen, two_ready: list[int], folder: Path, pool: range
) -> None:
    for appends in (1, 2, 3):
        left_behind(
            folder,
            pool,
            """
            from moorage.log.sqlite import SqliteLog
            log, left = SqliteLog.open(folder), [int(arguments[0])]
            work = log.append
            def append(*args, **more):
                work(*args, **more)
                left[0] -= 1
                if not left[0]:
                    die()
            log.append = append
            service = open_(parts=Parts(log=log))
            service.define(server("c"))
            service.start("c")
            service.stop("c")
            """,
            appends,
        )
    service = reopen()
    for name, pid in zip("ab", two_ready, strict=True):
        with service.lease(name) as lease:
            assert answered_by(lease.port) == name
            assert service.model(name).pid == pid
    service.close()
    check_log(folder)


ALWAYS = """
service = open_()
service.define(server("a", "--name", "a", restart="always"))
pid = service.start("a").pid
print(pid, flush=True)
"""


def test_a_model_that_always_runs_is_started_anew_when_its_server_was_lost(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    pid = int(left_behind(folder, pool, ALWAYS))
    os.kill(pid, signal.SIGKILL)
    service = reopen()
    settle(serves(service, "a"))

    assert service.model("a").pid != pid
    assert [e.requested_by for e in events_of(folder, "run.queued")] == ["start('a')", "restart"]


def test_a_model_that_always_runs_is_started_anew_after_its_backoff_also_by_the_next_owner(
    reopen: Reopen, folder: Path, pool: range
) -> None:
    left_behind(
        folder,
        pool,
        f"""
        from moorage.core.decide import ends
        ends.BACKOFF_S = (0.2,)
        {ALWAYS.strip().replace(chr(10), chr(10) + " " * 8)}
        seen = Seen(service)
        os.kill(pid, signal.SIGKILL)
        seen.wait("model.backoff")
        """,
    )
    service = reopen()
    settle(serves(service, "a"))

    assert service.model("a").state == "ready"
