"""`moorage replay`: models, ports, order, queue and pins as they were at any point."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from moorage.cli import past, ps, source, values
from moorage.cli.console import Console, harmless
from moorage.core.draft import seconds_between
from moorage.core.events import Entry
from moorage.core.state import State
from moorage.status import service_status


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the state at one point, and how far that is from the log's end."""
    with source.reading(options.state) as reader:
        seq = reader.head if options.at is None else past.point(reader, options.at)
        state = source.state_at(reader, seq)
        following, head = reader.entry(seq + 1), reader.head
        status = service_status(state, fetching=ps.fetches(reader, state))
    if console.as_json:
        service, *models = ps.objects(state, status)
        next_at = following.at if following is not None else None
        console.object(service | {"head": head, "next_at": next_at})
        for model in models:
            console.object(model)
        return 0
    ps.print_status(console, state, status)
    for title, text in _facts(state, following, head):
        console.line(f"{title:<8}{text}")
    return 0


def _facts(state: State, following: Entry | None, head: int) -> Iterator[tuple[str, str]]:
    yield "pinned", ", ".join(m.name for m in state.models.values() if m.pinned) or "none"
    if not state.seq:
        yield "at", f"before the first of {head} events"
        return
    owner = harmless(state.owner) or "none"
    yield "owner", owner if state.open else f"none any more (last {owner})"
    yield (
        "at",
        f"event {state.seq} of {head}, {values.moment(state.at, digits=6)}" + ps.ago(state.at),
    )
    if following is None:
        yield "next", "none: this is what the log says last"
    else:
        passed = values.seconds(seconds_between(state.at, following.at))
        yield "next", f"event {following.seq} ({following.event.kind}), {passed} later"
