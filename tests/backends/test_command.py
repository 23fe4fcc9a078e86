from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.conftest import make_executable
from moorage.backends.command import Command
from moorage.errors import ConfigurationError
from moorage.protocols import LaunchFailedError, LaunchPlan, PlanRequest, StopSignal
from moorage.spec import ModelSpec


def spec_of(args: Sequence[str], **fields: object) -> ModelSpec:
    return ModelSpec(name="m", backend="command", args=args, **fields)  # type: ignore[arg-type]


def plan(spec: ModelSpec, ports: tuple[int, ...] = (18000,)) -> LaunchPlan:
    return Command().plan(PlanRequest(spec=spec, path=spec.path, host="127.0.0.1", ports=ports))


def refused(args: Sequence[str], **fields: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Command().check(spec_of(args, **fields))
    return str(caught.value)


def test_the_template_is_filled_in(tmp_path: Path) -> None:
    spec = spec_of(
        ["sh", "{host}:{port}", "{path}", "{name}", "{port1}{port2}", '{{"a": {port}}}'],
        path=str(tmp_path),
        ports=3,
    )
    Command().check(spec)

    made = plan(spec, (18000, 18001, 18002))

    assert made.argv == (
        *(shutil.which("sh"), "127.0.0.1:18000", str(tmp_path), "m"),
        *("1800118002", '{"a": 18000}'),
    )
    assert made.health_path == "/health"
    assert made.stop_signals == (StopSignal(signal.SIGTERM, "group", 10.0),)


def test_the_executable_comes_before_the_arguments(no_path: Path) -> None:
    own = make_executable(no_path / "server")

    assert plan(spec_of(["{port}"], executable="server")).argv == (str(own), "18000")


def test_a_port_may_go_through_the_environment(tmp_path: Path) -> None:
    spec = spec_of(["env", "PORT={port}", "server"])
    Command().check(spec)

    assert plan(spec).argv[1:] == ("PORT=18000", "server")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["server"], "{port} does not occur"),
        (["server", "{{port}}"], "{port} does not occur"),
        ([], "{port} does not occur"),
        (["server", "{port}", "{model}"], "{model} cannot be filled in"),
        (["server", "{port}", "{}"], "{} cannot be filled in"),
        (["server", "{port}", "{name.x}"], "{name.x} cannot be filled in"),
        (["server", "{port}", "{name[0]}"], "{name[0]} cannot be filled in"),
        (["server", "{port:05}"], "only plain names"),
        (["server", "{port!r}"], "only plain names"),
        (["server", "{port}", "{"], "literal braces"),
        (["server", "{port}", '{"a": 1}'], "only plain names"),
        (["server", "{port}", "{port1}"], "{port1} needs ports=2 or more"),
        (["server", "{port}", "{path}"], "{path} needs a path or a repo"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused(args: list[str], said: str) -> None:
    assert said in refused(args)


def test_settings_are_refused() -> None:
    assert "write them into args" in refused(["server", "{port}"], settings={"a": 1})


def test_a_path_where_nothing_is_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(["server", "{port}"], path=str(tmp_path / "none"))


def test_a_repo_may_be_named_before_it_is_fetched() -> None:
    Command().check(spec_of(["server", "{port}", "{path}"], repo="org/name"))


def test_a_missing_executable_fails_the_launch_not_the_definition(no_path: Path) -> None:
    spec = spec_of(["no-such-server", "{port}"])
    Command().check(spec)

    with pytest.raises(LaunchFailedError, match="'no-such-server'"):
        plan(spec)


def test_a_path_that_is_gone_fails_the_launch(tmp_path: Path) -> None:
    spec = spec_of(["true", "{port}", "{path}"], path=str(tmp_path / "gone"))

    with pytest.raises(LaunchFailedError, match="No such file"):
        plan(spec)


def test_a_projector_is_refused(tmp_path: Path) -> None:
    said = refused(["server", "{port}"], path=str(tmp_path), mmproj="mmproj.gguf")

    assert said == "ModelSpec.mmproj: command takes none; leave it out"
