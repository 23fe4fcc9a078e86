"""Owners that are killed and leave servers behind, for others to find."""

from __future__ import annotations

import os
import select
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from moorage import Lease, LoadError, ModelService
from moorage.core.events import Event
from moorage.core.state import Run
from moorage.log.reader import LogReader
from support.services import LIMIT_S, state_of

PRELUDE = """
import os, signal, sys, threading
from pathlib import Path
from moorage import *
from support.services import Seen, server, settle, state_of
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def open_(**options):
    options = {"ports": range(first, first + 100), "max_loaded": 4} | options
    return ModelService.open(folder, **options)
"""


def left_behind(folder: Path, pool: range, script: str, *arguments: object) -> str:
    """Run the prelude and the script as an owner that is killed at its end; return what it said."""
    text = f"{PRELUDE}\n{textwrap.dedent(script)}\ndie()\n"
    names = {"folder": folder, "first": pool[0], "arguments": [str(each) for each in arguments]}
    return killed(lambda: exec(text, names))


def killed(work: Callable[[], None], *, after_s: float | None = None) -> str:
    """Run this in a process that kills itself, or is killed; return what it wrote meanwhile.

    It is forked, for the time that starting Python takes: no service may be open here meanwhile.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_owner(work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        try:
            said, ended = _hear(pipe, LIMIT_S if after_s is None else after_s)
        finally:
            os.kill(child, signal.SIGKILL)  # long gone, unless it hangs or works until it is killed
            status = os.waitpid(child, 0)[1]
        said += pipe.readall().decode()
    assert ended or after_s is not None, f"the owner hangs; it said {said!r}"
    assert "Traceback" not in said, said
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, said
    return said


def _be_owner(work: Callable[[], None], writer: int) -> NoReturn:
    """Never returns into the tests, whatever happens."""
    try:
        os.dup2(writer, 1)
        os.close(writer)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        work()
    except BaseException:  # noqa: BLE001  told to the parent
        traceback.print_exc(file=sys.stdout)
    finally:
        os._exit(70)


def _hear(pipe: FileIO, limit_s: float) -> tuple[str, bool]:
    """Return what is said within this time, and whether that was all."""
    said, deadline = b"", time.monotonic() + limit_s
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        some = pipe.read(65536)
        if not some:
            return said.decode(), True
        said += some
    return said.decode(), False


def events_of(folder: Path, kind: str = "", **facts: Any) -> list[Event]:
    """Return the durable events of a log that have this kind and these facts."""
    with LogReader(folder) as reader:
        return [
            entry.event
            for entry in reader.read()
            if entry.event.kind.startswith(kind)
            and all(getattr(entry.event, name) == value for name, value in facts.items())
        ]


def run_of(service: ModelService, model: str) -> Run | None:
    """Return the run a model has now."""
    state = state_of(service)
    return state.runs.get(state.models[model].run or 0)


def serves(service: ModelService, model: str) -> Callable[[], bool]:
    """Return whether a model is lent without waiting."""
    return lambda: service._hall.table.get(model) is not None


def lease_anew(service: ModelService, model: str) -> Lease:
    """Lease a model whose survivor does not answer, which may be told to the first who waits."""
    try:
        return service.lease(model)
    except LoadError as error:
        if error.stage != "health":
            raise
    return service.lease(model)


def alive(pid: int | None) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
