"""The asyncio twins: cancelled at any await point they leak nothing, and a task is an owner."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from moorage import (
    ConfigurationError,
    Entry,
    JointLease,
    Lease,
    LoadCancelledError,
    ModelService,
    ModelSpec,
    QueueFullError,
    ServiceClosedError,
    ServiceFailedError,
    UnknownModelError,
    WaitTimeoutError,
    WouldDeadlockError,
)
from moorage.protocols import FoundProcess
from moorage.testing import FakeProcesses, Hold, fake_parts
from support.services import LIMIT_S, Outcome, Seen, server, settle, state_of


def spec(name: str, **more: Any) -> ModelSpec:
    return ModelSpec(name=name, backend="command", args=("server", "{port}"), **more)


@pytest.fixture
def fake(opened: Callable[..., ModelService]) -> ModelService:
    return opened(spec("m"), spec("n", aliases=("alias",)), parts=fake_parts(), max_loaded=2)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; bounded."""

    async def bounded() -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await work

    return asyncio.run(bounded())


def nothing_held(service: ModelService) -> None:
    """Wait until nobody waits and nothing is leased: sooner than a deadline would end it."""

    def so() -> bool:
        return service.status().waiting == 0 and not any(m.leases for m in service.status().models)

    settle(so)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def asked(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Return the task of a request, which has asked and waits."""
    task = asyncio.create_task(work)
    await turns(1)
    return task


# --- cancelling -----------------------------------------------------------------------------------


async def _leased(service: ModelService, name: str) -> int:
    async with service.alease(name, timeout_s=LIMIT_S) as lease:
        await asyncio.sleep(0)
        return lease.run


@pytest.mark.parametrize("warm", [False, True])
def test_a_lease_cancelled_after_any_number_of_turns_leaks_nothing(
    warm: bool, fake: ModelService
) -> None:
    async def work() -> None:
        for count in itertools.chain(range(12), range(12, 200, 10)):
            if warm:
                await fake.astart("m")
            task = asyncio.create_task(_leased(fake, "m"))
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            nothing_held(fake)
            await fake.astop("m")

    run(work())


def test_a_lease_cancelled_exactly_when_it_is_granted_leaks_nothing(fake: ModelService) -> None:
    granted = threading.Event()

    async def work() -> None:
        for _ in range(100):
            granted.clear()
            subscribed = fake.subscribe(_set_when("run.ready", granted))
            task = await asked(_leased(fake, "m"))
            assert granted.wait(LIMIT_S)  # the loop stands still meanwhile: the grant comes first
            settle(lambda: fake.model("m").leases == 1)
            task.cancel()
            await asyncio.wait([task])

            assert task.cancelled()
            nothing_held(fake)
            subscribed.close()
            await fake.astop("m")

    run(work())


def _set_when(kind: str, event: threading.Event) -> Callable[[Any], None]:
    def callback(entry: Any) -> None:
        if entry.event.kind == kind:
            event.set()

    return callback


CALLS: dict[str, Callable[[ModelService], Awaitable[Any]]] = {
    "lease": lambda s: s.alease("m"),
    "lease all": lambda s: s.alease_all("m", "n"),
    "start": lambda s: s.astart("m"),
    "stop": lambda s: s.astop("m"),
    "remove": lambda s: s.aremove("m"),
    "pin": lambda s: s.apin("m"),
    "limits": lambda s: s.aset_limits(max_loaded=3),
    "define": lambda s: s.adefine(spec("m")),
}


@pytest.mark.parametrize("call", CALLS)
def test_any_call_cancelled_after_any_number_of_turns_leaves_a_service_that_works(
    call: str, fake: ModelService
) -> None:
    async def work() -> None:
        for count in range(15):
            task = asyncio.ensure_future(CALLS[call](fake))
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and isinstance(task.result(), Lease | JointLease):
                task.result().release()
            del task
            nothing_held(fake)
            await fake.adefine(spec("m"))
            await fake.astop("m")

    run(work())
    assert fake.start("m").state == "ready"


def test_a_task_cancelled_in_a_queue_gives_up_its_place(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(spec("a"), spec("b"), spec("c"), parts=fake_parts(), max_loaded=1)
    seen = Seen(service)

    async def work() -> None:
        lease = await service.alease("a")
        second = await asked(_leased(service, "b"))
        third = await asked(_leased(service, "c"))
        seen.wait("run.queued", model="c")
        second.cancel()
        await asyncio.wait([second])
        seen.wait("run.abandoned", model="b")
        lease.release()
        await third

    run(work())
    assert [e.event.model for e in service.events() if e.event.kind == "run.ready"] == ["a", "c"]


def test_a_timeout_around_a_lease_leaks_nothing(fake: ModelService) -> None:
    async def work() -> None:
        for index in range(60):
            try:
                async with asyncio.timeout(index * 1e-4):
                    await _leased(fake, "m")
            except TimeoutError:
                pass
            nothing_held(fake)
            await fake.astop("m")

    run(work())


def test_wait_for_that_gives_up_leaks_nothing(fake: ModelService) -> None:
    async def work() -> None:
        for index in range(60):
            try:
                lease = await asyncio.wait_for(fake.alease("m"), index * 1e-4)
            except TimeoutError:
                pass
            else:
                lease.release()
            nothing_held(fake)
            await fake.astop("m")

    run(work())


def test_a_deadline_of_ones_own_says_what_it_waited_for(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--never-bind"))

    async def work() -> None:
        first = await asked(_leased(service, "m"))
        settle(lambda: service.model("m").state == "loading")
        began = time.monotonic()
        with pytest.raises(WaitTimeoutError, match="loading"):
            await service.alease("m", timeout_s=0.2)
        took_s = time.monotonic() - began
        first.cancel()

        assert took_s >= 0.2

    run(work())
    nothing_held(service)


# --- loops that end -------------------------------------------------------------------------------


def test_a_loop_that_ends_while_a_lease_is_awaited_leaks_nothing(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--never-bind"))
    seen = Seen(service)
    tasks: list[asyncio.Task[int]] = []

    async def work() -> None:
        tasks.append(await asked(_leased(service, "m")))
        seen.wait("run.launching")

    run(work())  # cancels what is left
    nothing_held(service)


@pytest.mark.filterwarnings("ignore")
def test_a_loop_that_is_closed_under_a_waiting_task_leaks_nothing(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--loading", "0.2"))
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(asked(_leased(service, "m")))
    loop.close()  # the task still waits, and never runs again
    settle(lambda: service.model("m").state == "ready")

    nothing_held(service)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the point
    del task
    gc.collect()


def test_a_lease_may_be_released_in_another_thread_and_loop(fake: ModelService) -> None:
    async def take() -> Lease:
        return await fake.alease("m")

    lease = run(take())
    held = fake.model("m").leases
    Outcome(lease.release).get()

    assert (held, fake.model("m").leases) == (1, 0)


# --- the twins ------------------------------------------------------------------------------------


def test_the_twins_do_what_the_blocking_calls_do(fake: ModelService) -> None:
    async def work() -> None:
        assert (await fake.astart("m")).state == "ready"
        async with fake.alease("alias") as lease:
            assert lease.model == "n"
        lease = await fake.alease("m")
        lease.release()
        async with fake.alease_all("m", "alias") as leases:
            assert [one.model for one in leases.values()] == ["m", "n"]
        await fake.apin("m")
        assert fake.model("m").pinned
        await fake.aunpin("m")
        await fake.aset_limits(max_loaded=3)
        assert fake.status().max_loaded == 3
        await fake.astop("m", hold=True)
        assert fake.model("m").state == "held"
        await fake.areset("m")
        assert fake.model("m").state == "stopped"
        await fake.adefine(spec("new"))
        await fake.aremove("new")
        for call in (fake.alease, fake.astart, fake.astop, fake.apin, fake.areset, fake.aremove):
            with pytest.raises(UnknownModelError):
                await call("new")
        await fake.aclose()
        with pytest.raises(ServiceClosedError):
            await fake.astart("m")

    run(work())


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 3, 4, 100])
def test_events_are_read_page_by_page_as_the_blocking_call_reads_them(
    opened: Callable[..., ModelService], monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr("moorage.aio.PAGE_ROWS", 2)
    service = opened(spec("m"), spec("n"))

    async def read() -> list[Entry]:
        return [entry async for entry in service.aevents(1, limit=limit)]

    with pytest.raises(ConfigurationError, match="after"):
        service.aevents(-1)  # at once, not with the first entry
    assert run(read()) == list(service.events(1, limit=limit))


def test_a_service_opens_and_closes_in_a_loop(opened: Any, folder: Any) -> None:
    async def work() -> None:
        async with await ModelService.aopen(folder, parts=fake_parts(), models=[spec("m")]) as one:
            (await one.alease("m")).release()
        with pytest.raises(ServiceClosedError):
            await one.astart("m")

    run(work())


class SlowToLook(FakeProcesses):
    """Takes its time to look for what an earlier owner left, which every opening does."""

    def __init__(self) -> None:
        super().__init__()
        self.look = Hold("looking")

    def find(self, log_id: str) -> Sequence[FoundProcess]:
        self.look.wait()
        return super().find(log_id)


def _opens() -> bool:
    return any(thread.name == "moorage-open" for thread in threading.enumerate())


@pytest.mark.parametrize("moment", ["asked", "opening", "opened"])
def test_an_open_that_is_cancelled_leaves_no_service(moment: str, folder: Any) -> None:
    processes = SlowToLook()

    async def work() -> None:
        task = await asked(ModelService.aopen(folder, parts=fake_parts(processes=processes)))
        if moment != "asked":
            processes.look.wait_reached()
        if moment == "opened":
            processes.look.release()
            settle(lambda: not _opens())  # the loop stands still, and has not heard of it
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()

    run(work())
    processes.look.release()
    ModelService.open(folder, wait_s=LIMIT_S).close()
    settle(lambda: not any(t.name.startswith("moorage-") for t in threading.enumerate()))


def test_a_lease_request_can_be_made_a_task_and_gathered(fake: ModelService) -> None:
    async def work() -> None:
        task = asyncio.create_task(fake.alease("m"))
        first = await task
        second, third = await asyncio.gather(fake.alease("m"), fake.alease("n"))
        async with asyncio.TaskGroup() as group:
            fourth = group.create_task(fake.alease("m"))
        for lease in (first, second, third, fourth.result()):
            lease.release()

    run(work())
    nothing_held(fake)


def test_a_hundred_tasks_share_a_few_models(opened: Callable[..., ModelService]) -> None:
    names = ("a", "b", "c")
    service = opened(*map(spec, names), parts=fake_parts(), max_loaded=2)

    async def work() -> list[int]:
        return await asyncio.gather(*(_leased(service, names[index % 3]) for index in range(100)))

    runs = run(work())

    assert len(runs) == 100
    nothing_held(service)
    assert len([e for e in service.events() if e.event.kind == "run.ready"]) < 30


def test_more_waiters_than_allowed_are_refused_and_forgotten(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--loading", "0.2"), max_waiting=5)

    async def work() -> list[Any]:
        waits = (_leased(service, "m") for _ in range(20))
        return await asyncio.gather(*waits, return_exceptions=True)

    answers = run(work())

    assert sum(answer == 1 for answer in answers) == 5
    assert sum(isinstance(answer, QueueFullError) for answer in answers) == 15
    nothing_held(service)


def test_two_tasks_in_one_thread_are_two_owners(opened: Callable[..., ModelService]) -> None:
    service = opened(spec("a"), spec("b"), parts=fake_parts(), max_loaded=1)
    seen = Seen(service)

    async def work() -> None:
        lease = await service.alease("a")
        with pytest.raises(WouldDeadlockError):  # this task holds what it would need
            await service.alease("b", timeout_s=LIMIT_S)
        other = await asked(_leased(service, "b"))
        seen.wait("run.evicting", model="a")
        again = await service.alease("a", timeout_s=LIMIT_S)  # nested: the draining run once more
        assert again.run == lease.run
        lease.release()
        again.release()
        await other

    run(work())


def test_the_loop_goes_on_turning_while_a_lease_is_awaited(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--loading", "0.2"))

    async def work() -> int:
        task = asyncio.create_task(_leased(service, "m"))
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        await task
        return count

    assert run(work()) > 100


def test_closing_and_failing_answer_tasks_that_wait(
    opened: Callable[..., ModelService], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = opened(server("m", "--never-bind"))

    async def work(end: Callable[[], Any]) -> Any:
        task = await asked(_leased(service, "m"))
        settle(lambda: service.model("m").state == "loading")
        await asyncio.to_thread(end)
        await asyncio.wait([task])
        return task.exception()

    assert isinstance(run(work(lambda: service.stop("m"))), LoadCancelledError)
    assert isinstance(run(work(service.close)), ServiceClosedError)
    assert state_of(service).runs == {}


def test_a_dead_registry_answers_tasks_that_wait(
    opened: Callable[..., ModelService], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = opened(spec("m"), spec("n"), parts=fake_parts(), max_loaded=1)
    seen = Seen(service)
    registry = service._runtime.registry

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    async def work() -> Any:
        lease = await service.alease("m")
        task = await asked(_leased(service, "n"))
        seen.wait("run.evicting", model="m")
        monkeypatch.setattr(registry, "settle", fail)
        with pytest.raises(ServiceFailedError):
            await service.apin("m")
        await asyncio.wait([task])
        lease.release()
        return task.exception()

    assert isinstance(run(work()), ServiceFailedError)
