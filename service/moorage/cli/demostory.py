"""What the demo does, step by step, and what it says about it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from moorage.backends.llama import LlamaCpp
from moorage.cli import values
from moorage.cli.console import Console, harmless
from moorage.cli.events import to_data
from moorage.core import events as ev
from moorage.core.events import Entry, Event
from moorage.errors import LoadError, MoorageError
from moorage.service import ModelService
from moorage.spec import ModelSpec

MODELS: Final = ("heron", "egret", "plover")
FAILING: Final = "stork"
ROOM: Final = 2

_MISSING: Final = "/nowhere/llama-server"
_QUESTION: Final = "Name three birds that live by the water."
_TOKENS: Final = 24
_START_S: Final = 600.0
_TINY_START_S: Final = 60.0
_ANSWER_S: Final = 300.0
_TEXT_CHARS: Final = 60

# A proxy named in the environment would be asked for 127.0.0.1 too.
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class CompletionError(MoorageError):
    """A server that is ready gave no answer."""


class Story:
    """Tells one demo. `after` is the last event there was before it."""

    def __init__(
        self, service: ModelService, console: Console, model: Path, *, tiny: bool, after: int
    ) -> None:
        self._service = service
        self._console = console
        self._model = model
        self._tiny = tiny
        self._start_s = _TINY_START_S if tiny else _START_S
        self._after = after
        self._problems: list[str] = []

    def tell(self) -> tuple[str, ...]:
        """Do every step; return what was not as it should be."""
        self._service.define(*(self._spec(name) for name in MODELS))
        self._title("1  Two models fill the room")
        for name in MODELS[:ROOM]:
            self._ask(name)
        self._title("2  A third needs room: the one not used for the longest time goes")
        self._ask(MODELS[-1])
        self._explain_eviction()
        self._title("3  A start that fails when its port is reserved and nothing is spawned yet")
        self._fail()
        self._title("4  The ports now")
        self._show_ports()
        self._title("5  Close: every server is stopped, then its port released")
        self._close()
        return tuple(self._problems)

    def _spec(self, name: str, executable: str | None = None) -> ModelSpec:
        few: dict[str, Any] = {"threads": 1} if self._tiny else {}
        return ModelSpec(
            name=name,
            backend=LlamaCpp.name,
            path=str(self._model),
            executable=executable,
            settings={"ctx_size": 512, "parallel": 1} | few,
        )

    def _title(self, text: str) -> None:
        self._console.line()
        self._console.line(self._console.paint(text, "bold"))
        self._console.flush()

    def _say(self, subject: str, text: str) -> None:
        self._console.progress("")
        self._console.line(f"   {subject:<7} {text}")

    # --- 1 and 2 ---

    def _ask(self, name: str) -> None:
        """Lease a model, which starts it, and have it complete a text over HTTP."""
        self._console.progress(f"   {name} starts ...")
        began = time.perf_counter()
        with self._service.lease(name, timeout_s=self._start_s) as lease:
            ready = time.perf_counter()
            self._console.progress(f"   {name} answers ...")
            text = _complete(name, lease.url)
            answered = time.perf_counter()
            pid = self._service.model(name).pid
        took = values.seconds(ready - began)
        self._say(name, f"leased after {took}: run {lease.run}, {lease.url}, pid {pid}")
        shown = harmless(text[:_TEXT_CHARS])
        self._say("", f"answered in {values.seconds(answered - ready)}: {shown}")
        facts = {"model": name, "run": lease.run, "url": lease.url, "pid": pid, "text": text}
        times = {"leased_s": round(ready - began, 6), "answered_s": round(answered - ready, 6)}
        self._console.object({"object": "completion", **facts, **times})

    def _explain_eviction(self) -> None:
        entries = self._entries()
        chosen = _last(entries, ev.RunEvicting)
        if chosen is None or not isinstance(chosen.event, ev.RunEvicting):
            self._problems.append("no model was evicted for the third one")
            return
        event = chosen.event
        names = _names(self._service.events())
        order = ", ".join(names[run] for run in event.order)
        self._say("why", f"event {chosen.seq}: {event.model} is evicted for {event.for_model},")
        self._say("", f"reason {event.reason}; used in this order: {order}; {event.leases} leases")
        self._say_exchange(entries, chosen)
        self._console.object({"object": "eviction"} | to_data(chosen))

    def _say_exchange(self, entries: Iterable[Entry], chosen: Entry) -> None:
        later = [entry for entry in entries if entry.seq > chosen.seq]
        released = _first(later, ev.RunReleased)
        reserved = _first(later, ev.RunReserved)
        if released is None or reserved is None or released.seq > reserved.seq:
            self._problems.append("room was given away before it was free")
            return
        self._say("then", f"event {released.seq} releases port {_port(released)},")
        self._say("", f"event {reserved.seq} reserves port {_port(reserved)} for the newcomer")

    # --- 3 ---

    def _fail(self) -> None:
        """Start a model whose executable is missing, with room for it, so that nobody goes."""
        self._service.set_limits(max_loaded=ROOM + 1)
        self._service.define(self._spec(FAILING, executable=_MISSING))
        before = len(self._service.status().ports_held)
        error = self._failure()
        self._service.set_limits(max_loaded=ROOM)  # and with it, the failure is on the disk
        after = len(self._service.status().ports_held)
        if error is None:
            self._problems.append(f"{FAILING} started without an executable")
            return
        self._say(FAILING, f"{type(error).__name__} at {error.stage}: {harmless(error.problem)}")
        self._say_balance(error.run, before, after)
        facts = {"model": FAILING, "run": error.run, "stage": error.stage, "error": error.problem}
        self._console.object(
            {"object": "failed_start", **facts, "ports_before": before, "ports_after": after}
        )

    def _failure(self) -> LoadError | None:
        try:
            self._service.start(FAILING, timeout_s=self._start_s)
        except LoadError as error:
            return error
        return None

    def _say_balance(self, run: int, before: int, after: int) -> None:
        own = [entry for entry in self._entries() if getattr(entry.event, "run", None) == run]
        reserved, released = _first(own, ev.RunReserved), _first(own, ev.RunReleased)
        if reserved is None or released is None or before != after:
            self._problems.append(f"{FAILING} held {after - before} ports after it had failed")
            return
        self._say("ports", f"event {reserved.seq} reserves {_port(reserved)},")
        self._say("", f"event {released.seq} releases it; {before} held before, {after} after")

    # --- 4 and 5 ---

    def _show_ports(self) -> None:
        status = self._service.status()
        rows: list[tuple[str, ...]] = []
        for port, name in status.ports_held.items():
            model = self._service.model(name)
            rows.append((str(port), name, str(model.run), model.state, str(model.pid)))
            facts = {"port": port, "model": name, "run": model.run, "pid": model.pid}
            self._console.object({"object": "port", **facts})
        self._console.table(("PORT", "MODEL", "RUN", "STATE", "PID"), rows, indent="   ")
        self._console.line(f"   {status.ports_free} more are free")

    def _close(self) -> None:
        began = time.perf_counter()
        self._service.close()
        took = time.perf_counter() - began
        self._say("closed", f"in {values.seconds(took)}")
        self._console.object({"object": "closed", "seconds": round(took, 6)})

    def _entries(self) -> tuple[Entry, ...]:
        return tuple(self._service.events(self._after))


def _complete(name: str, url: str) -> str:
    """Return a completion of at least one token. Raises CompletionError."""
    body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": _TOKENS}
    request = urllib.request.Request(  # noqa: S310 - the URL is a lease's, http on loopback
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with _direct.open(request, timeout=_ANSWER_S) as response:
            answer: Any = json.load(response)
        message = answer["choices"][0]["message"]
        text = message.get("content") or message.get("reasoning_content") or ""
        tokens = answer["usage"]["completion_tokens"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CompletionError(f"{name} at {url} gave no completion: {error!r}") from error
    if not tokens:
        raise CompletionError(f"{name} at {url} gave a completion without a token")
    return str(text)


def _first(entries: Iterable[Entry], kind: type[Event]) -> Entry | None:
    return next((entry for entry in entries if isinstance(entry.event, kind)), None)


def _last(entries: Iterable[Entry], kind: type[Event]) -> Entry | None:
    return _first(reversed(tuple(entries)), kind)


def _port(entry: Entry) -> int:
    port: int = getattr(entry.event, "port")  # noqa: B009 - of events that have one
    return port


def _names(entries: Iterable[Entry]) -> dict[int, str]:
    queued = (entry.event for entry in entries if isinstance(entry.event, ev.RunQueued))
    return {event.run: event.model for event in queued}
