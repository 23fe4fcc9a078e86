"""A request that is left takes nothing along: no thread of its own, no connection of another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import huggingface_hub

from hub.making import REPO, WEIGHTS, Fetching
from moorage.hub import wire
from moorage.hub.wire import Exchange, Wire
from support.hub import Fault, serving
from support.services import LIMIT_S, settle


def test_the_thread_of_an_answer_that_is_left_with_all_it_had_room_for_ends(
    fetching: Fetching,
) -> None:
    pieces = wire._AHEAD  # with the answer before them, one more than there is room for

    @contextlib.contextmanager
    def begin(_extensions: dict[str, Any]) -> Iterator[httpx2.Response]:
        request = httpx2.Request("GET", "http://hub")
        yield httpx2.Response(200, content=iter([b"x"] * pieces), request=request)

    before = set(threading.enumerate())
    with Exchange(begin, fetching.access, fetching.cancelled) as exchange:
        (reader,) = set(threading.enumerate()) - before
        settle(lambda: exchange._came.qsize() == pieces)

    reader.join(LIMIT_S)
    assert not reader.is_alive()


def test_a_request_that_is_left_on_its_way_elsewhere_ends_no_other(fetching: Fetching) -> None:
    """Behind a redirect, the connection to the hub is free again, and another one's by then."""
    hub = fetching.hub
    url = f"{hub.endpoint}/{REPO}/resolve/main/model.gguf"
    fetching.set(proxy_loopback=True, answer_timeout_s=20.0, stall_timeout_s=20.0)
    hubs = Wire(fetching.access)
    with serving() as store:
        store.repos = hub.repos
        huggingface_hub.get_session().get(url.replace(hub.endpoint, store.endpoint)).read()
        store.faults["get"], hub.store = Fault(silent=True, times=1), store
        first = hubs.get(url, False, {}, fetching.cancelled)
        store.wait_stalled()
        hub.faults["get"], hub.store = Fault(stall_after=10, times=1), None
        with hubs.get(url, False, {}, fetching.cancelled) as second:
            second.answer()
            hub.wait_stalled()
            with first:
                pass
            hub.go.set()

            assert b"".join(second.pieces()) == WEIGHTS
        store.go.set()
        huggingface_hub.close_session()
