"""Starts a plan's command line by subprocess and talks to it over HTTP, every wait bounded."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from moorage.backends.llama import LlamaCpp
from moorage.protocols import LaunchPlan, PlanRequest
from moorage.spec import ModelSpec

HOST = "127.0.0.1"
LIMIT_S = 30.0
_PAUSE = threading.Event()  # never set


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ask(port: int, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """Return the status and the JSON that a server answers; with a body it is a POST."""
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)) as to:
        if body is None:
            to.request("GET", path)
        else:
            to.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = to.getresponse()
        return answer.status, json.loads(answer.read())


@dataclass(slots=True)
class Server:
    """A running server. Requests raise OSError when it is gone."""

    process: subprocess.Popen[bytes]
    port: int
    ready_s: float = 0.0
    log: Path = field(default_factory=Path)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        return ask(self.port, path, body)

    def complete(self, tokens: int, prompt: str = "a") -> str:
        body = {"prompt": prompt, "n_predict": tokens, "cache_prompt": False}
        return str(self.ask("/completion", body)[1]["content"])

    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.ask("/slots")[1])

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self, signals: tuple[int, ...]) -> float:
        """Send the signals at once; return the seconds until it has exited."""
        began = time.perf_counter()
        for number in signals:
            self.process.send_signal(number)
        self.process.wait(LIMIT_S)
        return time.perf_counter() - began

    def _wait_ready(self, health_path: str) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < LIMIT_S:
            if self.process.poll() is not None:
                raise RuntimeError(f"exited with {self.process.returncode}: {self.log.read_text()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask(health_path)[0] == 200:
                    return
            _PAUSE.wait(0.001)
        raise TimeoutError(self.log.read_text())


def plan_of(model: Path, port: int, **fields: Any) -> LaunchPlan:
    spec = ModelSpec(name="m", backend="llama.cpp", path=str(model), **fields)
    backend = LlamaCpp()
    backend.check(spec)
    return backend.plan(PlanRequest(spec=spec, path=spec.path, host=HOST, ports=(port,)))


@contextlib.contextmanager
def serving(plan: LaunchPlan, port: int, log: Path) -> Iterator[Server]:
    """Start the plan, wait until it is healthy, and kill what is left of it in the end."""
    with log.open("ab") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            plan.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **plan.env},
            start_new_session=True,
        )
    server = Server(process, port, log=log)
    try:
        server._wait_ready(plan.health_path)
        server.ready_s = time.perf_counter() - began
        yield server
    finally:
        process.kill()
        process.wait(LIMIT_S)
