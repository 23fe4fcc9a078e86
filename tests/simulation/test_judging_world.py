"""The judge's rules of processes, ports and signals."""

from __future__ import annotations

import pytest

from simulation.telling import LOG_ID, Tale


def reserved(tale: Tale) -> Tale:
    return tale.queue("a", 1).reserve(1).look()


def test_a_server_begins_after_its_intent_is_durable() -> None:
    Tale("a").load("a", 1)
    early = reserved(Tale("a")).serve(1).wrong()
    other = reserved(Tale("a")).row("run.launching", run=1, nonce="n1").look()
    other.serve(1, token=f"{LOG_ID}:1:else")

    assert "a server of run 1 began before its run.launching was durable" in early
    assert "a server of run 1 began before its run.launching was durable" in other.wrong()


def test_no_server_begins_for_a_run_that_has_ended() -> None:
    tale = reserved(Tale("a")).row("run.launching", run=1, nonce="n1").look()
    late = tale.serve(1).servers.pop(1)
    tale.row("run.released", run=1, outcome="failed: launch").look().servers[1] = late

    assert tale.wrong() == "a server of run 1 began, which has ended"


def test_a_server_is_the_one_its_run_says() -> None:
    tale = reserved(Tale("a")).row("run.launching", run=1, nonce="n1").look()
    said = tale.serve(1, ports=(18002,)).wrong()

    assert "a server of 'a' on (18002,) began for run 1 of 'a' on (18000,)" in said


def test_no_server_begins_for_a_run_that_drains() -> None:
    tale = Tale("a").queue("a", 1).reserve(1).row("run.launching", run=1, nonce="n1")
    tale.row("run.launched", run=1, pid=1001).row("run.ready", run=1).row("run.draining", run=1)

    assert "a server began for run 1, which is draining" in tale.look().serve(1).wrong()


def test_no_server_begins_while_nobody_has_the_log_open() -> None:
    tale = reserved(Tale("a")).row("run.launching", run=1, nonce="n1").look()
    tale.open = False
    said = tale.look().serve(1).wrong()

    assert "a server of run 1 began while nobody had the log open" in said


def test_the_pid_of_a_launch_is_that_of_the_leader() -> None:
    tale = reserved(Tale("a")).row("run.launching", run=1, nonce="n1").look().serve(1).look()
    said = tale.row("run.launched", run=1, pid=77).wrong()

    assert "run 1 was launched as pid 77, its leader is 1001" in said


def test_one_tree_of_a_model_lives_at_a_time() -> None:
    tale = Tale("a").load("a", 1)
    old = tale.servers[1]
    tale.servers.clear()
    tale.row("run.exited", run=1).row("run.swept", run=1).row("run.released", run=1).look()
    tale.load("a", 2)
    tale.servers[1] = old

    assert "two trees of 'a' live" in tale.wrong()


def test_an_exit_is_recorded_after_it_happened() -> None:
    tale = Tale("a").load("a", 1)
    tale.serve(1, leader_alive=False, others=(2001,)).row("run.exited", run=1).look()
    said = Tale("a").load("a", 1).row("run.exited", run=1).wrong()

    assert "run 1 is said to have exited, its leader 1001 lives" in said


@pytest.mark.parametrize("last", ["run.swept", "run.released"])
def test_a_tree_is_told_empty_and_its_port_released_when_it_is(last: str) -> None:
    tale = Tale("a").load("a", 1)
    tale.serve(1, leader_alive=False, others=(2001, 2002)).row("run.exited", run=1).look()
    if last == "run.released":
        tale.servers.clear()
        tale.row("run.swept", run=1).look().serve(1, leader_alive=False, others=(2001, 2002))

    assert f"{last} of run 1, but pids 2001, 2002 of its tree live" in tale.row(last, run=1).wrong()


def test_no_port_is_handed_out_that_a_tree_of_ours_still_has() -> None:
    tale = Tale("a", "b", ports=((18000, 18000),)).load("a", 1)
    left = tale.servers[1]
    tale.stop(1).queue("b", 2).look()
    tale.servers[1] = left
    tale.reserve(2)

    assert "port 18000 was given to run 2 while pids 1001 of run 1 live" in tale.wrong()


def test_only_what_is_ours_is_signalled() -> None:
    tale = Tale("a").load("a", 1).row("run.stopping", run=1).look(signalled=(1001,))
    tale.end(1).look(signalled=(1001,))  # it died of it
    late = tale.wrong(signalled=(1001,))
    stranger = Tale("a").load("a", 1).wrong(signalled=(77,), strangers={18001: 77})

    assert "pid 1001 was signalled, which is none of ours" in late
    assert "pid 77 was signalled, which is none of ours" in stranger


def test_a_tree_of_another_log_is_none_of_ours() -> None:
    tale = Tale("a", "b").load("a", 1)
    tale.servers[9] = tale.serve(1, token="f" * 16 + ":1:n1", leader=3001).servers[1]
    tale.serve(1).look()

    assert "pid 3001 was signalled, which is none of ours" in tale.wrong(signalled=(3001,))


def test_what_serves_is_not_signalled() -> None:
    tale = Tale("a").load("a", 1)

    assert "pid 1001 of run 1 was signalled while that is ready" in tale.wrong(signalled=(1001,))


def test_a_survivor_is_adopted_as_what_it_was() -> None:
    tale = Tale("a").load("a", 1)
    tale.row("service.opened").row("run.adopted", run=1, state="ready").look()
    other = Tale("a").load("a", 1).row("run.adopted", run=1, state="loading").wrong()
    pid = Tale("a").load("a", 1).row("run.adopted", run=1, state="ready", pid=5).wrong()

    assert "adopted as loading, but it was ready" in other
    assert "pid 5 is not that of its launch (1001)" in pid
