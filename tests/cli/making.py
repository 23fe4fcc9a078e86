"""Runs of the command, and logs as a service would have written them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from moorage.core import events as ev
from moorage.core.events import Entry, Event
from moorage.log.sqlite import SqliteLog
from moorage.spec import ModelSpec


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Ran]


class Steps:
    """A flag for `-f`: each time it is waited for, the next thing happens; then it is set."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self._actions = list(actions)
        self._over = False

    def is_set(self) -> bool:
        return self._over

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if self._actions:
            self._actions.pop(0)()
        else:
            self._over = True
        return self._over


class Filler:
    """Writes a log as a service would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, *happened: Event, at: str = "2026-01-31T23:59:59.123456Z") -> None:
        log = SqliteLog.open(self.folder)
        try:
            head = log.head
            log.append([Entry(head + n, at, None, e) for n, e in enumerate(happened, 1)])
        finally:
            log.close()

    def open(self, **changes: object) -> None:
        told = {"program": "0", "host": "h", "boot_id": "b", "pid": 1, "ports": ((18000, 18009),)}
        limits = {"max_loaded": 2, "memory_limit": None, "min_residency_s": 0.0}
        self.append(
            ev.LogCreated(log_id="0" * 16, program="0"),
            ev.ServiceOpened(**(told | limits | changes)),  # type: ignore[arg-type]
        )

    def define(self, name: str, *aliases: str) -> None:
        spec = ModelSpec(name=name, backend="command", args=("server",), aliases=aliases)
        self.append(ev.ModelDefined(model=name, spec=spec.to_data(), spec_hash="x"))

    def launch(self, model: str, run: int, output: bytes | None = b"") -> Path:
        """Bring a run to its launch and write its server's output."""
        port = 18_000 + run
        file = self.folder / "logs" / model / f"{run:06d}.log"
        if output is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(output)
        where = {"model": model, "run": run}
        self.append(
            ev.RunQueued(**where, requested_by="lease", place=1),  # type: ignore[arg-type]
            ev.RunReserved(**where, port=port),  # type: ignore[arg-type]
            ev.RunLaunching(
                model=model, run=run, port=port, argv=("server",), nonce="n", log_file=str(file)
            ),
        )
        return file

    def ready(self, model: str, run: int, *, pid: int = 999_999_999, boot_id: str = "b") -> None:
        self.append(
            ev.RunLaunched(
                model=model,
                run=run,
                port=18_000 + run,
                pid=pid,
                group=pid,
                session=pid,
                start_ticks=1,
                boot_id=boot_id,
            ),
            ev.RunReady(
                model=model,
                run=run,
                port=18_000 + run,
                pid=pid,
                seconds=0.5,
                load_s=0.25,
                leases=1,
                owner_check=True,
            ),
        )

    def end(self, model: str, run: int, outcome: str = "failed: launch", error: str = "") -> None:
        self.append(
            ev.RunReleased(model=model, run=run, port=18_000 + run, outcome=outcome, error=error)
        )


def seqs(lines: Sequence[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines]
