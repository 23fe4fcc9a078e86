"""A fetch that is cancelled ends at once, whatever the other side is doing, and its socket too."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from hub.making import WEIGHTS, Fetching
from moorage.protocols import FetchCancelledError, Progress
from support.hub import Fault
from support.services import Outcome, settle

AT_ONCE_S = 5.0  # some hundredths; more when others use the processors too
PATIENT = {"answer_timeout_s": 30.0, "stall_timeout_s": 30.0}


def cancelled_s(fetching: Fetching, fetch: Outcome) -> float:
    """Cancel, and return how long it took to end."""
    began = time.monotonic()
    fetching.cancelled.set()
    with pytest.raises(FetchCancelledError):
        fetch.get()
    return time.monotonic() - began


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "moorage-hub"]


@pytest.mark.parametrize("by_session", [False, True], ids=["direct", "by huggingface_hub's client"])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("list", Fault(silent=True)),
        ("list", Fault(stall_after=10)),
        ("list", Fault(trickle=True)),
        ("get", Fault(silent=True)),
        ("get", Fault(stall_after=0)),
        ("get", Fault(stall_after=5000)),
        ("get", Fault(trickle=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else _name(value),
)
def test_a_hub_that_stands_still_is_left_at_once_and_its_connection_closed(
    fetching: Fetching, kind: str, fault: Fault, by_session: bool
) -> None:
    fetching.set(**PATIENT, proxy_loopback=by_session)
    fetching.hub.faults[kind] = fault
    fetch = fetching.begin()
    fetching.hub.wait_stalled()

    took = cancelled_s(fetching, fetch)

    fetching.hub.wait_moving()  # it has seen that whoever asked has gone
    settle(lambda: not readers())
    assert took < AT_ONCE_S
    assert fetching.shown() == []


def _name(fault: Fault) -> str:
    return "silent" if fault.silent else "trickle" if fault.trickle else f"at {fault.stall_after}"


def test_a_host_that_does_not_even_accept_is_left_at_once(fetching: Fetching) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as more:
            more.setblocking(False)
            more.connect_ex(address)
            fetching.set(endpoint=f"http://127.0.0.1:{address[1]}", **PATIENT)
            fetch = fetching.begin()
            settle(lambda: bool(readers()))

            took = cancelled_s(fetching, fetch)
    settle(lambda: not readers())  # the kernel tells of a refusal when it asks again

    assert took < AT_ONCE_S


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("list", Fault(status=503)),
        ("list", Fault(status=429, headers={"Retry-After": "29"})),
        ("get", Fault(status=503)),
        ("get", Fault(status=429, headers={"Retry-After": "29"})),
        ("get", Fault(reset_after=0)),
    ],
)
def test_a_wait_before_the_next_attempt_is_left_at_once(
    fetching: Fetching, kind: str, fault: Fault
) -> None:
    fetching.set(retry_wait_s=8.0, answer_timeout_s=30.0)
    fetching.hub.faults[kind] = fault
    fetch = fetching.begin()
    settle(lambda: any("asked again" in step.waiting for step in fetching.progress))

    took = cancelled_s(fetching, fetch)

    assert took < AT_ONCE_S


def test_cancelled_before_it_began_nothing_is_asked(fetching: Fetching) -> None:
    fetching.cancelled.set()

    with pytest.raises(FetchCancelledError):
        fetching()

    assert fetching.hub.asked.total() == 0


def test_cancelled_while_bytes_flow_it_ends_and_shows_nothing(fetching: Fetching) -> None:
    fetching.when_told = lambda _step: fetching.cancelled.set()

    with pytest.raises(FetchCancelledError):
        fetching()

    assert fetching.shown() == []


def test_a_look_at_what_is_here_already_is_left_at_once(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.hub.part._READ", 1)
    fetching.set(retries=0)
    fetching.hub.faults["get"] = Fault(short_by=len(WEIGHTS) - 5000, times=1)
    fetching.failure()

    def cancel(step: Progress) -> None:
        if "is here already" in step.waiting:
            fetching.cancelled.set()

    fetching.when_told = cancel

    with pytest.raises(FetchCancelledError):
        fetching()
    assert fetching.hub.asked["get"] == 1
    assert fetching.wait_part(5000)
