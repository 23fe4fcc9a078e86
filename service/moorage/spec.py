"""What a model is: the specification a caller defines. Pure: no file system, no processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from moorage.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
_MOST_WHOLE = (1 << 63) - 1
_LONG_SECRET = 8
"""From this length on, a secret is looked for inside of other texts."""
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL_PATH = re.compile(r"/[!-~]*")
_OPTIONAL_TEXTS = (
    *("path", "repo", "file", "revision", "mmproj", "executable", "cwd", "health_path"),
)

type_setting = (str, int, float, bool)
Setting = str | int | float | bool | Sequence[str | int | float]

# Changing one of these does not change what is launched, so a ready run is kept.
_NOT_LAUNCHED = frozenset({"aliases", "pinned", "ttl_s", "restart", "crash_budget"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model and how its server is started, judged ready and stopped.

    Raises ConfigurationError when a value cannot be used.
    """

    name: str
    """1 to 128 letters, digits and `._:@+-`, starting with a letter or digit."""
    backend: str
    """`llama.cpp`, `vllm`, `sglang`, `command`, or one of the entry-point group."""
    path: str | None = None
    """A local model file or folder, as the backend wants it."""
    repo: str | None = None
    """`org/name` on the hub; fetched before anything scarce is taken."""
    file: str | None = None
    """One file of the repo; without it all of them, but for vLLM and SGLang no other weights where
    there are safetensors. A GGUF model that is split in parts is named by any of them, or without
    `-00001-of-0000N`."""
    revision: str | None = None
    mmproj: str | None = None
    """The model's projector, for images and sound: a file of the repo, or beside `path` a local
    one. Of llama.cpp only."""
    executable: str | None = None
    """A path or a name looked up on PATH; without it the backend finds its own."""
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    """The server's long options with underscores: True a bare flag, a list a repeated option."""
    args: Sequence[str] = ()
    """Further arguments, passed last and as they are. For `command`, the argv template."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Environment variables whose values never reach the log, an argv display or a log tail."""
    inherit_env: bool = True
    cwd: str | None = None
    aliases: Sequence[str] = ()
    pinned: bool = False
    """Never a victim of eviction. A pin loads nothing."""
    ttl_s: float | None = None
    """Evict after this many idle seconds; None: never for idleness."""
    memory: int | None = None
    """Bytes it needs when loaded; without it, learned from earlier runs."""
    ports: int = 1
    """How many ports it is given, the first is the one that serves."""
    owner_check: bool = True
    """Ready only when the listener belongs to the run's own processes; False for containers."""
    health_path: str | None = None
    """The URL path that answers 2xx when ready; without it the backend's own."""
    health_interval_s: float | None = None
    """Ask a ready run this often whether it is healthy; None: never. One that does not answer
    three times drains, ends as a failure and starts anew on the next lease."""
    load_timeout_s: float = 600.0
    stop_timeout_s: float = 10.0
    """Seconds a graceful stop may take before SIGKILL."""
    restart: Literal["on-demand", "always"] = "on-demand"
    crash_budget: int = 5
    """Consecutive failures after which the model is `failed` until `reset`."""

    def __post_init__(self) -> None:
        for name in ("settings", "env", "secrets"):
            mapping: Any = getattr(self, name)
            if not isinstance(mapping, Mapping):
                raise _bad(name, f"must be a mapping, not {type(mapping).__name__}")
            object.__setattr__(self, name, dict(cast("Mapping[str, Any]", mapping)))
        for name in ("args", "aliases"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        for name in ("path", "mmproj", "executable", "cwd"):
            value = getattr(self, name)
            if value is not None and hasattr(value, "__fspath__"):
                object.__setattr__(self, name, value.__fspath__())
        _check_names(self)
        _check_source(self)
        _check_settings(self)
        _check_texts(self)
        _check_numbers(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data; of the secrets only their names (`secret_names`)."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["settings"] = {k: _plain(v) for k, v in self.settings.items()}
        data["args"] = list(self.args)
        data["aliases"] = list(self.aliases)
        del data["secrets"]
        data["secret_names"] = sorted(self.secrets)
        if self.mmproj is None:  # older logs know no such field, and hashed their specs without
            del data["mmproj"]
        return data

    def launch_hash(self) -> str:
        """Return a hash of what decides the launched process; secrets' values are not in it."""
        data = {k: v for k, v in self.to_data().items() if k not in _NOT_LAUNCHED}
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def spec_from_data(data: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> ModelSpec:
    """Rebuild a spec from `to_data`; unknown keys of a newer version are refused.

    `secrets` gives the values the data cannot hold.
    """
    known = {f.name for f in dataclasses.fields(ModelSpec)} | {"secret_names"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise ConfigurationError("ModelSpec", f"unknown field {', '.join(unknown)}")
    missing = [name for name in ("name", "backend") if name not in data]
    if missing:
        raise ConfigurationError("ModelSpec", f"has no {missing[0]}")
    fields = {k: v for k, v in data.items() if k != "secret_names"}
    return ModelSpec(**fields, secrets=dict(secrets or {}))


def _texts(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _bad(name, f"must be a list of strings, not {type(value).__name__}")
    return tuple(value)


def quoted(value: object) -> str:
    """Return a value as an error quotes it: of a number with thousands of digits there is none."""
    try:
        return repr(value)
    except ValueError:
        return f"so large a number ({type(value).__name__})"


def _bad(field_name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"ModelSpec.{field_name}", problem)


def _plain(value: Setting) -> Any:
    return value if isinstance(value, type_setting) else list(value)


def _check_names(spec: ModelSpec) -> None:
    for kind, name in [("name", spec.name), *(("aliases", a) for a in spec.aliases)]:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _bad(
                kind,
                f"{quoted(name)} is not usable: 1 to 128 letters, digits and ._:@+- "
                "starting with a letter or digit",
            )
    if len(set(spec.names)) != len(spec.names):
        raise _bad("aliases", "names the model itself or one alias twice")


def _check_source(spec: ModelSpec) -> None:
    if spec.path is not None and spec.repo is not None:
        raise _bad("path", "give path or repo, not both")
    if spec.repo is None and (spec.file is not None or spec.revision is not None):
        raise _bad("file", "file and revision belong to a repo")
    if spec.mmproj is not None and spec.path is None and spec.file is None:
        raise _bad("mmproj", "is a projector beside a model: give a path, or a repo and a file")


def _check_texts(spec: ModelSpec) -> None:
    texts: dict[str, object] = {
        name: getattr(spec, name)
        for name in ("backend", *_OPTIONAL_TEXTS)
        if getattr(spec, name) is not None
    }
    texts |= {f"args[{i}]": arg for i, arg in enumerate(spec.args)}
    texts |= {f"env[{quoted(k)}]": v for k, v in spec.env.items()}
    texts |= {f"secrets[{quoted(k)}]": v for k, v in spec.secrets.items()}
    if not spec.backend:
        raise _bad("backend", "must be named")
    for name, value in texts.items():
        if not isinstance(value, str):
            raise _bad(name, f"must be text, not {type(value).__name__}")
        if "\0" in value or (value == "" and not name.startswith(("args", "env"))):
            raise _bad(name, "is empty or contains a NUL byte")
    for key in (*spec.env, *spec.secrets):
        if not isinstance(key, str) or not _ENV.fullmatch(key):
            raise _bad("env", f"{quoted(key)} is no environment variable name")
    _check_hidden(spec, texts)
    both = sorted(set(spec.env) & set(spec.secrets))
    if both:
        raise _bad("secrets", f"{', '.join(both)} is in env too")
    if spec.health_path is not None and not _URL_PATH.fullmatch(spec.health_path):
        raise _bad("health_path", "must start with / and hold no blanks or control characters")


def _check_hidden(spec: ModelSpec, texts: Mapping[str, object]) -> None:
    """Refuse a secret that another field would show in the log."""
    shown = {name: str(text) for name, text in texts.items() if not name.startswith("secrets")}
    shown |= {f"settings[{quoted(key)}]": str(value) for key, value in spec.settings.items()}
    for key, secret in spec.secrets.items():
        for name, text in shown.items():
            if secret == text or (len(secret) >= _LONG_SECRET and secret in text):
                raise _bad("secrets", f"the value of {key} is in {name} too, which the log shows")


def _check_settings(spec: ModelSpec) -> None:
    for key, value in spec.settings.items():
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", key):
            raise _bad("settings", f"{quoted(key)} is no option name")
        items = [value] if isinstance(value, type_setting) else value
        if not isinstance(items, Sequence):
            raise _bad("settings", f"{key} must be text, a number, a flag or a list of these")
        for item in items:
            if not isinstance(item, type_setting) or not _storable(item):
                raise _bad("settings", f"{key} holds {quoted(item)}, which is no option value")


def _storable(item: str | float) -> bool:
    if isinstance(item, str):
        return "\0" not in item
    return math.isfinite(item) if isinstance(item, float) else abs(item) <= _MOST_WHOLE


def _check_numbers(spec: ModelSpec) -> None:
    _number(spec, "load_timeout_s", low=0.001, high=86_400 * 7)
    _number(spec, "stop_timeout_s", low=0, high=86_400)
    if spec.ttl_s is not None:
        _number(spec, "ttl_s", low=0, high=86_400 * 3650)
    if spec.health_interval_s is not None:
        _number(spec, "health_interval_s", low=0.01, high=86_400)
    if spec.memory is not None:
        _number(spec, "memory", low=1, high=1 << 60, whole=True)
    _number(spec, "ports", low=1, high=64, whole=True)
    _number(spec, "crash_budget", low=1, high=1_000_000, whole=True)
    for name in ("pinned", "owner_check", "inherit_env"):
        if not isinstance(getattr(spec, name), bool):
            raise _bad(name, "must be True or False")
    if spec.restart not in ("on-demand", "always"):
        raise _bad("restart", "must be 'on-demand' or 'always'")


def _number(spec: ModelSpec, name: str, *, low: float, high: float, whole: bool = False) -> None:
    value = getattr(spec, name)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _bad(name, f"must be a {'whole ' if whole else ''}number, not {quoted(value)}")
    if not low <= value <= high:  # neither is NaN, nor an integer that no float can hold
        raise _bad(name, f"must lie between {low:g} and {high:g}, not {quoted(value)}")
