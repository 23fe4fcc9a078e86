"""The check that every test goes through, tried on things that really are left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pykka
import pytest

from support import leaks

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
# Starts a sleeper in a session of its own, prints its pid and leaves it to init.
DOUBLE_FORK = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""


class Idler(pykka.ThreadingActor):
    use_daemon_thread = True


@pytest.fixture
def check(tmp_path: Path) -> leaks.LeakCheck:
    return leaks.LeakCheck(temp=tmp_path, session=os.environ[leaks.SESSION_VARIABLE])


@pytest.fixture
def new(check: leaks.LeakCheck) -> Callable[[], list[str]]:
    """Return a function that says, at once, what is there now and was not at the start."""
    before = check.look()
    return lambda: [str(leak) for leak in check.left_behind(before, limit_s=0)]


@pytest.fixture
def orphan_environment() -> dict[str, str]:
    return dict(os.environ)


@pytest.fixture
def orphan(orphan_environment: dict[str, str]) -> Iterator[int]:
    argv = [sys.executable, "-c", DOUBLE_FORK, *SLEEPER]
    done = subprocess.run(argv, env=orphan_environment, check=True, stdout=subprocess.PIPE)
    pid = int(done.stdout)
    environment = Path(f"/proc/{pid}/environ")
    _until(lambda: [line for line in (environment.read_text(),) if line], 1)  # empty during exec
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_a_clean_test_leaves_nothing(new: Callable[[], list[str]]) -> None:
    assert new() == []


def test_a_live_actor_is_reported(new: Callable[[], list[str]]) -> None:
    actor = Idler.start()
    found = new()
    actor.stop(timeout=20)

    assert found == [f"actor: {actor} is still alive"]
    assert new() == []


@pytest.mark.parametrize(
    ("name", "daemon", "reported"),
    [
        ("worker", False, ["thread: non-daemon 'worker' is still alive"]),
        ("moorage-clock", True, ["thread: daemon 'moorage-clock' is still alive"]),
        ("worker", True, []),
    ],
)
def test_a_thread_is_reported_when_it_is_ours_or_holds_up_the_exit(
    new: Callable[[], list[str]], *, name: str, daemon: bool, reported: list[str]
) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(5,), name=name, daemon=daemon)
    thread.start()
    found = new()
    end.set()
    thread.join(20)

    assert found == reported


def test_a_child_and_its_child_are_reported(new: Callable[[], list[str]]) -> None:
    script = f"import subprocess; subprocess.run({SLEEPER!r})"
    with subprocess.Popen([sys.executable, "-c", script]) as child:
        found = _until(lambda: _processes(new()), 2)
        pids = {int(line.split()[2]) for line in found}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    assert [line.split()[:2] for line in found] == [["process:", "child"]] * 2
    assert child.pid in pids
    assert _until(new, 0) == []


def test_a_child_that_was_not_waited_for_is_reported(new: Callable[[], list[str]]) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = new()
    child.wait(20)

    assert found == [f"process: child {child.pid} has exited and was never waited for"]


def test_an_orphan_is_known_by_the_environment_of_the_session(
    new: Callable[[], list[str]], orphan: int
) -> None:
    assert [line.split()[:3] for line in new()] == [["process:", "orphan", str(orphan)]]


class TestWithACleanEnvironment:
    @pytest.fixture
    def orphan_environment(self) -> dict[str, str]:
        return {leaks.RUN_VARIABLE: "log:1:nonce"}

    def test_an_orphan_is_known_by_the_token_of_a_run(
        self, new: Callable[[], list[str]], orphan: int
    ) -> None:
        found = new()

        assert [line.split()[1:5] for line in found] == [
            ["orphan", "with", leaks.RUN_VARIABLE, str(orphan)]
        ]

    def test_it_may_be_a_strangers_and_is_not_ended(
        self, check: leaks.LeakCheck, orphan: int
    ) -> None:
        found = [leak for leak in check.look() if leak.identity == orphan]

        assert [leak.process for leak in found] == [None]


class TestOfAnotherSession:
    @pytest.fixture
    def orphan_environment(self) -> dict[str, str]:
        return {leaks.RUN_VARIABLE: "log:1:nonce", leaks.SESSION_VARIABLE: "another"}

    @pytest.mark.usefixtures("orphan")
    def test_an_orphan_is_no_concern_of_ours(self, new: Callable[[], list[str]]) -> None:
        assert new() == []


@pytest.mark.parametrize(("listens", "state"), [(True, "listening"), (False, "bound")])
def test_a_port_is_reported_with_its_address(
    new: Callable[[], list[str]], *, listens: bool, state: str
) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        if listens:
            sock.listen()
        port, descriptor = sock.getsockname()[1], sock.fileno()
        found = new()

    assert found == [f"port: 127.0.0.1:{port} ({state}) is still open as descriptor {descriptor}"]
    assert new() == []


def test_a_descriptor_is_reported_with_what_it_names(
    new: Callable[[], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("open") / "file"
    with path.open("w") as file:
        found = new()
        descriptor = file.fileno()

    assert found == [f"descriptor: {path} is still open as descriptor {descriptor}"]


def test_what_libraries_keep_open_for_good_is_not_reported(new: Callable[[], list[str]]) -> None:
    with Path("/dev/urandom").open("rb"):
        found = new()

    assert found == []


def test_a_file_outside_tmp_path_is_reported(check: leaks.LeakCheck, tmp_path: Path) -> None:
    before = check.look()
    (tmp_path / "litter").touch()

    assert [leak.kind for leak in check.left_behind(before, limit_s=0)] == ["file"]


def test_the_temporary_folder_is_one_that_is_watched(leak_check: leaks.LeakCheck) -> None:
    before = leak_check.look()
    with tempfile.NamedTemporaryFile():
        found = leak_check.left_behind(before, limit_s=0)

    assert {leak.kind for leak in found} == {"file", "descriptor"}


class TellsOfItsLooks(leaks.LeakCheck):
    looked = threading.Event()

    def look(self) -> frozenset[leaks.Leak]:
        found = super().look()
        self.looked.set()
        return found


def test_what_ends_by_itself_in_time_is_not_reported(tmp_path: Path) -> None:
    check = TellsOfItsLooks(temp=tmp_path, session=os.environ[leaks.SESSION_VARIABLE])
    before = check.look()
    check.looked.clear()
    threading.Thread(target=check.looked.wait, args=(5,)).start()

    assert check.left_behind(before, limit_s=5) == ()


def test_clearing_ends_what_was_reported(check: leaks.LeakCheck, tmp_path: Path) -> None:
    before = check.look()
    child = subprocess.Popen(SLEEPER)
    Idler.start()
    (tmp_path / "litter").mkdir()
    (tmp_path / "litter" / "file").touch()
    found = check.left_behind(before, limit_s=0)

    leaks.clear(found)

    assert sorted(leak.kind for leak in found) == ["actor", "file", "process"]
    assert check.left_behind(before) == ()
    assert child.wait(20) is not None


def test_a_test_that_leaves_something_behind_fails_and_the_next_one_does_not(
    tmp_path: Path,
) -> None:
    script = """
        import subprocess, tempfile

        def test_leaves_a_child_and_a_folder():
            global child
            child = subprocess.Popen(["sleep", "60"])
            tempfile.mkdtemp()

        def test_is_clean():
            pass
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(script))
    (tmp_path / "pytest.ini").touch()
    options = ["-p", "conftest", "-p", "no:randomly", f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert "2 passed, 1 error" in done.stdout
    assert "process: child" in done.stdout
    assert "(use tmp_path instead)" in done.stdout


def _processes(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("process:")]


def _until(look: Callable[[], list[str]], count: int) -> list[str]:
    """Look until there are `count` lines; the time limit of the test is the deadline."""
    pause = threading.Event()
    while len(lines := look()) != count:
        pause.wait(0.005)
    return lines
