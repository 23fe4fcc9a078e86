"""Errors: each verb may raise what its contract names, and only when there was a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulation.judging.book import LENT, Book
from simulation.judging.past import Past
from simulation.sight import SeenAnswer

_ALWAYS = ("LogUnavailableError", "ServiceClosedError", "ServiceFailedError", "WaitTimeoutError")
_WANT = (
    *_ALWAYS,
    *("UnknownModelError", "QueueFullError", "NoRoomError", "WouldDeadlockError", "LoadError"),
    *("PortPoolExhaustedError", "LoadCancelledError", "StopFailedError"),
)
ERRORS: dict[str, tuple[str, ...]] = {
    "lease": (*_WANT, "ModelHeldError", "ModelUnavailableError"),
    "lease_all": (*_WANT, "ModelHeldError", "ModelUnavailableError"),
    "start": _WANT,
    "stop": (*_ALWAYS, "UnknownModelError", "StopFailedError"),
    "remove": (*_ALWAYS, "UnknownModelError", "StopFailedError"),
    "define": (*_ALWAYS, "NameClashError", "ConfigurationError"),
    "pin": (*_ALWAYS, "UnknownModelError"),
    "unpin": (*_ALWAYS, "UnknownModelError"),
    "reset": (*_ALWAYS, "UnknownModelError"),
    "set_limits": (*_ALWAYS, "ConfigurationError"),
    "archive": (*_ALWAYS, "StateError"),
    "close": ("CloseIncompleteError",),
    "open": (
        "NameClashError",
        "LogUnavailableError",
        "StateError",
        "StateInUseError",
        "ServiceFailedError",
    ),
}
"""What each verb may raise, by its contract."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """An answer with what the judge knows of its call."""

    answer: SeenAnswer
    since: int
    """The step that saw the call first."""
    models: frozenset[str]
    """What its names stood for since then."""
    deadline: float
    holds: frozenset[int] = frozenset()
    """Runs its caller held leases of one step ago ..."""
    keeps: frozenset[int] = frozenset()
    """... and that are not lost."""
    strangers: Mapping[int, int] = field(default_factory=dict[int, int])
    blind: bool = False
    """The rows were behind what the service knew: they cannot give every reason."""


class Reasons:
    """Knows for each error what must have been so while its caller waited."""

    def __init__(self, book: Book, past: Past) -> None:
        self.book = book
        self.past = past
        # These wait for no row: they are judged also when the rows are behind.
        self._seen: dict[str, Callable[[Asked], bool]] = {
            "WaitTimeoutError": lambda asked: asked.answer.answered_at >= asked.deadline,
            "LogUnavailableError": lambda asked: self._was(asked, "unwritable"),
            "ServiceFailedError": lambda asked: self._was(asked, "dead"),
            "ServiceClosedError": lambda asked: self._was(asked, "closed", "dead"),
            "UnknownModelError": self._unknown,
            "ModelHeldError": lambda asked: self._of_models(asked, "held"),
        }
        self._told: dict[str, Callable[[Asked], bool]] = {
            "ModelUnavailableError": lambda asked: self._of_models(asked, "backoff", "failed"),
            "LoadError": lambda asked: self._of_models(asked, "broke"),
            "LoadCancelledError": self._cancelled,
            "StopFailedError": self._stuck,
            "WouldDeadlockError": self._deadlock,
            "NoRoomError": self._no_room,
            "PortPoolExhaustedError": self._no_port,
        }

    def lawful(self, asked: Asked) -> bool:
        """Tell whether an error that is in its contract had a reason."""
        error = asked.answer.error
        if error in self._seen:
            return self._seen[error](asked)
        return asked.blind or error not in self._told or self._told[error](asked)

    def _was(self, asked: Asked, *whats: str) -> bool:
        return any(self.past.was(what, "", asked.since) for what in whats)

    def _of_models(self, asked: Asked, *whats: str) -> bool:
        return any(self.past.was(w, m, asked.since) for w in whats for m in asked.models) or any(
            self.book.models[m].status in whats for m in asked.models if m in self.book.models
        )

    def _unknown(self, asked: Asked) -> bool:
        gone = any(self.past.unknown(name, asked.since) for name in asked.answer.names)
        going = {r.model for r in self.book.runs.values() if r.reason == "remove"} & asked.models
        return gone or bool(going) or self._of_models(asked, "removing")

    def _deadlock(self, asked: Asked) -> bool:
        """Who holds what he asks for, and that serves, has it again instead."""
        runs = self.book.runs
        again = any(
            runs[run].model in asked.models and runs[run].stage in LENT
            for run in asked.keeps
            if run in runs
        )
        return bool(asked.holds) and not (again and asked.answer.verb == "lease")

    def _cancelled(self, asked: Asked) -> bool:
        return self._of_models(asked, "cancelled") or self._was(asked, "closed")

    def _stuck(self, asked: Asked) -> bool:
        stuck = {run.model for run in self.book.runs.values() if run.stage == "stop_failed"}
        return bool(stuck & asked.models) or self._of_models(asked, "run.stop_failed")

    def _no_room(self, asked: Asked) -> bool:
        book = self.book
        return (
            any(model.pinned for model in book.models.values())
            or any(run.stage == "stop_failed" for run in book.runs.values())
            or book.memory_limit is not None
            or len(asked.answer.names) > book.max_loaded
            or self._was(asked, "pinned", "stuck", "limits.set")
        )

    def _no_port(self, asked: Asked) -> bool:
        models = self.book.models
        wanted = sum(models[m].spec["ports"] for m in asked.models if m in models)
        free = sum(
            1
            for port in self.book.free
            if port not in asked.strangers and not self.past.was("blocked", str(port), asked.since)
        )
        unknown = not asked.models <= models.keys()  # how many ports it had is not known any more
        return free < max(wanted, 1) or unknown or self._was(asked, "freed")
