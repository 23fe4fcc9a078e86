"""Ports on which strangers come and go, and readiness that a test decides."""

from __future__ import annotations

from collections import defaultdict, deque

from moorage.protocols import Flag, Listener, Readiness, ReadinessOrder, RunProcess
from moorage.testing.holds import Hold
from moorage.testing.processes import FakeProcesses

_READY = Readiness("ready", "status 200")


class FakePorts:
    """Ports of the servers of a FakeProcesses: each is ready at once unless told otherwise."""

    def __init__(self, processes: FakeProcesses) -> None:
        self._processes = processes
        self._strangers: dict[int, Listener] = {}
        self._next: dict[str, deque[Readiness]] = defaultdict(deque)
        self._always: dict[str, Readiness] = {}
        self._holds: dict[str, Hold] = {}
        self.asked: list[ReadinessOrder] = []

    # --- for the test ---

    def occupy(self, port: int, *, pid: int | None = 4242, command: str = "stranger") -> None:
        """Put a stranger on a port: it is not handed out, and who waits for it has lost it."""
        self._strangers[port] = Listener(port, pid, command)

    def vacate(self, port: int) -> None:
        """Take the stranger away."""
        self._strangers.pop(port, None)

    def will(self, model: str, *answers: Readiness) -> None:
        """Decide how the next waits for the model's readiness end, one each."""
        self._next[model].extend(answers)

    def always(self, model: str, answer: Readiness) -> None:
        """Decide how every wait ends that `will` does not decide."""
        self._always[model] = answer

    def hold(self, model: str) -> Hold:
        """Let the model load until the hold is released; waits can still be cancelled."""
        return self._holds.setdefault(model, Hold(f"readiness of {model}"))

    # --- for the service ---

    def stranger(self, port: int) -> Listener | None:
        """Return who occupies the port."""
        return self._strangers.get(port)

    def lost(self, process: RunProcess) -> Listener | None:
        """Return who occupies the run's first port."""
        return self._strangers.get(process.ports[0])

    def wait_ready(self, order: ReadinessOrder, cancelled: Flag) -> Readiness:
        """Wait for the model's hold, then answer as decided. A dead server is never ready."""
        self.asked.append(order)
        server = self._processes.of(order.process)
        model = server.model if server is not None else ""
        hold = self._holds.get(model)
        if hold is not None and not hold.wait(cancelled):
            return Readiness("cancelled")
        answer = self._answer(model, order.port)
        if answer.outcome == "ready" and (server is None or not server.alive):
            Hold(f"the cancel of {model}, whose server is dead").wait(cancelled)
        return Readiness("cancelled") if cancelled.is_set() else answer

    def _answer(self, model: str, port: int) -> Readiness:
        scripted = self._next[model]
        if scripted:
            return scripted.popleft()
        found = self._strangers.get(port)
        if found is not None:
            return Readiness("lost", f"port {port} is answered by {found.command}")
        return self._always.get(model, _READY)
