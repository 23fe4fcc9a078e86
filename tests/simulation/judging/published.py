"""The state that the service publishes must be what its rows add up to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulation.judging.book import Book


def differences(book: Book, published: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the published state is not the judge's own account of the same rows."""
    for name, mine, theirs in _pairs(book, published):
        if mine != theirs:
            yield f"published {name} {theirs!r}, but the rows say {mine!r}"


def _pairs(book: Book, state: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    yield "seq", book.seq, state["seq"]
    yield "order of use", book.lru, list(state["lru"])
    yield "queue", book.queue, list(state["queue"])
    yield "free ports", list(book.free), list(state["free"])
    yield "held ports", sorted(book.held.items()), sorted(map(tuple, state["held"]))
    yield "names", book.names, dict(state["names"])
    yield (
        "limits",
        (book.open, book.max_loaded, book.memory_limit, book.min_residency_s, book.next_run),
        tuple(
            state[key]
            for key in ("open", "max_loaded", "memory_limit", "min_residency_s", "next_run")
        ),
    )
    yield (
        "runs",
        [
            (r.run, r.model, r.stage, r.ports, r.room_bytes, r.pid, r.nonce, r.exited, r.swept)
            for r in book.runs.values()
        ],
        [
            (
                *(r["run"], r["model"], str(r["stage"]), tuple(r["ports"]), r["room_bytes"]),
                *(r["pid"], r["nonce"], r["exited"], r["swept"]),
            )
            for r in state["runs"]
        ],
    )
    yield (
        "reasons",
        {r.run: r.reason for r in book.runs.values()},
        {r["run"]: r["reason"] for r in state["runs"]},
    )
    yield (
        "models",
        [(m.name, m.status, m.pinned, m.attempts, m.until, m.runs) for m in book.models.values()],
        [
            (m["name"], m["status"], m["pinned"], m["attempts"], m["until"], _runs(m))
            for m in state["models"]
        ],
    )


def _runs(model: Mapping[str, Any]) -> list[int]:
    return [run for run in (model["run"], model["next_run"]) if run is not None]
