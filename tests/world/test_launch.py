from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from moorage.protocols import LaunchFailedError, LaunchOrder
from moorage.world import launching
from moorage.world.procfs import ProcSystem, Stat, parse_chain, parse_stat
from support.servers import misbehave
from world.conftest import World, descriptors, no_descriptor_left


def environment(pid: int) -> dict[str, str]:
    block = Path(f"/proc/{pid}/environ").read_text()
    return dict(item.split("=", 1) for item in block.split("\0") if item)


def test_a_server_has_a_session_a_group_a_log_and_nothing_else(world: World) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.set_inheritable(writer, True)
    run = world.start()
    assert run.identity is not None
    pid = run.identity.pid
    fds = descriptors(pid)
    os.close(reader)
    os.close(writer)

    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)
    assert (run.identity.session, run.identity.group) == (pid, pid)
    assert fds[0] == "/dev/null"
    assert fds[1] == fds[2] == str(world.log_file(run))
    assert all(fds[fd].startswith("socket:") for fd in fds.keys() - {0, 1, 2})


def test_its_log_folder_and_file_are_private(world: World) -> None:
    deep = world.folder / "logs" / "model" / "12.log"
    world.launch(world.order("/bin/true", log_file=deep))
    run = world.start()
    log_file = world.log_file(run)

    assert stat.S_IMODE(deep.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(log_file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(log_file.stat().st_mode) == 0o600


def test_its_environment_carries_the_token_and_what_was_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOORAGE_RUN", raising=False)
    monkeypatch.setenv("FROM_THE_HOST", "yes")
    run = world.start(env={"OWN": "1", "MOORAGE_RUN": "overruled"})
    bare = world.start(env={"OWN": "2"}, inherit_env=False)
    assert run.identity is not None
    assert bare.identity is not None

    inherited = environment(run.identity.pid)
    assert inherited["FROM_THE_HOST"] == "yes"
    assert inherited["OWN"] == "1"
    assert inherited["MOORAGE_RUN"] == run.token
    assert inherited["SPT_NOENV"] == "1"
    assert environment(bare.identity.pid) == {
        "OWN": "2",
        "SPT_NOENV": "1",
        "MOORAGE_RUN": bare.token,
    }


def test_the_token_goes_behind_the_tokens_its_manager_carries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORAGE_RUN", "outer:1:a,outer:2:b")
    order = world.order("server")

    chain = launching.child_environment(order)["MOORAGE_RUN"]
    assert chain == f"outer:1:a,outer:2:b,{order.token}"


def test_a_launch_appends_to_a_log_that_is_there(world: World) -> None:
    order = world.order("/bin/true")
    order.log_file.parent.mkdir()
    order.log_file.write_text("before\n")
    world.launch(order)

    assert order.log_file.read_text() == "before\n"


def not_launchable(world: World) -> dict[str, tuple[LaunchOrder, str]]:
    text = world.folder / "text"
    text.write_text("no program")
    broken = world.folder / "broken"
    broken.write_bytes(b"\x7fELFbroken")
    broken.chmod(0o755)
    script = world.folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    folder_for_log = world.folder / "folder.log"
    folder_for_log.mkdir()
    order = world.order
    return {
        "missing": (order("/no/such/server"), "install it"),
        "not on PATH": (order("no-such-server"), "install it"),
        "not executable": (order(str(text)), "not executable"),
        "a directory": (order(str(world.folder)), "is a directory"),
        "below a file": (order(f"{text}/server"), "install it"),
        "not for this machine": (order(str(broken)), "no program for this machine"),
        "without its interpreter": (order(str(script)), "interpreter"),
        "without its folder": (order("/bin/true", cwd="/no/such/folder"), "working folder"),
        "too long": (order("/bin/true", "x" * 3_000_000), "too long"),
        "empty": (order(), "empty"),
        "with a NUL": (order("/bin/true", "a\0b"), "null byte"),
        "log folder is a file": (order("/bin/true", log_file=text / "x.log"), "cannot be opened"),
        "log file is a folder": (order("/bin/true", log_file=folder_for_log), "cannot be opened"),
        "log file is on a full device": (order("/bin/true", log_file=Path("/proc/x.log")), "log"),
    }


def test_what_cannot_be_launched_says_why_and_leaves_nothing(world: World) -> None:
    for kind, (order, words) in not_launchable(world).items():
        before = descriptors()
        with pytest.raises(LaunchFailedError) as caught:
            world.processes.launch(order)

        assert words in caught.value.problem, kind
        assert descriptors() == before, kind
        assert not order.log_file.is_file(), kind


def test_a_launch_without_a_descriptor_left_says_so(world: World) -> None:
    order = world.order("/bin/true")
    (world.folder / "logs").mkdir()
    with no_descriptor_left(), pytest.raises(LaunchFailedError, match="Too many open files"):
        world.processes.launch(order)

    assert not order.log_file.exists()


def test_a_failed_launch_keeps_a_log_that_was_there(world: World) -> None:
    order = world.order("/no/such/server")
    order.log_file.parent.mkdir()
    order.log_file.write_text("before\n")
    with pytest.raises(LaunchFailedError):
        world.processes.launch(order)

    assert order.log_file.read_text() == "before\n"


def test_a_symbolic_link_is_no_log_file(world: World) -> None:
    order = world.order("/bin/true")
    order.log_file.parent.mkdir()
    order.log_file.symlink_to(world.folder / "elsewhere")

    with pytest.raises(LaunchFailedError, match="log file"):
        world.processes.launch(order)


def test_a_refused_fork_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    program = """
        import os, resource, sys
        from pathlib import Path
        from moorage.protocols import LaunchFailedError, LaunchOrder
        from moorage.world import launching
        order = LaunchOrder(model="m", run=1, token="x:1:y", argv=("/bin/true",),
                            log_file=Path("run-1.log"))
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        if os.getuid() == 0:
            os.setuid(65534)  # the superuser has no limit
        try:
            launching.spawn(order)
        except LaunchFailedError as error:
            print(error.problem, os.listdir("."))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert "refused another process" in done.stdout
    assert done.stdout.rstrip().endswith("[]")


def test_a_server_that_cannot_be_looked_after_is_not_left_running(world: World) -> None:
    pids: list[int] = []

    class Full(ProcSystem):
        """A machine that has no descriptor left once the server runs."""

        def stat(self, pid: int) -> Stat | None:
            pids.append(pid)
            raise OSError(errno.EMFILE, "Too many open files")

    manager = world.another_manager(system=Full())
    with pytest.raises(LaunchFailedError, match="too many open files"):
        manager.launch(world.order(*misbehave(0)))

    assert pids
    assert not Path(f"/proc/{pids[0]}").exists()


def test_a_dropped_child_object_neither_warns_nor_reaps(world: World) -> None:
    world.launch(world.order("/bin/true"))
    gc.collect()

    assert subprocess._active == []  # type: ignore[attr-defined]


def test_hundreds_of_failed_launches_leave_no_descriptor_thread_or_file(world: World) -> None:
    before, threads = descriptors(), threading.active_count()
    for _ in range(300):
        with pytest.raises(LaunchFailedError):
            world.processes.launch(world.order("/no/such/server"))

    assert descriptors() == before
    assert threading.active_count() == threads
    assert list((world.folder / "logs").iterdir()) == []


def test_a_command_name_with_spaces_and_parentheses_is_parsed() -> None:
    fields = " ".join(str(n) for n in range(4, 53))
    parsed = parse_stat(f"7 (a) b) S 1) S {fields}".encode())

    assert (parsed.pid, parsed.state, parsed.parent, parsed.start_ticks) == (7, "S", 4, 22)


def test_only_the_variable_itself_is_a_chain() -> None:
    assert parse_chain(b"A=1\0MOORAGE_RUN=a:1:x,b:2:y\0B=2\0") == ("a:1:x", "b:2:y")
    assert parse_chain(b"MOORAGE_RUN=a:1:x") == ("a:1:x",)
    assert parse_chain(b"X=MOORAGE_RUN=a:1:x\0NOT_MOORAGE_RUN=b\0") == ()
    assert parse_chain(b"MOORAGE_RUN=\0") == ()
    assert parse_chain(b"") == ()
