"""Puts the fakes together for `ModelService.open`."""

from __future__ import annotations

from moorage.compose import Parts
from moorage.protocols import Backends, EventLog, Fetcher, Ports
from moorage.testing.clock import FakeClock
from moorage.testing.files import FakeBackends, FakeFetcher
from moorage.testing.ports import FakePorts
from moorage.testing.processes import FakeProcesses


def fake_parts(
    *,
    log: EventLog | None = None,
    processes: FakeProcesses | None = None,
    ports: Ports | None = None,
    backends: Backends | None = None,
    fetcher: Fetcher | None = None,
    clock: FakeClock | None = None,
) -> Parts:
    """Return an outer world without servers, sockets and downloads.

    Keep the fakes you want to script and pass them in. The log is the real one in the state
    folder unless a `MemoryLog` is given (then `service.events()` has no file to read), time is
    the real one unless a `FakeClock` is.
    """
    servers = processes or FakeProcesses()
    parts = Parts(
        log=log,
        processes=servers,
        ports=ports or FakePorts(servers),
        backends=backends or FakeBackends(),
        fetcher=fetcher or FakeFetcher(),
    )
    if clock is not None:
        parts.clock = clock
        parts.new_alarm = clock.new_alarm
    return parts
