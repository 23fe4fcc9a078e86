"""Finds backends: the four of ours, then the entry-point group `moorage.backends`."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from moorage.errors import ConfigurationError
from moorage.protocols import Backend

GROUP: Final = "moorage.backends"

# Known without an installation, and never replaced by another distribution's.
_OURS: Final = {
    "llama.cpp": ("moorage.backends.llama", "LlamaCpp"),
    "vllm": ("moorage.backends.vllm", "Vllm"),
    "sglang": ("moorage.backends.sglang", "SGLang"),
    "command": ("moorage.backends.command", "Command"),
}


class InstalledBackends:
    """Every backend of this environment. Any thread may ask; each backend is made once."""

    def __init__(self) -> None:
        self._made: dict[str, Backend] = {}

    def get(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises ConfigurationError when there is none (it names the known ones), when two
        distributions offer it, or when the one that does is broken (it names the distribution).
        """
        if name not in self._made:
            made = _ours(name) if name in _OURS else _others(name)
            self._made.setdefault(name, made)
        return self._made[name]

    def names(self) -> tuple[str, ...]:
        """Return every known name, those of broken distributions too."""
        return (*_OURS, *sorted({point.name for point in _points()} - set(_OURS)))


def _ours(name: str) -> Backend:
    module, attribute = _OURS[name]
    return cast("Backend", getattr(importlib.import_module(module), attribute)())


def _others(name: str) -> Backend:
    found = [point for point in _points() if point.name == name]
    offered_by = sorted({_distribution(point) for point in found})
    if not found:
        raise ConfigurationError("ModelSpec.backend", _unknown(name))
    if len(offered_by) > 1:
        raise ConfigurationError(
            "ModelSpec.backend",
            f"{name!r} is offered by {' and '.join(offered_by)}; uninstall all but one",
        )
    return _made(found[0])


def _made(point: EntryPoint) -> Backend:
    try:
        backend: Any = point.load()()
    except Exception as error:
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    missing = [part for part in ("check", "plan") if not callable(getattr(backend, part, None))]
    if missing:
        raise _broken(point, f"{point.value} has no {' and no '.join(missing)}")
    return cast("Backend", backend)


def _points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _broken(point: EntryPoint, problem: str) -> ConfigurationError:
    return ConfigurationError(
        "ModelSpec.backend",
        f"{point.name!r} of the distribution {_distribution(point)} is broken: {problem}; "
        "repair or uninstall it",
    )


def _unknown(name: str) -> str:
    known = InstalledBackends().names()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    return f"there is no backend {name!r}{hint} known are {', '.join(known)}"
