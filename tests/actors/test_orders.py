"""What comes in an unlucky order: after the end, too late, twice, or for nobody any more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from actors.bench import WAIT_S, Bench
from actors.conftest import Open
from moorage.actors import messages as msg
from moorage.actors.tickets import Ticket


@contextlib.contextmanager
def frozen(b: Bench) -> Iterator[None]:
    """Keep the registry from its inbox: what is told meanwhile is there in that order."""
    reached, go = threading.Event(), threading.Event()
    ticket: Ticket[None] = Ticket("freeze")

    def wait() -> None:
        reached.set()
        go.wait(WAIT_S)

    ticket.when_answered(wait)  # called by who answers
    b.service._runtime.ask(msg.SetLimits(ticket, None, ..., None))
    assert reached.wait(WAIT_S)
    try:
        yield
    finally:
        go.set()


# --- after the end ---


def test_nothing_follows_the_closing_in_the_log_or_happens_to_what_was_kept(bench: Open) -> None:
    b = bench()
    b.define("a", ttl_s=5.0)
    b.define("b", restart="always")
    b.service.start("a")
    b.service.start("b")
    runtime = b.service._runtime
    with frozen(b):
        b.service._ask_to_close("keep", drain_s=0.0)
        b.clock.advance(120)  # both the idle time and the interval of notes are over
        runtime._post(msg.Wake())
        runtime._post(msg.ActorDied("a", "too late"))
    b.service.close()

    assert [e.kind for e in b.events()][-1] == "service.closed"
    assert [server.model for server in b.processes.alive()] == ["a", "b"]
