"""What cannot be meant is refused at once, by an error of the tree, and nothing is left behind."""

from __future__ import annotations

import _thread
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage import (
    ConfigurationError,
    LoadError,
    ModelService,
    ModelSpec,
    MoorageError,
    NameClashError,
    NewerSchemaError,
    NotALogError,
    StateError,
    StateInUseError,
    UnknownModelError,
)
from moorage.actors.apart import apart
from support.others import require_code_for_others
from support.services import LIMIT_S, check_log, ports, server, state_of

AT_ONCE_S = 2.0
CODE = Path(__file__).parents[2]
OTHER_USER = 65_534


def _left() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _refused(error: type[MoorageError], folder: Path, **options: Any) -> MoorageError:
    """Open in vain, and hold it to what a refusal leaves: nothing."""
    before = _left()
    there = folder.exists()
    began = time.monotonic()
    with pytest.raises(error) as caught:
        ModelService.open(folder, **options)

    assert time.monotonic() - began < AT_ONCE_S
    assert _left() == before
    assert folder.exists() == there
    return caught.value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ports": range(19_000, 18_000)}, "reversed"),
        ({"ports": range(18_000, 18_000)}, "empty"),
        ({"ports": []}, "empty"),
        ({"ports": range(-1, 10)}, "no port"),
        ({"ports": range(65_000, 66_000)}, "no port"),
        ({"ports": range(1 << 62)}, "port"),
        ({"ports": [18_000, 18_000]}, "twice"),
        ({"ports": ["18000"]}, "no port"),
        ({"ports": 18_000}, "no range"),
        ({"ports": None}, "no range"),
        ({"max_loaded": 0}, "max_loaded"),
        ({"max_loaded": -1}, "max_loaded"),
        ({"max_loaded": 1.5}, "max_loaded"),
        ({"max_loaded": True}, "max_loaded"),
        ({"memory_limit": -1}, "memory_limit"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"memory_limit": "8G"}, "memory_limit"),
        ({"min_residency_s": -0.1}, "min_residency_s"),
        ({"min_residency_s": float("nan")}, "min_residency_s"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"hub": "https://huggingface.co"}, "hub"),
        ({"wait_s": -1}, "wait_s"),
        ({"wait_s": 10**400}, "wait_s"),
        ({"on_close": "drop"}, "on_close"),
        ({"models": ["m"]}, "ModelSpec"),
        ({"models": server("m")}, "ModelSpec"),
        ({"models": ""}, "ModelSpec"),
        ({"models": {}}, "ModelSpec"),
        ({"models": [ModelSpec(name="m", backend="no-such")]}, "no-such"),
        ({"models": [server("m", path="/no/such/file")]}, "/no/such/file"),
        ({"models": [server("m"), server("n", aliases=("m",))]}, "m"),
        ({"models": [server("m"), server("m", "--terms", "2")]}, "twice"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_touched(
    options: Mapping[str, Any], said: str, folder: Path
) -> None:
    error = _refused(ConfigurationError, folder, **options)

    assert said in str(error)


@pytest.mark.parametrize("state", [None, 5, "", b"state", "a\0b", "\ud800"])
def test_a_state_that_is_no_path_is_refused(
    state: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = _left()

    with pytest.raises(ConfigurationError, match="state"):
        ModelService.open(state)

    assert _left() == before
    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("notes")

    error = _refused(StateError, state)

    assert str(state) in str(error)
    assert state.read_text() == "notes"


def test_a_state_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    _refused(StateError, tmp_path / "file" / "state")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_state_folder_that_is_a_dangling_link_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.symlink_to(tmp_path / "gone" / "away")

    _refused(StateError, state)


@pytest.mark.parametrize(
    "content", [b"no database at all\n" * 400, b"SQLite format 3\0" + b"x" * 9]
)
def test_a_file_that_is_no_database_is_refused_and_kept(content: bytes, folder: Path) -> None:
    folder.mkdir()
    (folder / "moorage.db").write_bytes(content)

    error = _refused(NotALogError, folder)

    assert "moorage.db" in str(error)
    assert (folder / "moorage.db").read_bytes() == content
    assert [path.name for path in folder.iterdir()] == ["moorage.db"]


def test_a_database_of_something_else_is_refused_and_kept(folder: Path) -> None:
    folder.mkdir()
    database = sqlite3.connect(folder / "moorage.db")
    database.execute("create table customers (name text)")
    database.close()
    before = (folder / "moorage.db").read_bytes()

    _refused(NotALogError, folder)

    assert (folder / "moorage.db").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["moorage.db"]


def test_a_database_that_is_a_folder_is_refused(folder: Path) -> None:
    (folder / "moorage.db").mkdir(parents=True)

    _refused(StateError, folder)

    assert [path.name for path in folder.iterdir()] == ["moorage.db"]


def test_a_log_of_a_newer_program_is_refused_and_kept(folder: Path) -> None:
    ModelService.open(folder).close()
    database = sqlite3.connect(folder / "moorage.db")
    database.execute("update alembic_version set version_num = '9999'")
    database.commit()
    database.close()

    error = _refused(NewerSchemaError, folder)

    assert "newer" in str(error)


def test_a_second_owner_is_refused_with_the_name_of_the_first(
    opened: Callable[..., ModelService], folder: Path
) -> None:
    opened()

    error = _refused(StateInUseError, folder)

    assert str(os.getpid()) in str(error)


def test_a_key_file_that_cannot_be_read_is_refused_and_the_log_is_closed(folder: Path) -> None:
    ModelService.open(folder).close()
    (folder / "moorage.key").unlink()
    (folder / "moorage.key").mkdir()

    _refused(StateError, folder)

    assert not check_log(folder)[-1].event.kind.startswith("service.opened")


def test_models_that_clash_with_nothing_but_each_other_leave_the_log_as_it_was(
    folder: Path,
) -> None:
    ModelService.open(folder, models=[server("kept")]).close()
    before = len(check_log(folder))

    _refused(NameClashError, folder, models=[server("a"), server("b", aliases=("a",))])

    assert len(check_log(folder)) == before


# --- specs and names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": ""}, "name"),
        ({"name": ".."}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"aliases": ("a/b",)}, "alias"),
        ({"aliases": ("m",)}, "alias"),
        ({"ports": 0}, "ports"),
        ({"memory": -1}, "memory"),
        ({"ttl_s": -1.0}, "ttl_s"),
        ({"load_timeout_s": 0}, "load_timeout_s"),
        ({"crash_budget": 0}, "crash_budget"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"env": {"A": "b\0c"}}, "env"),
        ({"restart": "sometimes"}, "restart"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused(fields: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ModelSpec(**({"name": "m", "backend": "command", "args": ("x", "{port}")} | fields))

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ModelSpec(name="bad", backend="no-such"), "llama.cpp"),
        (ModelSpec(name="bad", backend="llama.cpp", path="/no/such/file.gguf"), "no/such"),
        (ModelSpec(name="bad", backend="llama.cpp", path="/usr"), "director"),
        (ModelSpec(name="bad", backend="llama.cpp", path="/etc/passwd"), "GGUF"),
        (ModelSpec(name="bad", backend="command", args=("server",)), "{port}"),
        (server("bad", aliases=("kept",)), "kept"),
        (server("kept-alias"), "kept"),
    ],
)
def test_a_model_that_cannot_be_defined_changes_nothing(
    spec: ModelSpec, said: str, opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("kept", aliases=("kept-alias",)))
    before = (state_of(service), _left())

    with pytest.raises(ConfigurationError) as caught:
        service.define(server("fine"), spec)

    assert said in str(caught.value)
    assert (state_of(service), _left()) == before


@pytest.mark.parametrize("name", ["nobody", "", "a/b", "kep", "x" * 10_000, "\n"])
def test_a_name_that_nobody_has_is_refused_everywhere(
    name: str, opened: Callable[..., ModelService]
) -> None:
    service = opened(server("kept"))

    for call in (
        service.lease,
        service.start,
        service.stop,
        service.pin,
        service.unpin,
        service.reset,
        service.remove,
        service.model,
    ):
        with pytest.raises(UnknownModelError):
            call(name)
    with pytest.raises(UnknownModelError):
        service.lease_all("kept", name)

    assert service.status().waiting == 0
    assert service.status().loaded == 0


@pytest.mark.parametrize("name", [None, 7, b"kept", ("kept",), ["kept"]])
def test_a_name_that_is_no_text_is_refused_everywhere(
    name: Any, opened: Callable[..., ModelService]
) -> None:
    service = opened(server("kept"))

    for call in (
        service.lease,
        service.start,
        service.stop,
        service.pin,
        service.unpin,
        service.reset,
        service.remove,
        service.model,
        service.lease_all,
    ):
        with pytest.raises(MoorageError):
            call(name)

    assert service.start("kept").state == "ready"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "60", None])
def test_a_timeout_that_is_no_time_is_refused(
    seconds: Any, opened: Callable[..., ModelService]
) -> None:
    service = opened(server("kept"))

    for call in (service.start, service.lease):
        with pytest.raises(ConfigurationError, match="timeout_s"):
            call("kept", seconds)
    with pytest.raises(ConfigurationError, match="timeout_s"):
        service.stop("kept", timeout_s=seconds)

    assert service.status().waiting == 0
    assert service.status().loaded == 0


@pytest.mark.parametrize(
    "limits",
    [{"max_loaded": 0}, {"max_loaded": "2"}, {"memory_limit": -5}, {"min_residency_s": -1}],
)
def test_limits_that_cannot_be_meant_change_nothing(
    limits: Mapping[str, Any], opened: Callable[..., ModelService]
) -> None:
    service = opened(max_loaded=2)

    with pytest.raises(ConfigurationError):
        service.set_limits(**limits)

    assert service.status().max_loaded == 2


@pytest.mark.parametrize("target", [None, 5, "", b"copy", "a\0b", "\ud800"])
def test_a_copy_goes_nowhere_that_is_no_path(
    target: Any, opened: Callable[..., ModelService]
) -> None:
    service = opened()
    before = _left()

    with pytest.raises(ConfigurationError, match="backup"):
        service.backup(target)

    assert _left() == before


@pytest.mark.parametrize("name", [".", "..", "x" * 255])
def test_a_copy_that_cannot_be_written_is_told(
    name: str, opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    service = opened()
    target = Path(name) if name == "." else tmp_path / name
    before = _left()

    with pytest.raises(StateError):
        service.backup(target)

    assert _left() == before


def test_what_cannot_be_called_is_no_subscriber(opened: Callable[..., ModelService]) -> None:
    service = opened()

    with pytest.raises(ConfigurationError, match="callback"):
        service.subscribe(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [{"after": None}, {"after": -1}, {"after": 1 << 63}])
@pytest.mark.parametrize("limit", [None, 0])
def test_a_place_in_the_log_that_is_none_is_refused_before_anything_is_read(
    bounds: Mapping[str, Any], limit: int | None, opened: Callable[..., ModelService]
) -> None:
    service = opened()

    with pytest.raises(ConfigurationError, match="after"):
        service.events(**bounds, limit=limit)
    for wrong in ("1", 1.5, -1, True):
        with pytest.raises(ConfigurationError, match="limit"):
            service.events(limit=wrong)  # type: ignore[arg-type]


def test_a_whole_set_of_models_is_read_once(folder: Path) -> None:
    names = ("m", "n")

    with ModelService.open(
        folder, ports=ports(), models=(server(name) for name in names)
    ) as service:
        assert tuple(model.name for model in service.status().models) == names


def test_a_model_file_that_goes_after_the_definition_fails_the_start_and_holds_nothing(
    opened: Callable[..., ModelService], tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.touch()
    service = opened(server("m", path=str(weights)))
    weights.unlink()

    with pytest.raises(LoadError) as caught:
        service.start("m")

    assert caught.value.stage == "prepare"
    assert service.status().ports_held == {}


# --- as another user ------------------------------------------------------------------------------

pytestmark_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")

AS_OTHER = """
import os, sys
sys.path[:0] = sys.argv[4:]
import moorage
import tempfile
with tempfile.TemporaryDirectory() as folder:  # all is imported while it can be read
    moorage.ModelService.open(folder).close()
ports = range(*map(int, sys.argv[2].split("-")))
os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
before = len(os.listdir("/proc/self/fd"))
try:
    moorage.ModelService.open(sys.argv[1], ports=ports).close()
    print("opened")
except moorage.MoorageError as error:
    print(type(error).__name__, error)
assert len(os.listdir("/proc/self/fd")) == before
"""


def _as_other_user(state: Path, ports: str = "26900-26910") -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_OTHER, str(state), ports, str(OTHER_USER), *sys.path[1:]],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def public(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a folder in which anybody may make files: pytest's own are for their owner."""
    folder = Path("/tmp") / f"moorage-test-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytestmark_root
def test_another_user_opens_a_folder_of_his_own(public: Path) -> None:
    require_code_for_others()
    assert _as_other_user(public / "state") == "opened"


@pytestmark_root
def test_ports_that_this_user_may_not_bind_are_refused(public: Path) -> None:
    said = _as_other_user(public / "state", "80-90")

    assert said.startswith("ConfigurationError port range: port 80 cannot be bound")
    assert not (public / "state").exists()


@pytestmark_root
def test_a_state_folder_of_another_user_is_refused(public: Path) -> None:
    ModelService.open(public / "state").close()
    before = sorted(path.name for path in (public / "state").iterdir())

    said = _as_other_user(public / "state")

    assert said.startswith("StateError"), said
    assert str(public / "state") in said
    assert sorted(path.name for path in (public / "state").iterdir()) == before


@pytestmark_root
def test_a_state_folder_that_others_may_write_but_not_its_log_is_refused(public: Path) -> None:
    ModelService.open(public / "state").close()
    (public / "state").chmod(0o777)

    said = _as_other_user(public / "state")

    assert said.startswith("StateError"), said


@pytestmark_root
def test_a_folder_in_which_nothing_may_be_made_is_refused(public: Path) -> None:
    public.chmod(0o755)

    said = _as_other_user(public / "state")

    assert said.startswith("StateError"), said
    assert list(public.iterdir()) == []


def test_the_state_folder_is_for_its_owner_only(
    opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("m"))
    service.start("m")

    assert folder.stat().st_mode & 0o077 == 0
    assert psutil.Process(service.model("m").pid).is_running()


@pytest.mark.parametrize("name", ["exits", "housekeeper", "alarm", "idle"])
def test_a_system_that_starts_no_more_threads_is_told_as_such(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == f"moorage-{name}":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StateError, match="no thread can be started"):
            ModelService.open(folder, ports=ports())

    ModelService.open(folder, ports=ports()).close()


def test_where_no_thread_is_to_be_had_for_the_opening_itself_it_is_done_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name in ("moorage-open", "moorage-close"):
            raise RuntimeError("can't start new thread")
        start(thread)

    before = threading.enumerate()
    monkeypatch.setattr(threading.Thread, "start", refuse)

    ModelService.open(folder, ports=ports()).close()

    assert threading.enumerate() == before


def test_where_no_thread_at_all_is_to_be_had_it_is_done_in_the_caller_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_run: object, _args: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)

    assert apart("one", lambda wanted: (wanted(), threading.get_ident())) == (
        True,
        threading.get_ident(),
    )
    with pytest.raises(ZeroDivisionError):
        apart("one", lambda _: 1 // 0)
