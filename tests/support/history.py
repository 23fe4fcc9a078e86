"""Histories of a service as its log would tell them, of any length, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from moorage.core import events as ev
from moorage.core.events import Entry, Event
from moorage.spec import ModelSpec

BEGAN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
POOL = (18_000, 18_031)
BOOT = "00000000-0000-4000-8000-000000000001"


@dataclass
class History:
    """Yields a bounded number of runs: loads, evictions, undone drains, crashes, failed starts.

    `stop_at` ends it as a SIGKILL would: with runs open and the service not closed.
    """

    seed: int = 0
    models: int = 6
    room: int = 3
    crashes: float = 0.04
    seq: int = 0
    run: int = 0
    at: datetime = BEGAN
    ready: list[tuple[str, int, int]] = field(default_factory=list)
    """(model, run, port), least recently used first."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.free = list(range(POOL[0], POOL[1] + 1))
        self.names = [f"model-{number}" for number in range(self.models)]
        self.more: dict[int, tuple[int, ...]] = {}
        self.pid = 1000

    def entries(self, runs: int, *, close: str | None = "stop") -> Iterator[Entry]:
        """Yield a whole log of so many runs; `close=None` leaves it as a killed owner does."""
        yield from self.opening()
        for _ in range(runs):
            yield from self.one_run()
        if close == "stop":
            for model, run, port in list(self.ready):
                yield self.entry(ev.RunDraining(model=model, run=run, reason="close", leases=0))
                yield from self.stopped(model, run, port, "close")
        if close is not None:
            kept = tuple(run for _, run, _ in self.ready)
            yield self.entry(ev.ServiceClosed(reason=close, kept=kept))

    def opening(self) -> Iterator[Entry]:
        yield self.entry(ev.LogCreated(log_id="0123456789abcdef", program="0.1.0"))
        yield self.opened()
        for name in self.names:
            spec = ModelSpec(name=name, backend="llama.cpp", path=f"/models/{name}.gguf")
            yield self.entry(
                ev.ModelDefined(model=name, spec=spec.to_data(), spec_hash=f"hash-{name}")
            )

    def opened(self) -> Entry:
        return self.entry(
            ev.ServiceOpened(
                program="0.1.0",
                host="host",
                boot_id=BOOT,
                pid=77,
                ports=(POOL,),
                max_loaded=self.room,
                memory_limit=None,
                min_residency_s=0.0,
            )
        )

    def one_run(self) -> Iterator[Entry]:
        loaded = {model for model, _, _ in self.ready}
        model = self.random.choice([name for name in self.names if name not in loaded])
        self.run += 1
        run = self.run
        self.wait(self.random.expovariate(1 / 20))
        queued = self.entry(
            ev.RunQueued(model=model, run=run, requested_by=f"lease({model!r})", place=1)
        )
        yield queued
        if self.random.random() < 0.02:
            self.wait(3)
            yield self.entry(ev.RunAbandoned(model=model, run=run, outcome="cancelled"), queued)
            return
        if len(self.ready) >= self.room:
            yield from self.make_room(model, run, queued)
        yield from self.load(model, run, queued)
        if self.ready and self.random.random() < self.crashes:
            self.wait(self.random.uniform(1, 30))
            yield from self.crash(*self.random.choice(self.ready))

    def make_room(self, model: str, run: int, queued: Entry) -> Iterator[Entry]:
        yield self.noted()
        busy = self.random.random() < 0.1
        victim, number, port = self.ready[0]
        order = tuple(r for _, r, _ in self.ready)
        skipped = ((order[1], "leased"),) if len(order) > 1 and self.random.random() < 0.3 else ()
        evicting = ev.RunEvicting(
            model=victim,
            run=number,
            reason="room",
            for_run=run,
            for_model=model,
            leases=int(busy),
            order=order,
            skipped=skipped,
        )
        chosen = self.entry(evicting, queued)
        yield chosen
        if busy:
            self.wait(self.random.uniform(1, 10))
            yield self.entry(
                ev.RunReopened(model=victim, run=number, reason="another went idle"), chosen
            )
            victim, number, port = self.ready[1]
            evicting = ev.RunEvicting(
                model=victim,
                run=number,
                reason="room",
                for_run=run,
                for_model=model,
                leases=0,
                order=order,
                skipped=((order[0], "leased"),),
            )
            chosen = self.entry(evicting, queued)
            yield chosen
        yield from self.stopped(victim, number, port, "room", chosen)

    def noted(self) -> Entry:
        order = tuple(run for _, run, _ in self.ready)
        leases = tuple((run, self.random.randint(1, 9)) for run in order)
        return self.entry(ev.UsageNoted(order=order, leases=leases))

    def load(self, model: str, run: int, queued: Entry) -> Iterator[Entry]:
        port = self.free.pop(0)
        if self.random.random() < 0.03:
            blocked = ev.PortBlocked(port=port, pid=4, command="nginx: master", run=run)
            yield self.entry(blocked, queued)
            self.free.append(port)
            port = self.free.pop(0)
        more = (self.free.pop(0),) if self.random.random() < 0.05 else ()
        self.more[run] = more
        reserved = self.entry(
            ev.RunReserved(model=model, run=run, port=port, more_ports=more), queued
        )
        yield reserved
        if self.random.random() < 0.02:
            yield from self.released(
                model, run, port, "failed: prepare", reserved, error="no such file"
            )
            yield self.backoff(model, run, "prepare")
            return
        yield from self.launch(model, run, port, reserved)
        self.wait(self.random.lognormvariate(0.5, 0.6))
        if self.random.random() < self.crashes:
            yield from self.exited(model, run, port, stage="load")
            return
        yield self.entry(
            ev.RunReady(
                model=model,
                run=run,
                port=port,
                pid=self.pid,
                seconds=round((self.at - self.reserved_at).total_seconds(), 6),
                load_s=round((self.at - self.launched_at).total_seconds(), 6),
                leases=1,
                owner_check=True,
            )
        )
        self.ready.append((model, run, port))
        self.wait(self.random.expovariate(1 / 15))

    def launch(self, model: str, run: int, port: int, reserved: Entry) -> Iterator[Entry]:
        self.reserved_at = self.at
        self.wait(0.004)
        argv = ("llama-server", "--model", f"/models/{model}.gguf", "--port", str(port))
        launching = self.entry(
            ev.RunLaunching(
                model=model,
                run=run,
                port=port,
                argv=argv,
                nonce=f"{run:016x}",
                log_file=f"logs/{model}-{run}.log",
            ),
            reserved,
        )
        yield launching
        self.wait(0.002)
        self.pid += 1
        self.launched_at = self.at
        yield self.entry(
            ev.RunLaunched(
                model=model,
                run=run,
                port=port,
                pid=self.pid,
                group=self.pid,
                session=self.pid,
                start_ticks=self.pid * 7,
                boot_id=BOOT,
            ),
            launching,
        )

    def crash(self, model: str, run: int, port: int) -> Iterator[Entry]:
        self.ready.remove((model, run, port))
        yield from self.exited(model, run, port, stage="exit")

    def exited(self, model: str, run: int, port: int, *, stage: str) -> Iterator[Entry]:
        gone = self.entry(
            ev.RunExited(
                model=model,
                run=run,
                pid=self.pid,
                code=None,
                signal=11,
                wanted=False,
                stage=stage,
                error="killed by SIGSEGV",
                log_tail=("loading", "CUDA error: out of memory"),
            )
        )
        yield gone
        yield from self.swept(model, run, port, f"failed: {stage}", gone, error="killed by SIGSEGV")
        yield self.backoff(model, run, stage)

    def backoff(self, model: str, run: int, stage: str) -> Entry:
        until = text(self.at + timedelta(seconds=1))
        return self.entry(
            ev.ModelBackoff(
                model=model, run=run, attempts=1, until=until, stage=stage, error="it failed"
            )
        )

    def stopped(
        self, model: str, run: int, port: int, reason: str, cause: Entry | None = None
    ) -> Iterator[Entry]:
        self.ready.remove((model, run, port))
        stopping = self.entry(
            ev.RunStopping(model=model, run=run, reason=reason, stop_timeout_s=10.0), cause
        )
        yield stopping
        self.wait(self.random.uniform(0.01, 0.5))
        if self.random.random() < 0.01:
            yield self.entry(
                ev.RunStopFailed(model=model, run=run, pids=(self.pid,), error="outlived SIGKILL"),
                stopping,
            )
            self.wait(25)
        gone = self.entry(
            ev.RunExited(model=model, run=run, pid=self.pid, code=0, signal=None, wanted=True),
            stopping,
        )
        yield gone
        yield from self.swept(model, run, port, "ok", gone)

    def swept(
        self, model: str, run: int, port: int, outcome: str, cause: Entry, *, error: str = ""
    ) -> Iterator[Entry]:
        peak = 100_000_000 * (1 + self.names.index(model)) + run % 1000
        swept = self.entry(
            ev.RunSwept(model=model, run=run, pids=(), seconds=0.01, peak_bytes=peak), cause
        )
        yield swept
        yield from self.released(model, run, port, outcome, swept, error=error, peak=peak)

    def released(
        self,
        model: str,
        run: int,
        port: int,
        outcome: str,
        cause: Entry,
        *,
        error: str = "",
        peak: int | None = None,
    ) -> Iterator[Entry]:
        yield self.entry(
            ev.RunReleased(
                model=model, run=run, port=port, outcome=outcome, error=error, peak_bytes=peak
            ),
            cause,
        )
        self.free.extend((port, *self.more.pop(run, ())))

    def entry(self, event: Event, cause: Entry | None = None) -> Entry:
        self.seq += 1
        return Entry(self.seq, text(self.at), cause.seq if cause else None, event)

    def wait(self, seconds: float) -> None:
        self.at += timedelta(seconds=round(seconds, 6))


def text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
