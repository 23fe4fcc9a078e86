"""SGLang: `python -m sglang.launch_server`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from moorage.backends import common
from moorage.protocols import LaunchPlan, PlanRequest
from moorage.spec import ModelSpec

_EXECUTABLE: Final = "sglang"
_PACKAGE: Final = "sglang"
_OWNED: Final = frozenset({"--host", "--port", "--model-path", "--model"})


class SGLang:
    """Serves a model folder, or a file that SGLang can read.

    `executable` is a Python interpreter that has sglang, or a newer version's `sglang` command.
    """

    name = "sglang"

    def check(self, spec: ModelSpec) -> None:
        """Refuse options that are not the caller's, and a path where nothing is."""
        common.refuse_options(spec, _OWNED)
        common.refuse_projector(spec)
        common.check_source(spec)

    def plan(self, request: PlanRequest) -> LaunchPlan:
        """Find SGLang and build its command line; the model is known to it by its name.

        It looks for a SIGTERM every five seconds and then waits for requests: a `stop_timeout_s`
        below ten seconds often ends in SIGKILL.
        """
        spec = request.spec
        path = common.present(request.path)
        place = ("--model-path", path, "--host", request.host, "--port", str(request.ports[0]))
        name: tuple[str, ...] = ("--served-model-name", spec.name)
        if common.has_option(spec, "--served-model-name"):
            name = ()
        return LaunchPlan(
            argv=(*_find(spec), *place, *name, *common.options(spec)),
            health_path=spec.health_path or common.HEALTH_PATH,
            stop_signals=common.terminate(spec),
        )


def _find(spec: ModelSpec) -> tuple[str, ...]:
    found = common.named_executable(spec) or common.search(spec, _EXECUTABLE)
    if found is not None:
        return _command(found)
    if sys.executable and importlib.util.find_spec(_PACKAGE) is not None:
        return _command(sys.executable)
    raise common.not_installed(
        ("sglang on PATH", "the Python package sglang"),
        "install sglang, or name a Python interpreter that has it as the executable",
    )


def _command(executable: str) -> tuple[str, ...]:
    if Path(executable).name.startswith("python"):
        return (executable, "-m", "sglang.launch_server")
    return (executable, "serve")
