"""What the backends have in common: options, executables, model paths, stop signals."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from moorage.errors import ConfigurationError
from moorage.protocols import LaunchFailedError, StopSignal
from moorage.spec import ModelSpec, Setting

HEALTH_PATH: Final = "/health"


# --- options ---


def options(spec: ModelSpec) -> tuple[str, ...]:
    """Return the settings as options, then the arguments as they are.

    Underscores become dashes. True is a bare flag, False leaves the option out (the negative form
    of a flag is a setting of its own: `no_warmup=True`), a list repeats its option.
    """
    settings = [part for key, value in spec.settings.items() for part in _option(key, value)]
    return (*settings, *spec.args)


def _option(key: str, value: Setting) -> Iterator[str]:
    if isinstance(value, bool):
        if value:
            yield option_name(key)
    elif isinstance(value, str | int | float):
        yield from (option_name(key), str(value))
    else:
        for item in value:
            yield from _option(key, item)


def option_name(key: str) -> str:
    """Return the long option of a setting."""
    return "--" + key.replace("_", "-")


def has_option(spec: ModelSpec, *names: str) -> bool:
    """Tell whether a setting or an argument gives one of these options."""
    return any(name in names for _, name in _given(spec))


def refuse_options(spec: ModelSpec, owned: Collection[str]) -> None:
    """Raise ConfigurationError for an option that Moorage gives itself, wherever it was put."""
    for subject, name in _given(spec):
        if name in owned:
            raise ConfigurationError(
                f"ModelSpec.{subject}",
                f"{name} is given by Moorage; leave it out "
                "(the model comes from path or repo, the port from the pool)",
            )


def _given(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for key in spec.settings:
        yield "settings", option_name(key)
    for argument in spec.args:
        if argument.startswith("-"):
            yield "args", argument.partition("=")[0].replace("_", "-")


# --- model paths ---


def check_source(spec: ModelSpec) -> None:
    """Refuse a spec without a model, or with a local path where nothing is."""
    if spec.path is None and spec.repo is None:
        raise ConfigurationError("ModelSpec.path", f"{spec.backend} needs a path or a repo")
    if spec.path is not None and (problem := missing(spec.path)):
        raise ConfigurationError("ModelSpec.path", problem)


def refuse_projector(spec: ModelSpec) -> None:
    """Raise ConfigurationError for a projector where the backend takes none."""
    if spec.mmproj is not None:
        raise ConfigurationError("ModelSpec.mmproj", f"{spec.backend} takes none; leave it out")


def present(path: str | None) -> str:
    """Return the model's absolute path; raise LaunchFailedError when nothing is there now."""
    if path is None:
        raise LaunchFailedError("there is no model file: define the model with a path or a repo")
    if problem := missing(path):
        raise LaunchFailedError(problem)
    return str(Path(path).absolute())


def missing(path: str) -> str | None:
    """Say what keeps a path from being read, None when nothing does."""
    try:
        Path(path).stat()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return None if os.access(path, os.R_OK) else f"{path} cannot be read: Permission denied"


# --- executables ---


def named_executable(spec: ModelSpec) -> str | None:
    """Return the spec's executable, None when it names none.

    Raises LaunchFailedError when it names one that is not there.
    """
    if spec.executable is None:
        return None
    found = search(spec, spec.executable)
    if found is None:
        raise LaunchFailedError(
            f"the executable {spec.executable!r} {_not_found(spec.executable)}; "
            "install it, or correct the spec's executable"
        )
    return found


def search(spec: ModelSpec, name: str) -> str | None:
    """Return an absolute path: a path itself when it can be run, a name found on PATH.

    PATH is that of the spec's environment where it has one.
    """
    found = shutil.which(name, path=spec.env.get("PATH"))
    return str(Path(found).absolute()) if found else None


def environment_script(name: str) -> str | None:
    """Return a command that a package of this Python environment brought, also off PATH."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    return str(Path(found).absolute()) if found else None


def not_installed(tried: Sequence[str], remedy: str) -> LaunchFailedError:
    """Return the error of an executable that was found nowhere."""
    return LaunchFailedError(f"no server to start: tried {', '.join(tried)}; {remedy}")


def _not_found(name: str) -> str:
    if not os.path.dirname(name):  # noqa: PTH120 - Path drops the "./" that tells path from name
        return "is not on PATH"
    if not Path(name).exists():
        return "does not exist"
    return "is a directory" if Path(name).is_dir() else "may not be executed"


# --- stopping ---


def terminate(
    spec: ModelSpec, target: Literal["leader", "group"] = "leader"
) -> tuple[StopSignal, ...]:
    """Return one SIGTERM that has all of the stop's time."""
    return (StopSignal(signal.SIGTERM, target, spec.stop_timeout_s),)
