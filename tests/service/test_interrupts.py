"""Ctrl-C at any instruction, lost leases, and signal handlers that call the service.

An interrupt can come between any two instructions, so it is raised before every one of them in
turn, in our code and in what it calls. That needs thousands of loads: servers are fakes here, but
for the storm of real signals at the end.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import moorage
from moorage import Lease, ModelService, ModelSpec, WaitTimeoutError
from moorage.actors.apart import apart
from moorage.protocols import Alarm
from moorage.testing import FakeProcesses, fake_parts
from support.services import LIMIT_S, Outcome, ports, server, settle, state_of

OURS = {__file__, contextlib.__file__}
MANY = 1_000_000
TURNS = 600
"""Of a storm, at least; a sixth of them has to be struck."""


class Interrupt:
    """Raises KeyboardInterrupt before the instruction of this number.

    Raising ends the tracing, so a second one comes `again` calls or returns later. With `within`
    only instructions of files in that folder count.
    """

    def __init__(self, at: int, again: int | None = None, within: str = "") -> None:
        self._left = at
        self._again = again
        self._within = within
        self.struck = 0

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()  # a debugger's, or that of who measures coverage
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "call":
            if self._ours(frame) or not frame.f_code.co_filename.startswith(self._within):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self._left -= 1
            if self._left < 0:
                self._strike()
        return self._trace

    def _strike(self) -> None:
        self.struck += 1
        if self._again is not None:
            sys.setprofile(self._profile)
        raise KeyboardInterrupt

    def _profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        if self._again is None or self._ours(frame):
            return
        self._again -= 1
        if self._again < 0:
            self._again = None
            self.struck += 1
            raise KeyboardInterrupt

    @staticmethod
    def _ours(frame: FrameType) -> bool:
        code = frame.f_code
        return code.co_filename in OURS and code.co_name != "work"


def interrupted(
    work: Callable[[], object], at: int, again: int | None = None, within: str = ""
) -> int:
    """Do the work and strike; return how often that came to pass."""
    with Interrupt(at, again, within) as interrupt, contextlib.suppress(KeyboardInterrupt):
        work()
    return interrupt.struck


@pytest.fixture
def unraised() -> Iterator[list[Any]]:
    """Take what is raised in finalisers, where nobody can catch it: only interrupts may be."""
    seen: list[Any] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda one: seen.append(one.exc_type)  # more would keep it alive
    yield seen
    sys.unraisablehook = before

    assert set(seen) <= {KeyboardInterrupt}


@pytest.fixture
def fake(opened: Callable[..., ModelService]) -> ModelService:
    spec = ModelSpec(name="m", backend="command", args=("server", "{port}"))
    return opened(spec, parts=fake_parts())


def nothing_held(service: ModelService) -> None:
    """Wait until nobody waits and nothing is leased: sooner than a deadline would end it."""

    def so() -> bool:
        return service.status().waiting == 0 and not any(m.leases for m in service.status().models)

    try:
        settle(so)
    except AssertionError:
        desk, status = service._runtime.desk, service.status()
        open_ = {number: known() for number, known in desk._open.copy().items()}
        held = {m.name: (m.state, m.leases) for m in status.models}
        pytest.fail(f"waiting {status.waiting}: {open_}; held {held}; seq {status.seq}")


def test_an_interrupt_at_any_instruction_of_a_warm_lease_leaks_nothing(
    fake: ModelService, unraised: list[Any]
) -> None:
    fake.start("m")

    def work() -> None:
        with fake.lease("m") as lease:
            assert lease.run == 1
        lease = fake.lease("m")
        lease.release()
        del lease

    for at in itertools.count():
        struck = interrupted(work, at)

        assert fake.model("m").leases == 0, at
        assert unraised == [], "who was interrupted has to hear of it"
        if not struck:
            break
    assert at > 100


def test_an_interrupt_at_any_instruction_of_a_lost_lease_leaks_nothing(
    fake: ModelService, unraised: list[Any]
) -> None:
    fake.start("m")

    def work() -> None:
        lease = fake.lease("m")
        del lease

    for at in itertools.count():
        struck = interrupted(work, at)

        assert fake.model("m").leases == 0, at
        if not struck:
            break
    assert at > 50
    assert unraised


def test_an_interrupt_at_any_instruction_of_a_cold_lease_leaks_and_hangs_nothing(
    fake: ModelService, unraised: list[Any]
) -> None:
    def work() -> None:
        with fake.lease("m"):
            pass

    for at in itertools.count():
        struck = interrupted(work, at)
        nothing_held(fake)
        assert unraised == [], at
        Outcome(lambda: fake.stop("m")).get()
        if not struck:
            break

    assert at > 300
    assert fake.status().ports_held == {}


def test_two_interrupts_in_a_row_leak_and_hang_nothing(
    fake: ModelService, unraised: list[Any]
) -> None:
    chance = random.Random()
    twice = 0

    def work() -> None:
        try:  # a deadline ends what both interrupts together left waiting
            with fake.lease("m", timeout_s=0.5):
                pass
        except WaitTimeoutError:
            pass  # a busy machine was slower

    for _ in range(1000):
        twice += interrupted(work, chance.randrange(400), chance.randrange(50)) == 2
        nothing_held(fake)
        Outcome(lambda: fake.stop("m")).get()

    assert twice > 100


def test_an_interrupt_at_any_instruction_of_a_joint_lease_leaks_and_hangs_nothing(
    fake: ModelService, unraised: list[Any]
) -> None:
    fake.set_limits(max_loaded=2)
    fake.define(ModelSpec(name="n", backend="command", args=("server", "{port}")))
    fake.start("m")
    fake.start("n")

    def work() -> None:
        with fake.lease_all("m", "n") as leases:
            assert len(leases) == 2
        del leases

    for at in itertools.count():
        struck = interrupted(work, at)
        nothing_held(fake)
        assert unraised == [], at
        if not struck:
            break

    assert at > 300


@pytest.mark.parametrize("call", ["start", "stop", "pin", "reset", "remove"])
def test_an_interrupt_at_any_instruction_of_other_calls_leaves_a_service_that_works(
    call: str, fake: ModelService
) -> None:
    spec = ModelSpec(name="m", backend="command", args=("server", "{port}"))

    for at in itertools.count(random.randrange(5), 5):  # these cost more, and share most of it
        struck = interrupted(lambda: getattr(fake, call)("m"), at)
        nothing_held(fake)
        Outcome(lambda: fake.stop("m")).get() if call != "remove" else None
        fake.define(spec)
        if not struck:
            break

    assert at > 100
    assert fake.start("m").state == "ready"


PACKAGE = str(Path(moorage.__file__).parent)


def test_an_interrupt_at_any_instruction_of_a_close_leaves_it_to_the_next_one(
    folder: Path,
) -> None:
    for at in itertools.count(random.randrange(5), 5):  # each costs an open, too
        service = ModelService.open(folder, ports=ports(), parts=fake_parts())
        struck = interrupted(lambda: service.close(drain_s=0), at, within=PACKAGE)  # noqa: B023
        Outcome(service.close).get()
        if not struck:
            break

    assert at > 100


def test_an_interrupt_at_any_instruction_of_work_that_is_done_apart_is_heard(
    unraised: list[Any],
) -> None:
    done: list[int] = []

    def work() -> None:
        apart("one", lambda _, mine=at: done.append(mine))

    for at in itertools.count():
        heard = False
        with Interrupt(at) as interrupt:
            try:
                work()
            except KeyboardInterrupt:
                heard = True

        assert heard == bool(interrupt.struck), at
        assert unraised == [], at
        if not heard:
            break
    assert at > 50
    settle(lambda: not any(thread.name == "moorage-one" for thread in threading.enumerate()))
    assert sorted(done) == sorted(set(done)), "done twice"


def test_an_interrupt_at_any_instruction_of_reading_events_is_heard(
    fake: ModelService, unraised: list[Any]
) -> None:
    def work() -> None:
        for entry in fake.events():
            assert entry.seq == 1
            break

    for at in itertools.count():
        heard = False
        with Interrupt(at) as interrupt:
            try:
                work()
            except KeyboardInterrupt:
                heard = True

        assert heard == bool(interrupt.struck), at
        assert unraised == [], at
        if not heard:
            break
    assert at > 50
    settle(lambda: not any(thread.name == "moorage-events" for thread in threading.enumerate()))


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_an_interrupted_close_goes_on_by_itself(folder: Path) -> None:
    processes = FakeProcesses()
    service = ModelService.open(folder, ports=ports(), parts=fake_parts(processes=processes))
    service.define(ModelSpec(name="m", backend="fake"))
    service.start("m")
    stop = processes.hold_stop("m")

    def strike() -> None:
        stop.wait_reached()
        interrupt_main()

    striking = Outcome(strike)
    with pytest.raises(KeyboardInterrupt):
        service.close()
    striking.get()
    stop.release()

    ModelService.open(folder, ports=ports(), parts=fake_parts(), wait_s=LIMIT_S).close()
    assert processes.alive() == ()


@pytest.mark.parametrize(
    "interrupt",
    [interrupt_main, _thread.interrupt_main],  # the lock that is waited for hears of the first
    ids=["while it waits", "right before it waits"],
)
def test_an_interrupted_open_waits_for_no_other_owner(
    interrupt: Callable[[], None], folder: Path
) -> None:
    def opening() -> bool:
        return any(thread.name == "moorage-open" for thread in threading.enumerate())

    def strike() -> None:
        settle(opening)
        interrupt()

    with ModelService.open(folder, ports=ports(), parts=fake_parts()):
        striking = Outcome(strike)
        with pytest.raises(KeyboardInterrupt):
            ModelService.open(folder, ports=ports(), parts=fake_parts(), wait_s=10 * LIMIT_S)
        striking.get()
        settle(lambda: not opening())


def test_an_interrupted_open_is_undone(folder: Path) -> None:
    parts = fake_parts()
    new_alarm = parts.new_alarm

    def struck_meanwhile(wake: Callable[[], None]) -> Alarm:
        interrupt_main()
        return new_alarm(wake)

    parts.new_alarm = struck_meanwhile
    with pytest.raises(KeyboardInterrupt):
        ModelService.open(folder, ports=ports(), parts=parts)

    ModelService.open(folder, ports=ports(), parts=fake_parts(), wait_s=LIMIT_S).close()


def test_a_storm_of_real_signals_leaks_and_hangs_nothing(
    opened: Callable[..., ModelService], unraised: list[Any]
) -> None:
    service = opened(server("a"), server("b"), server("c"), max_loaded=2)
    chance = random.Random()
    caught = 0

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    def work(name: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))
        for _ in range(100):
            with service.lease(name):
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for turn in range(20 * TURNS):
            if turn >= TURNS and caught > TURNS // 6:
                break  # how many strike in time is up to the machine
            try:
                work("abc"[turn // 50 % 3])
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.signal(signal.SIGALRM, before)

    gc.collect()
    nothing_held(service)
    assert caught > TURNS // 6
    for name in "abc":
        Outcome(functools.partial(service.lease, name, LIMIT_S)).get().release()


# --- lost leases ----------------------------------------------------------------------------------


def test_a_lease_that_is_lost_is_given_back(fake: ModelService) -> None:
    lease: Lease | None = fake.lease("m")
    held = fake.model("m").leases
    del lease

    assert (held, fake.model("m").leases) == (1, 0)


def test_a_lease_that_is_lost_in_a_cycle_is_given_back_by_the_collector(
    fake: ModelService,
) -> None:
    class Keeper:
        pass

    keeper = Keeper()
    keeper.itself, keeper.lease = keeper, fake.lease("m")  # type: ignore[attr-defined]
    del keeper
    gc.collect()

    assert fake.model("m").leases == 0


def test_a_lost_lease_lets_a_waiter_have_its_room(opened: Callable[..., ModelService]) -> None:
    service = opened(server("a"), server("b"))
    lease: Lease | None = service.lease("a")
    waiter = Outcome(lambda: service.lease("b"))
    settle(lambda: service.model("a").state == "draining")
    del lease

    assert waiter.get().model == "b"
    waiter.value.release()


# --- signal handlers ------------------------------------------------------------------------------


@contextlib.contextmanager
def handling(work: Callable[[], object]) -> Iterator[None]:
    """Do the work in a signal handler of the main thread."""
    before = signal.signal(signal.SIGUSR1, lambda *_: work())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def strike_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def test_a_signal_handler_may_call_the_service_while_its_thread_waits_for_a_lease(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("slow", "--loading", "0.3"), server("b"), max_loaded=2)
    seen: list[Any] = []

    def work() -> None:
        seen.append(service.model("slow").state)
        with service.lease("b") as lease:
            seen.append(lease.model)
        service.stop("b")
        seen.append(service.model("b").state)

    def when_loading() -> None:
        settle(lambda: service.model("slow").state == "loading")
        strike_main()

    with handling(work):
        striker = Outcome(when_loading)
        with service.lease("slow") as lease:
            seen.append(lease.model)
        striker.get()

    assert seen == ["loading", "b", "stopped", "slow"]


def test_a_signal_handler_may_stop_what_its_thread_waits_for(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("slow", "--never-bind"))

    def when_loading() -> None:
        settle(lambda: service.model("slow").state == "loading")
        strike_main()

    with handling(lambda: service.stop("slow")):
        striker = Outcome(when_loading)
        with pytest.raises(Exception, match="cancelled"):
            service.lease("slow")
        striker.get()

    assert service.status().ports_held == {}


def test_a_signal_handler_may_use_the_service_at_any_instruction_of_a_lease(
    fake: ModelService,
) -> None:
    fake.start("m")
    seen: set[Any] = set()

    class Handler(Interrupt):
        def _strike(self) -> None:
            self._left = MANY
            self.struck += 1
            sys.settrace(None)
            with fake.lease("m", timeout_s=LIMIT_S) as lease:
                seen.add(lease.run)
            seen.add(fake.model("m").state)

    for at in itertools.count():
        with Handler(at) as handler:
            fake.lease("m", timeout_s=LIMIT_S).release()
            sys.settrace(None)
        if not handler.struck:
            break

    assert seen == {1, "ready"}
    assert state_of(fake).models["m"].run == 1
    nothing_held(fake)
