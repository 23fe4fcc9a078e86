"""An owner under load, which goes on until it is killed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence

from moorage import ModelSpec, MoorageError
from recovery.dying import Life, tell
from support.services import join, server, start_thread

NAMES = ("a", "b", "c", "d")


def spec(name: str) -> ModelSpec:
    flags = {"b": ("--child",), "c": ("--daemon",), "d": ("--loading", "0.02")}
    return server(name, "--name", name, *flags.get(name, ()), stop_timeout_s=0.2)


def answered_by(port: int) -> str:
    """Return which model answers on a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/v1/chat/completions", "{}")
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return str(answer["model"])


def work_on(life: Life) -> None:
    """Lease one model after another in two threads, with room for half of them."""
    life.open(max_loaded=2)
    life.define(*map(spec, NAMES))
    join(*(start_thread(lambda o=order: _work(life, o)) for order in (NAMES, NAMES[::-1])))


def _work(life: Life, names: Sequence[str]) -> None:
    """Whoever answers must be the one that was leased."""
    while True:
        for name in names:
            try:
                with life.lease(name, 10) as lease:
                    found = answered_by(lease.port)
            except (MoorageError, OSError, http.client.HTTPException) as error:
                tell("failed", f"{name}: {error!r}")
                continue
            if found != name:
                tell("wrong", f"{name} was answered by {found}")
