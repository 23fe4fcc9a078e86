"""vLLM: `vllm serve`."""

from __future__ import annotations

from typing import Final

from moorage.backends import common
from moorage.protocols import LaunchPlan, PlanRequest
from moorage.spec import ModelSpec

_EXECUTABLE: Final = "vllm"
_OWNED: Final = frozenset({"--host", "--port", "--uds", "--model", "--model-tag"})


class Vllm:
    """Serves a model folder, or a file that vLLM can read."""

    name = "vllm"

    def check(self, spec: ModelSpec) -> None:
        """Refuse options that are not the caller's, and a path where nothing is."""
        common.refuse_options(spec, _OWNED)
        common.refuse_projector(spec)
        common.check_source(spec)

    def plan(self, request: PlanRequest) -> LaunchPlan:
        """Find `vllm` and build its command line.

        Clients may name the model by its name or by an alias it had when it was launched.
        SIGTERM goes to the leader alone: it ends its workers itself, and they report a crash when
        they are signalled too.
        """
        spec = request.spec
        path = common.present(request.path)
        names: tuple[str, ...] = ("--served-model-name", *spec.names)
        if common.has_option(spec, "--served-model-name"):
            names = ()
        place = ("--host", request.host, "--port", str(request.ports[0]))
        return LaunchPlan(
            argv=(_find(spec), "serve", path, *place, *names, *common.options(spec)),
            health_path=spec.health_path or common.HEALTH_PATH,
            stop_signals=common.terminate(spec),
        )


def _find(spec: ModelSpec) -> str:
    found = (
        common.named_executable(spec)
        or common.search(spec, _EXECUTABLE)
        or common.environment_script(_EXECUTABLE)
    )
    if found is None:
        raise common.not_installed(
            ("vllm on PATH", "vllm in this Python environment"),
            "install vllm, or name another environment's `vllm` as the executable",
        )
    return found
