from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from log.making import some
from moorage.errors import StateInUseError
from moorage.log.files import StateFiles
from moorage.log.lock import read_owner
from moorage.log.sqlite import SqliteLog

StartPython = Callable[..., "subprocess.Popen[str]"]

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")

OWNER = """
import os, sys
from pathlib import Path
from moorage.log.sqlite import SqliteLog
log = SqliteLog.open(Path(sys.argv[1]), owner_note="the first")
if "fork" in sys.argv and os.fork() == 0:
    os.write(1, f"{os.getpid()}\\n".encode())  # in one piece, as both write
    sys.stdin.read()
    os._exit(0)
os.write(1, b"open\\n")
sys.stdin.readline()
log.close()
print("closed", flush=True)
sys.stdin.read()
"""

CONTENDER = """
import sys
from pathlib import Path
from moorage.errors import StateInUseError
from moorage.log.sqlite import SqliteLog
print("ready", flush=True)
sys.stdin.readline()
try:
    log = SqliteLog.open(Path(sys.argv[1]))
    print("won", flush=True)
except StateInUseError as error:
    print("lost", error.owner, flush=True)
sys.stdin.read()
"""


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_a_second_owner_in_the_same_process_is_told_who_is_first(
    log: SqliteLog, state: Path
) -> None:
    with pytest.raises(StateInUseError, match=f"process {os.getpid()} on .* since 20"):
        SqliteLog.open(state)

    log.append(some(1))
    assert log.head == 1


def test_a_second_owner_in_another_process_is_told_who_is_first(
    state: Path, start_python: StartPython
) -> None:
    owner = start_python(OWNER, state)
    assert line_of(owner) == "open"

    with pytest.raises(StateInUseError, match=rf"process {owner.pid} on .*\(the first\)"):
        SqliteLog.open(state)


@pytest.mark.parametrize("kind", ["symlink", "dots"])
def test_another_path_to_the_same_folder_is_the_same_state(
    log: SqliteLog, state: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "link").symlink_to(state)
    other = {"symlink": tmp_path / "link", "dots": state / ".." / state.name}[kind]
    with pytest.raises(StateInUseError):
        SqliteLog.open(other)

    assert log.head == 0


@ON_LINUX
def test_a_copy_of_a_live_state_is_refused_and_left_alone(
    log: SqliteLog, state: Path, tmp_path: Path
) -> None:
    log.append(some(2))
    copy = tmp_path / "copy"
    shutil.copytree(state, copy)
    before = {path.name: path.read_bytes() for path in copy.iterdir() if "lock" not in path.name}
    with pytest.raises(StateInUseError, match=f"process {os.getpid()} on this host"):
        SqliteLog.open(copy)
    log.close()
    with closing(SqliteLog.open(copy)) as opened:
        seen = [entry.seq for entry in opened.read()]

    assert seen == [1, 2]
    assert "moorage.db" in before


@ON_LINUX
def test_many_refused_copies_are_all_refused(log: SqliteLog, state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(state, copy)
    for _ in range(300):
        with pytest.raises(StateInUseError):
            SqliteLog.open(copy)

    assert log.head == 0


def test_a_closed_state_can_be_opened_again_at_once(state: Path) -> None:
    for _ in range(5):
        SqliteLog.open(state).close()

    assert read_owner(StateFiles(state).lock) == "a process that has not given its name"


def test_one_waits_for_the_owner_to_leave(log: SqliteLog, state: Path) -> None:
    trying = threading.Event()
    opened: list[SqliteLog] = []

    def wait() -> None:
        trying.set()
        opened.append(SqliteLog.open(state, wait_s=20))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert trying.wait(10)
    log.close()
    waiter.join(20)
    opened[0].close()

    assert not waiter.is_alive()


def test_waiting_ends_at_its_limit(log: SqliteLog, state: Path) -> None:
    with pytest.raises(StateInUseError):
        SqliteLog.open(state, wait_s=0.05)

    assert log.head == 0


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_a_killed_owner_lets_go_of_the_log(
    state: Path, start_python: StartPython, mode: str
) -> None:
    """Also when the owner had forked a child that lives on with copies of its descriptors."""
    owner = start_python(OWNER, state, mode)
    lines = {line_of(owner) for _ in range(2 if mode == "fork" else 1)}
    child = next((int(line) for line in lines - {"open"}), None)
    owner.send_signal(signal.SIGKILL)
    owner.wait(10)
    try:
        with closing(SqliteLog.open(state)) as log:
            log.append(some(1))
        if child is not None:
            os.kill(child, 0)  # it still lives
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)

    assert log.head == 1


def test_of_several_processes_one_wins(state: Path, start_python: StartPython) -> None:
    contenders = [start_python(CONTENDER, state) for _ in range(4)]
    for each in contenders:
        assert line_of(each) == "ready"
    for each in contenders:
        tell(each)
    answers = sorted(line_of(each).split()[0] for each in contenders)

    assert answers == ["lost", "lost", "lost", "won"]


def test_of_several_threads_one_wins_and_no_new_folder_is_spoilt(tmp_path: Path) -> None:
    for index in range(10):
        state = tmp_path / f"state{index}"
        won: list[SqliteLog] = []
        lost: list[StateInUseError] = []
        start = threading.Barrier(6)

        def contend() -> None:
            start.wait(10)  # noqa: B023 - joined before the next round
            try:
                won.append(SqliteLog.open(state))  # noqa: B023
            except StateInUseError as error:
                lost.append(error)  # noqa: B023

        threads = [threading.Thread(target=contend) for _ in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
        won[0].append(some(1))
        won[0].close()

        assert (len(won), len(lost)) == (1, 5)


def test_several_threads_may_open_states_of_their_own_at_once(tmp_path: Path) -> None:
    opened: list[SqliteLog] = []
    start = threading.Barrier(6)

    def open_own(index: int) -> None:
        start.wait(10)
        opened.append(SqliteLog.open(tmp_path / str(index)))

    threads = [threading.Thread(target=open_own, args=(index,)) for index in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    for log in opened:
        log.append(some(1))
        log.close()

    assert len({log.log_id for log in opened}) == 6


APPENDER = """
import sys
from pathlib import Path
from log.making import some
from moorage.log.sqlite import SqliteLog
log = SqliteLog.open(Path(sys.argv[1]))
while True:
    log.append(some(1, after=log.head))
    print(log.head, flush=True)
"""


def test_nothing_acknowledged_is_lost_when_the_owner_is_killed(
    state: Path, start_python: StartPython
) -> None:

    for kill_after in (1, 7, 40):
        owner = start_python(APPENDER, state)
        assert owner.stdout is not None
        first = reached = int(line_of(owner))
        while reached < first + kill_after:
            reached = int(line_of(owner))
        owner.send_signal(signal.SIGKILL)
        for line in owner.stdout:
            if line.endswith("\n"):
                reached = int(line)
        owner.wait(10)
        with closing(SqliteLog.open(state)) as log:
            seqs = [entry.seq for entry in log.read()]

        assert len(seqs) in (reached, reached + 1)  # one may be durable and not yet acknowledged
        assert seqs == list(range(1, len(seqs) + 1))


RELIC = """
import fcntl, json, os, socket, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": "then", "note": ""}
os.write(file, json.dumps(owner).encode())
if os.fork():
    os._exit(0)
os.write(1, b"held\\n")
sys.stdin.readline()
"""


def test_a_child_that_a_dead_owner_was_launching_is_waited_for(
    state: Path, start_python: StartPython
) -> None:
    state.mkdir(mode=0o700)
    relic = start_python(RELIC, str(StateFiles(state).lock))
    assert line_of(relic) == "held"
    relic.wait(10)
    opened: list[SqliteLog] = []
    opening = threading.Thread(target=lambda: opened.append(SqliteLog.open(state)), daemon=True)
    opening.start()

    assert opening.is_alive()
    tell(relic)
    opening.join(10)
    assert opened
    opened[0].close()
