"""A backend that accepts anything and a hub that has everything."""

from __future__ import annotations

import signal
from collections import defaultdict, deque
from collections.abc import Callable

from moorage.protocols import (
    FetchCancelledError,
    Fetched,
    FetchFailedError,
    Flag,
    LaunchFailedError,
    LaunchPlan,
    PlanRequest,
    Progress,
    StopSignal,
)
from moorage.spec import ModelSpec
from moorage.testing.holds import Hold

_SIZE = 1000


class FakeBackends:
    """Every name is the same backend. `plans` records what was asked of it."""

    def __init__(self) -> None:
        self.name = "fake"
        self.plans: list[PlanRequest] = []
        self._refused: dict[str, str] = {}
        self._holds: dict[str, Hold] = {}

    def refuse(self, model: str, problem: str | None) -> None:
        """Make planning the model's launch fail until `problem` is None."""
        if problem is None:
            self._refused.pop(model, None)
        else:
            self._refused[model] = problem

    def hold(self, model: str) -> Hold:
        """Make planning the model's launch wait until the hold is released."""
        return self._holds.setdefault(model, Hold(f"plan of {model}"))

    def get(self, name: str) -> FakeBackends:  # noqa: ARG002  whatever is asked for
        """Return itself."""
        return self

    def check(self, spec: ModelSpec) -> None:
        """Accept it."""

    def plan(self, request: PlanRequest) -> LaunchPlan:
        """Return a command line that is never run; one SIGTERM stops it."""
        self.plans.append(request)
        model = request.spec.name
        if model in self._holds:
            self._holds[model].wait()
        if model in self._refused:
            raise LaunchFailedError(self._refused[model])
        return LaunchPlan(
            argv=("fake-server", model, "--port", str(request.ports[0]), *request.spec.args),
            health_path="/health",
            stop_signals=(StopSignal(signal.SIGTERM, "leader", request.spec.stop_timeout_s),),
        )


class FakeFetcher:
    """Has the files of every repo at once, unless told otherwise. `fetches` records the calls."""

    def __init__(self) -> None:
        self.fetches: list[ModelSpec] = []
        self._failures: dict[str, deque[str]] = defaultdict(deque)
        self._holds: dict[str, Hold] = {}
        self._tell: dict[str, Callable[[Progress], None]] = {}

    def will_fail(self, model: str, *problems: str) -> None:
        """Make the next fetches for a model fail, one each."""
        self._failures[model].extend(problems)

    def hold(self, model: str) -> Hold:
        """Make fetches for a model wait until the hold is released; they can be cancelled."""
        return self._holds.setdefault(model, Hold(f"fetch of {model}"))

    def come(
        self, model: str, done_bytes: int, total_bytes: int | None = _SIZE, *, waiting: str = ""
    ) -> None:
        """Tell of the model's latest fetch, which should be on hold, that it is so far."""
        self._tell[model](Progress(done_bytes, total_bytes, waiting))

    def fetch(
        self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Flag
    ) -> Fetched:
        """Return made-up files; nothing is written."""
        self.fetches.append(spec)
        self._tell[spec.name] = progress
        progress(Progress(0, _SIZE))
        hold = self._holds.get(spec.name)
        if hold is not None and not hold.wait(cancelled):
            raise FetchCancelledError
        if self._failures[spec.name]:
            raise FetchFailedError(self._failures[spec.name].popleft())
        return Fetched(
            path=f"/fake/{spec.repo}",
            commit="0" * 40,
            files=((spec.file or "model", _SIZE, "0" * 64),),
            fetched_bytes=_SIZE,
        )
