"""Lives of an owner, each one short and the same each time: all that can become of a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from moorage import (
    LoadCancelledError,
    ModelSpec,
    MoorageError,
    NoRoomError,
    ServiceClosedError,
    WaitTimeoutError,
)
from moorage.actors import deadlines, effects, model, registry
from moorage.core.lifecycle import Stage
from recovery.dying import Life, tell
from support import services
from support.services import Outcome, settle, state_of

REPO = "org/model"
CHUNK_BYTES = 4096
"""What is asked of the hub at a time."""


@dataclass(frozen=True)
class Kind:
    """A life, and what its heirs have to know of it."""

    live: Callable[[Life], None]
    usable: bool = True
    """Its models can be started."""
    waiting_facts: bool = False
    """Facts wait for the next decision, as they do; else each has a commit of its own."""
    note_s: float = 60.0

    def __call__(self, life: Life) -> None:
        if not self.waiting_facts:
            registry.FACTS = ()
        deadlines.NOTE_S = self.note_s
        self.live(life)


LIVES: dict[str, Kind] = {}


def life(**facts: Any) -> Callable[[Callable[[Life], None]], Callable[[Life], None]]:
    def add(live: Callable[[Life], None]) -> Callable[[Life], None]:
        LIVES[live.__name__] = Kind(live, **facts)
        return live

    return add


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Shorten what an heir waits for; a life takes it over from there."""
    patch.setattr(effects, "ADOPT_S", 1.0)
    patch.setattr(effects, "RETRY_STOP_S", 0.05)
    patch.setattr(effects, "RETRY_MAX_S", 0.05)
    patch.setattr(model, "HEALTH_S", 0.05)


def server(name: str, *flags: str, **more: Any) -> ModelSpec:
    more = {"stop_timeout_s": 0.2} | more
    return services.server(name, "--name", name, *flags, **more)


# --- from the first append on ---


@life()
def leases_evicts_and_stops(life: Life) -> None:
    life.arm()
    life.open()
    life.define(server("a"), server("b"))
    life.use("a", "b")
    life.stop("b")
    life.close("stop")


@life(waiting_facts=True)
def leases_and_evicts_with_facts_that_wait(life: Life) -> None:
    leases_evicts_and_stops(life)


# --- loads ---


def from_hub(file: str = "model.gguf") -> ModelSpec:
    return server("a", repo=REPO, file=file)


def in_small_chunks() -> None:
    from moorage.hub import meter, transfer  # noqa: PLC0415  few lives need it

    meter.TELL_S = 0  # type: ignore[misc]
    transfer.SEGMENT = CHUNK_BYTES  # type: ignore[misc]


@life()
def fetches(life: Life) -> None:
    in_small_chunks()
    life.open()
    life.define(from_hub())
    life.arm()
    life.use("a")


FAILING = {
    "fetches_what_is_not_there": ("fetch", from_hub("other.gguf")),
    "starts_what_is_not_installed": (
        "prepare",
        ModelSpec(name="a", backend="command", args=("/nowhere/server", "{port}")),
    ),
    "starts_what_ends_at_once": ("load", server("a", "--exit", "3")),
    "starts_what_ends_at_once_until_its_budget_is_spent": (
        "load",
        server("a", "--exit", "3", crash_budget=1),
    ),
    "starts_what_dies_while_it_loads": (
        "load",
        server("a", "--loading", "60", "--die-after", "0.1"),
    ),
    "starts_what_loads_for_too_long": (
        "ready",
        server("a", "--loading", "60", load_timeout_s=0.15),
    ),
}
"""Lives whose one start fails: in which stage, and of what."""


def failing(stage: str, spec: ModelSpec) -> Callable[[Life], None]:
    def live(life: Life) -> None:
        life.open()
        life.define(spec)
        life.arm()
        life.start_fails("a", stage)

    return live


LIVES |= {name: Kind(failing(*facts), usable=False) for name, facts in FAILING.items()}


@life(usable=False)
def cannot_write_the_output(life: Life) -> None:
    life.open()
    life.define(server("a"))
    (life.folder / "logs").mkdir(exist_ok=True)
    (life.folder / "logs" / "a").write_text("no folder")
    life.arm()
    life.start_fails("a", "launch")


@life(usable=False)
def stops_a_load(life: Life) -> None:
    life.open()
    life.define(server("a", "--loading", "60", load_timeout_s=2))
    life.arm()
    load = life.beside(lambda: life.start("a"), "run.launched")
    life.stop("a")
    with pytest.raises(LoadCancelledError):
        load.get()


@life()
def stops_a_launch(life: Life) -> None:
    go = threading.Event()
    life.open()
    life.define(server("a"))
    life.processes.before_launch = lambda _: go.wait(20)
    life.arm()
    load = life.beside(lambda: life.start("a"), "run.launching")
    stop = life.beside(lambda: life.stop("a"), "run.stopping")
    go.set()
    stop.get()
    with pytest.raises(LoadCancelledError):
        load.get()


@life()
def finds_a_stranger_on_a_port(life: Life) -> None:
    life.stranger(life.pool[0])
    life.open()
    life.define(server("a"))
    life.arm()
    life.use("a")


@life()
def loses_the_race_for_a_port(life: Life) -> None:
    def lose(_: str) -> None:
        life.processes.before_launch = lambda _: None
        life.stranger(life.pool[0])

    life.open()
    life.define(server("a"))
    life.processes.before_launch = lose
    life.arm()
    life.use("a")


@life()
def leases_two_in_one_step(life: Life) -> None:
    life.open(max_loaded=2)
    life.define(server("a"), server("b"))
    life.arm()
    with life.service.lease_all("a", "b", timeout_s=20) as leases:
        for name in "ab":
            lease = leases[name]
            tell("granted", name, lease.run, life.service.model(name).pid)


# --- ends that nobody asked for ---


@life()
def loses_a_leader_that_leaves_a_child(life: Life) -> None:
    life.open()
    life.define(server("a", "--child"))
    life.start("a")
    life.arm()
    life.seen.wait("run.released", run=life.kill("a"))
    life.use("a")


@life(waiting_facts=True)
def loses_a_leader_with_facts_that_wait(life: Life) -> None:
    loses_a_leader_that_leaves_a_child(life)


@life()
def loses_a_leader_while_it_drains(life: Life) -> None:
    life.open()
    life.define(server("a"))
    lease = life.lease("a")
    stop = life.beside(lambda: life.stop("a"), "run.draining")
    life.arm()
    life.kill("a")
    stop.get()
    assert lease.lost


@life()
def finds_a_server_unhealthy(life: Life) -> None:
    life.open()
    life.define(server("a", health_interval_s=0.02))
    lease = life.lease("a")
    life.arm()
    run = life.kill("a", signal.SIGSTOP)
    life.seen.wait("run.draining", reason="unhealthy")
    lease.release()
    life.seen.wait("run.released", run=run)


@life()
def starts_again_what_always_runs(life: Life) -> None:
    life.open()
    life.define(server("a", restart="always"))
    life.start("a")
    life.arm()
    run = life.kill("a")
    life.seen.wait("run.ready", run=run + 1)


@life()
def evicts_what_is_idle(life: Life) -> None:
    life.open()
    life.define(server("a", ttl_s=0.1))
    life.arm()
    life.use("a")
    life.seen.wait("run.released")


# --- what an operator does ---


@life()
def holds_and_resets(life: Life) -> None:
    life.open()
    life.define(server("a"))
    life.start("a")
    life.arm()
    life.hold("a")
    life.pin("a")
    life.reset("a")
    life.use("a")


@life()
def stops_by_force(life: Life) -> None:
    life.open()
    life.define(server("a", "--ignore-term"))
    lease = life.lease("a")
    life.arm()
    life.stop("a", force=True)
    assert lease.lost


@life()
def reloads_an_idle_run(life: Life) -> None:
    life.open()
    life.define(server("a"))
    life.start("a")
    life.arm()
    life.define(server("a", "--child"))
    life.use("a")


@life()
def reloads_a_leased_run(life: Life) -> None:
    life.open()
    life.define(server("a"))
    lease = life.lease("a")
    life.arm()
    life.define(server("a", "--child"))
    waiting = life.beside(lambda: life.lease("a"), "run.queued", run=lease.run + 1)
    lease.release()
    waiting.get().release()


@life()
def removes_a_leased_model(life: Life) -> None:
    life.open()
    life.define(server("a"))
    lease = life.lease("a")
    life.arm()
    removal = life.beside(lambda: life.remove("a"), "run.draining", reason="remove")
    lease.release()
    removal.get()


@life()
def gives_up_a_removal(life: Life) -> None:
    life.open()
    life.define(server("a"))
    lease = life.lease("a")
    life.arm()
    life.remove_in_vain("a")
    life.pin("a")
    lease.release()
    life.remove("a")


@life()
def removes_what_is_being_stopped(life: Life) -> None:
    life.open()
    life.define(server("a", "--ignore-term"))
    life.start("a")
    life.arm()
    stop = life.beside(lambda: life.stop("a"), "run.stopping", reason="operator")
    life.remove("a")
    stop.get()


@life()
def lowers_and_raises_the_limits(life: Life) -> None:
    life.open(max_loaded=2)
    life.define(server("a"), server("b"))
    life.use("a", "b")
    life.arm()
    life.limit(1)
    life.seen.wait("run.released")
    life.limit(2)
    life.use("a")


@life()
def pins_and_unpins(life: Life) -> None:
    life.open()
    life.define(server("a"), server("b"))
    life.start("a")
    life.arm()
    life.pin("a")
    with pytest.raises(NoRoomError):
        life.lease("b")
    life.pin("a", pinned=False)
    life.use("b")


# --- drains ---


@life()
def undoes_a_drain(life: Life) -> None:
    life.open()
    life.define(server("a"), server("b"))
    lease = life.lease("a")
    life.arm()
    waiting = Outcome(lambda: life.lease("b", timeout_s=0.1))
    life.seen.wait("run.reopened")
    lease.release()
    life.use("a")
    with pytest.raises(WaitTimeoutError):
        waiting.get()


@life()
def stops_what_drains_for_room(life: Life) -> None:
    life.open()
    life.define(server("a"), server("b"))
    lease = life.lease("a")
    life.arm()
    waiting = life.beside(lambda: life.lease("b"), "run.evicting")
    stop = life.beside(lambda: life.stop("a"), "run.draining", reason="operator")
    lease.release()
    stop.get()
    waiting.get().release()


def is_stuck(life: Life) -> bool:
    """Tell whether the stop failed for good: its leader's exit, told late, has it begun again."""
    runs = state_of(life.service).runs.values()
    return any(run.stage is Stage.STOP_FAILED and run.exited for run in runs)


@life()
def quarantines_what_cannot_be_proved(life: Life) -> None:
    """A worker that wiped its environment, of a leader that ended while nobody looked."""
    life.open()
    life.define(server("a", "--wipe", "--child"))
    pid = life.start("a")
    (worker,) = psutil.Process(pid).children()
    life.close("keep")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # even as a zombie its pid would prove whose the worker is
    tell("stuck", worker.pid)
    life.arm()
    life.open()
    settle(lambda: is_stuck(life))
    stop = Outcome(lambda: life.stop("a"))
    life.seen.wait("run.stopping", reason="operator")
    with pytest.raises(MoorageError):
        stop.get()


@life()
def releases_what_was_in_quarantine(life: Life) -> None:
    life.open()
    life.define(server("a", "--wipe", "--child"))
    pid = life.start("a")
    (worker,) = psutil.Process(pid).children()
    life.close("keep")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    life.open()
    settle(lambda: is_stuck(life))
    life.arm()
    worker.kill()
    life.seen.wait("run.released")


# --- the service itself ---


@life()
def keeps_its_servers_for_another_owner(life: Life) -> None:
    life.open(max_loaded=2)
    life.define(server("a"), server("b"))
    life.use("a", "b")
    life.arm()
    life.close("keep")
    life.open(max_loaded=2)
    life.use("b", "a")
    life.close("stop")


@life()
def keeps_a_load_for_another_owner(life: Life) -> None:
    life.open()
    life.define(server("a", "--loading", "0.4"))
    load = life.beside(lambda: life.start("a"), "run.launched")
    life.close("keep")
    with pytest.raises(ServiceClosedError):
        load.get()
    life.arm()
    life.open()
    life.use("a")


@life()
def is_opened_with_less_room_and_another_spec(life: Life) -> None:
    life.open(max_loaded=2)
    life.define(server("a"), server("b"))
    life.use("a", "b")
    life.close("keep")
    life.arm()
    life.open(max_loaded=1, models=[server("a"), server("b", "--child")])
    life.use("b")


@life()
def archives(life: Life) -> None:
    life.open()
    life.define(server("a"))
    life.start("a")
    life.arm()
    life.archive()
    life.pin("a")
    life.archive()


@life(note_s=0.05)
def notes_usage(life: Life) -> None:
    life.open()
    life.define(server("a"))
    life.arm()
    life.use("a")
    life.seen.wait("usage.noted")
