"""Any server: a command line with places for its port, host, model path and name."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Final

from moorage.backends import common
from moorage.errors import ConfigurationError
from moorage.protocols import LaunchFailedError, LaunchPlan, PlanRequest
from moorage.spec import ModelSpec

_SUBJECT: Final = "ModelSpec.args"


class Command:
    """Starts `args`, after `executable` where there is one.

    `{port}`, `{host}`, `{path}` and `{name}` are filled in, further ports are `{port1}`,
    `{port2}`; a literal brace is doubled. `{port}` has to occur: a server that takes its port
    from its environment is started as `["env", "PORT={port}", "server"]`.
    """

    name = "command"

    def check(self, spec: ModelSpec) -> None:
        """Refuse a template that cannot be filled in, settings, and a path where nothing is."""
        if spec.settings:
            raise ConfigurationError(
                "ModelSpec.settings", "command has no options of its own; write them into args"
            )
        common.refuse_projector(spec)
        used = {field for argument in spec.args for field in _fields(argument)}
        if unknown := sorted(used - set(_values(spec))):
            raise ConfigurationError(_SUBJECT, _unknown(spec, unknown[0]))
        if "port" not in used:
            raise ConfigurationError(
                _SUBJECT,
                "{port} does not occur, so the server cannot know where to listen; if it takes "
                'its port from the environment, begin with "env", "PORT={port}"',
            )
        if spec.path is not None and (problem := common.missing(spec.path)):
            raise ConfigurationError("ModelSpec.path", problem)

    def plan(self, request: PlanRequest) -> LaunchPlan:
        """Fill the template in.

        SIGTERM goes to the whole group: a shell or wrapper in front does not pass it on.
        """
        spec = request.spec
        path = None if request.path is None else common.present(request.path)
        values = _values(spec, path=path, host=request.host, ports=request.ports)
        filled = tuple(argument.format_map(values) for argument in spec.args)
        return LaunchPlan(
            argv=_argv(spec, filled),
            health_path=spec.health_path or common.HEALTH_PATH,
            stop_signals=common.terminate(spec, "group"),
        )


def _argv(spec: ModelSpec, filled: tuple[str, ...]) -> tuple[str, ...]:
    if (named := common.named_executable(spec)) is not None:
        return (named, *filled)
    found = common.search(spec, filled[0])
    if found is None:
        raise LaunchFailedError(
            f"the executable {filled[0]!r} is not there; install it, or correct the spec's args"
        )
    return (found, *filled[1:])


def _fields(argument: str) -> Iterator[str]:
    try:
        parts = list(string.Formatter().parse(argument))
    except ValueError as error:
        raise ConfigurationError(
            _SUBJECT, f"{argument!r}: {error}; write {{{{ and }}}} for literal braces"
        ) from None
    for _, field, form, conversion in parts:
        if field is None:
            continue
        if form or conversion:
            raise ConfigurationError(
                _SUBJECT,
                f"{argument!r}: only plain names can be filled in; double the braces of a literal",
            )
        yield field


def _values(
    spec: ModelSpec,
    *,
    path: str | None = None,
    host: str = "",
    ports: tuple[int, ...] = (),
) -> dict[str, str]:
    """Return what can be filled in; without the values of a launch, empty texts."""
    values = {"host": host, "name": spec.name}
    if spec.path is not None or spec.repo is not None:
        values["path"] = path or ""
    for index in range(spec.ports):
        key = f"port{index}" if index else "port"
        values[key] = str(ports[index]) if ports else ""
    return values


def _unknown(spec: ModelSpec, field: str) -> str:
    if field == "path":
        return "{path} needs a path or a repo"
    if field.removeprefix("port").isdecimal():
        return f"{{{field}}} needs ports={int(field.removeprefix('port')) + 1} or more"
    known = ", ".join(f"{{{name}}}" for name in sorted(_values(spec)))
    return f"{{{field}}} cannot be filled in, only {known} can; double the braces of a literal"
