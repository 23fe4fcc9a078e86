from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moorage.world import logfiles
from moorage.world.processes import LocalProcesses
from support.servers import misbehave
from world.conftest import Exit, World


def make(folder: Path, name: str, content: bytes | str = "", age: int = 0) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (1_000_000 - age, 1_000_000 - age))
    return path


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    path = make(tmp_path, "a.log", "".join(f"line {n}\n" for n in range(50_000)))

    assert logfiles.tail(path, 3) == ("line 49997", "line 49998", "line 49999")
    assert len(logfiles.tail(path, 20)) == 20
    assert logfiles.tail(path, 0) == ()


def test_the_tail_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert logfiles.tail(tmp_path / "none.log", 5) == ()
    assert logfiles.tail(make(tmp_path, "empty.log"), 5) == ()
    assert logfiles.tail(make(tmp_path, "one.log", "no newline"), 5) == ("no newline",)


def test_the_tail_cannot_harm_a_terminal(tmp_path: Path) -> None:
    content = (
        b"\x1b[31mred\x1b[0m\tx\n\x07\x1b]0;title\x07\n\xff\xfe caf\xc3\xa9\n10%\r50%\r100%\r\n"
    )
    lines = logfiles.tail(make(tmp_path, "a.log", content), 5)

    assert lines == ("red x", "\\x07\\x1b]0;title\\x07", "\ufffd\ufffd café", "100%")
    assert all(line.isprintable() for line in lines)


def test_the_tail_is_bounded_whatever_a_server_writes(tmp_path: Path) -> None:
    path = make(tmp_path, "a.log", b"x" * 1_000_000)
    with path.open("r+b") as sparse:
        sparse.truncate(1 << 40)
    lines = logfiles.tail(path, 5)

    assert len(lines) == 1
    assert len(lines[0]) <= 4 * 1000


def test_what_cannot_be_read_is_said_in_the_tail(tmp_path: Path) -> None:
    assert "cannot be read" in logfiles.tail(tmp_path, 5)[0]


def test_the_tail_reaches_behind_a_rotation(tmp_path: Path) -> None:
    path = make(tmp_path, "a.log", "one\ntwo\n")
    logfiles.rotate(path, keep=2)
    with path.open("a") as file:
        file.write("three\n")

    assert logfiles.tail(path, 2) == ("two", "three")


def test_rotation_keeps_a_count_of_old_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for content in ("1", "2", "3", "4"):
        path.write_text(content)
        logfiles.rotate(path, keep=2)

    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "a.log": "",
        "a.log.1": "4",
        "a.log.2": "3",
    }


def test_rotation_without_old_parts_only_truncates(tmp_path: Path) -> None:
    path = make(tmp_path, "a.log", "content")
    logfiles.rotate(path, keep=0)

    assert [p.name for p in tmp_path.iterdir()] == ["a.log"]
    assert path.read_text() == ""


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let no file of this process grow beyond a limit: like a full disk, without root."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_costs_the_old_lines_and_not_the_bound(tmp_path: Path) -> None:
    path = make(tmp_path, "a.log", b"x" * 200_000)
    with full_disk(100_000):
        logfiles.rotate(path, keep=2)

    assert path.stat().st_size == 0
    assert [p.name for p in tmp_path.iterdir()] == ["a.log"]


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("model-12.log", ("model-{}.log", "model-x-{}.log")),
        ("12.log", ("{}.log", "x{}.log")),
        ("m2-v3.run0012.out", ("m2-v3.run{:04}.out", "m2-v4.run{:04}.out")),
    ],
)
def test_old_logs_of_the_same_model_are_kept_by_count(
    tmp_path: Path, name: str, others: tuple[str, str]
) -> None:
    path = make(tmp_path, name)
    same = [make(tmp_path, others[0].format(n), age=100 - n) for n in range(1, 8)]
    part = make(tmp_path, f"{same[6].name}.1", age=50)
    other = [make(tmp_path, others[1].format(n), age=100 - n) for n in range(1, 8)]
    logfiles.prune(path, 12, 3, live={same[0]})
    left = set(tmp_path.iterdir())

    assert left == {path, same[0], same[6], same[5], part, *other} - {same[5]} | {same[5]}


def test_a_file_without_its_run_number_has_no_siblings(tmp_path: Path) -> None:
    path = make(tmp_path, "server.log")
    make(tmp_path, "other.log", age=9)
    logfiles.prune(path, 12, 0, live=set())

    assert len(list(tmp_path.iterdir())) == 2


def rotated(path: Path, number: int = 1) -> Path:
    return path.with_name(f"{path.name}.{number}")


def look(processes: LocalProcesses) -> None:
    """Do what the housekeeper's thread does every second."""
    processes._housekeeper.look()


def test_a_server_that_never_stops_writing_is_bounded(rotating: Callable[..., World]) -> None:
    world = rotating(max_log_bytes=200_000, keep_logs=2, housekeeping_s=0.01)
    run = world.start("--flood")
    log_file = world.log_file(run)
    told = Exit()
    world.processes.watch(run, told)
    waits = threading.Event()
    for _ in range(2000):
        if rotated(log_file, 2).exists():
            break
        waits.wait(0.005)
    world.stop(run)
    world.processes.close()

    assert rotated(log_file, 2).exists()
    assert {p.name for p in log_file.parent.iterdir()} <= {
        log_file.name,
        rotated(log_file, 1).name,
        rotated(log_file, 2).name,
    }
    assert world.processes.log_tail(log_file)[-1]


def test_a_server_writes_on_after_its_log_was_rotated(rotating: Callable[..., World]) -> None:
    world = rotating(max_log_bytes=1000, keep_logs=1, housekeeping_s=3600)
    ear = world.ear()
    run = world.start("--print", "x" * 3000, "--terms", "2", "--tell", str(ear.path))
    look(world.processes)
    assert run.identity is not None
    os.kill(run.identity.pid, 15)
    ear.hear("term")
    log_file = world.log_file(run)

    assert log_file.read_text() == "term\n"
    assert "x" * 3000 in rotated(log_file).read_text()
    assert world.processes.log_tail(log_file, lines=1) == ("term",)


def test_the_log_of_an_adopted_server_is_rotated_too(rotating: Callable[..., World]) -> None:
    world = rotating(housekeeping_s=3600)
    run = world.start("--print", "x" * 3000)
    manager = world.another_manager(max_log_bytes=1000, keep_logs=1, housekeeping_s=3600)
    told = Exit()
    manager.watch(run, told, log_file=world.log_file(run))
    look(manager)

    assert world.log_file(run).read_text() == ""
    assert rotated(world.log_file(run)).exists()
    world.stop(run, by=manager)
    told.wait()


def test_one_log_that_cannot_be_rotated_does_not_keep_others_from_it(
    rotating: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = rotating(max_log_bytes=1000, keep_logs=1, housekeeping_s=3600)
    bad, good = world.start("--print", "x" * 3000), world.start("--print", "x" * 3000)
    rotated(world.log_file(bad)).mkdir()
    look(world.processes)

    assert world.log_file(good).read_text() == ""
    assert f"run {bad.run} failed" in caplog.text


def test_old_runs_logs_go_when_a_model_is_launched_again(rotating: Callable[..., World]) -> None:
    world = rotating(keep_logs=2, housekeeping_s=3600)
    for _ in range(6):
        world.stop(world.launch(world.order("/bin/sh", "-c", "echo done")))
    last = world.start()
    look(world.processes)
    left = sorted((world.folder / "logs").iterdir())

    assert len(left) == 3
    assert world.log_file(last) in left


def test_a_file_that_a_server_writes_to_by_itself_is_left_alone(
    rotating: Callable[..., World], tmp_path: Path
) -> None:
    own = tmp_path / "own.log"
    world = rotating(max_log_bytes=1000, keep_logs=1, housekeeping_s=3600)
    port = world.port()
    server = misbehave(port, "--print", "x" * 3000)
    order = world.order("/bin/sh", "-c", f'exec "$@" >>{own}', "sh", *server)
    run = world.launch(order, port)
    assert world.wait_ready(run).outcome == "ready"
    adopting = world.another_manager(max_log_bytes=1000, keep_logs=1, housekeeping_s=3600)
    adopting.watch(run, Exit(), log_file=order.log_file)
    for manager in (world.processes, adopting):
        look(manager)

    assert len(own.read_text()) > 3000
    assert not rotated(own).exists()
