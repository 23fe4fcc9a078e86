from __future__ import annotations

import signal
from pathlib import Path

import pytest

from backends.conftest import make_executable
from moorage.backends.sglang import SGLang
from moorage.backends.vllm import Vllm
from moorage.errors import ConfigurationError
from moorage.protocols import LaunchFailedError, LaunchPlan, PlanRequest, StopSignal
from moorage.spec import ModelSpec

KINDS = [Vllm, SGLang]


def plan(kind: type[Vllm | SGLang], spec: ModelSpec) -> LaunchPlan:
    return kind().plan(PlanRequest(spec=spec, path=spec.path, host="127.0.0.1", ports=(18000,)))


def spec_of(kind: type[Vllm | SGLang], path: Path, **fields: object) -> ModelSpec:
    return ModelSpec(name="m", backend=kind.name, path=str(path), **fields)  # type: ignore[arg-type]


def test_vllm_serves_the_folder_under_the_models_names(no_path: Path, tmp_path: Path) -> None:
    vllm = make_executable(no_path / "vllm")
    spec = spec_of(
        Vllm, tmp_path, aliases=["small"], settings={"max_model_len": 2048, "enforce_eager": True}
    )

    made = plan(Vllm, spec)

    assert made.argv == (
        *(str(vllm), "serve", str(tmp_path), "--host", "127.0.0.1", "--port", "18000"),
        *("--served-model-name", "m", "small", "--max-model-len", "2048", "--enforce-eager"),
    )
    assert made.health_path == "/health"
    assert made.stop_signals == (StopSignal(signal.SIGTERM, "leader", 10.0),)


def test_sglang_on_the_path_serves_the_folder(no_path: Path, tmp_path: Path) -> None:
    sglang = make_executable(no_path / "sglang")

    made = plan(SGLang, spec_of(SGLang, tmp_path, settings={"tp": 2}, stop_timeout_s=30))

    assert made.argv == (
        *(str(sglang), "serve", "--model-path", str(tmp_path), "--host", "127.0.0.1"),
        *("--port", "18000", "--served-model-name", "m", "--tp", "2"),
    )
    assert made.stop_signals == (StopSignal(signal.SIGTERM, "leader", 30),)


def test_sglang_of_another_environment_is_run_by_its_python(no_path: Path, tmp_path: Path) -> None:
    python = make_executable(no_path / "python3")

    argv = plan(SGLang, spec_of(SGLang, tmp_path, executable=str(python))).argv

    assert argv[:3] == (str(python), "-m", "sglang.launch_server")


@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_may_choose_the_name_the_server_knows(
    kind: type[Vllm | SGLang], no_path: Path, tmp_path: Path
) -> None:
    make_executable(no_path / kind.name)

    argv = plan(kind, spec_of(kind, tmp_path, settings={"served_model_name": "other"})).argv

    assert argv.count("--served-model-name") == 1
    assert argv[-1] == "other"


@pytest.mark.parametrize("kind", KINDS)
def test_when_nothing_is_found_the_remedy_is_named(
    kind: type[Vllm | SGLang], no_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(LaunchFailedError) as caught:
        plan(kind, spec_of(kind, tmp_path))

    assert f"{kind.name} on PATH" in caught.value.problem
    assert f"install {kind.name}" in caught.value.problem


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", ["host", "port", "model"])
def test_an_option_that_moorage_gives_is_refused(
    kind: type[Vllm | SGLang], own: str, tmp_path: Path
) -> None:
    for fields in ({"settings": {own: "x"}}, {"args": [f"--{own}", "x"]}, {"args": [f"--{own}=x"]}):
        with pytest.raises(ConfigurationError, match=f"--{own} is given by Moorage"):
            kind().check(spec_of(kind, tmp_path, **fields))


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_where_nothing_is_is_refused(kind: type[Vllm | SGLang], tmp_path: Path) -> None:
    spec = spec_of(kind, tmp_path / "none")

    with pytest.raises(ConfigurationError, match="No such file"):
        kind().check(spec)
    with pytest.raises(LaunchFailedError, match="No such file"):
        plan(kind, spec)


@pytest.mark.parametrize("kind", KINDS)
def test_a_projector_is_refused(kind: type[Vllm | SGLang], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"ModelSpec\.mmproj: {kind.name} takes none"):
        kind().check(spec_of(kind, tmp_path, mmproj="mmproj.gguf"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_without_a_model_is_refused(kind: type[Vllm | SGLang]) -> None:
    with pytest.raises(ConfigurationError, match="needs a path or a repo"):
        kind().check(ModelSpec(name="m", backend=kind.name))
