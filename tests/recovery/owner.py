"""An owner that works its models until it is killed; started by test_kill_nine.

python owner.py FOLDER FIRST_PORT SECONDS [append|launch|stop N before|after]

Prints `leased MODEL RUN PID` after each lease it was granted. With a kill point it sends itself
SIGKILL before or after its Nth append, launch or stop.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from moorage import ModelService, ModelSpec, MoorageError, Parts
from moorage.log.sqlite import SqliteLog
from moorage.world.processes import LocalProcesses
from support.servers import misbehave

NAMES = ("a", "b", "c", "d")


def spec(name: str) -> ModelSpec:
    flags = {"b": ("--child",), "c": ("--daemon",), "d": ("--loading", "0.02")}
    template = misbehave(0, "--name", name, *flags.get(name, ()))
    args = tuple("{port}" if part == "0" else part for part in template)
    return ModelSpec(name=name, backend="command", args=args, stop_timeout_s=0.2)


def answered_by(port: int) -> str:
    """Return which model answers on a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", "{}")
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return str(answer["model"])


class KillPoint:
    """Kills this process before or after the Nth call of one kind."""

    def __init__(self, kind: str = "", count: str = "0", when: str = "before") -> None:
        self._kind, self._count, self._when = kind, int(count), when

    def __call__(self, kind: str, work: Any, *args: Any, **more: Any) -> Any:
        if kind != self._kind:
            return work(*args, **more)
        self._count -= 1
        if self._count == 0 and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = work(*args, **more)
        if self._count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def wrapped(target: Any, kind: str, method: str, point: KillPoint) -> None:
    work = getattr(target, method)
    setattr(target, method, lambda *args, **more: point(kind, work, *args, **more))


def work(service: ModelService, names: str, until: float) -> None:
    """Lease one model after another; whoever answers must be the one that was leased."""
    while time.monotonic() < until:
        for name in names:
            try:
                with service.lease(name, 10) as lease:
                    pid = service.model(name).pid
                    os.write(1, f"leased {name} {lease.run} {pid}\n".encode())
                    found = answered_by(lease.port)
            except (MoorageError, OSError, http.client.HTTPException) as error:
                os.write(1, f"failed {name} {error!r}\n".encode())
                continue
            if found != name:
                os.write(1, f"wrong {name} {found}\n".encode())


def main() -> None:
    folder, first = Path(sys.argv[1]), int(sys.argv[2])
    point = KillPoint(*sys.argv[4:])
    log, processes = SqliteLog.open(folder), LocalProcesses()
    wrapped(log, "append", "append", point)
    wrapped(processes, "launch", "launch", point)
    wrapped(processes, "stop", "stop", point)
    parts = Parts(log=log, processes=processes)
    ports = range(first, first + 20)
    with ModelService.open(folder, ports=ports, max_loaded=2, parts=parts) as service:
        service.define(*map(spec, NAMES))
        until = time.monotonic() + float(sys.argv[3])
        other = threading.Thread(target=work, args=(service, "dbca", until))
        other.start()
        work(service, "abcd", until)
        other.join()


if __name__ == "__main__":
    main()
