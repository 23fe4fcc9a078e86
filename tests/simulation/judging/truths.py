"""Success: whatever a caller was told is in the rows, and so in the world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulation.judging.book import LENT, Book
from simulation.judging.past import Past
from simulation.sight import SeenAnswer, Sight


class Truths:
    """Looks up for each verb but the leases' what its success says. "" when it is true."""

    def __init__(self, book: Book, past: Past) -> None:
        self.book = book
        self.past = past
        self.stages: Mapping[int, str] = {}
        """Runs to their stages, as published."""
        self.promised: dict[str, int] = {}
        """Models whose removal was told though the log could not be written, to when it was."""
        self.behind = -1
        """The last step in which the rows were behind what the service knew."""
        self._by_verb: dict[str, Callable[[SeenAnswer, int, Sight], str]] = {
            "stop": self._stop,
            "remove": self._remove,
            "define": self._define,
            "pin": self._pinned,
            "unpin": self._pinned,
            "reset": self._reset,
            "start": self._start,
            "set_limits": self._set_limits,
            "archive": self._archive,
            "close": self._close,
            "open": self._open,
        }

    def missing(self, answer: SeenAnswer, since: int, sight: Sight) -> str:
        """Return what is not so, of what the success of a verb says."""
        return self._by_verb[answer.verb](answer, since, sight)

    def _models(self, answer: SeenAnswer, since: int) -> list[str]:
        return sorted(self.past.meanings(answer.names[0], since))

    def _stop(self, answer: SeenAnswer, since: int, sight: Sight) -> str:
        for model in self._models(answer, since):
            for run in self.book.runs.values():
                if run.model == model and run.step < since and run.run in self.stages:
                    return f"run {run.run} is {self.stages[run.run]}"
            for server in sight.servers:
                old = self.book.began.get(server.run, since) < since
                if server.model == model and old and (server.leader_alive or server.others):
                    return f"something of run {server.run} lives"
            hold = answer.options.get("hold")
            if hold and not self._is(model, "held") and not self._since(model, since, "held"):
                return f"{model!r} is not held"
        return ""

    def _is(self, model: str, status: str) -> bool:
        return model in self.book.models and self.book.models[model].status == status

    def _since(self, model: str, since: int, *kinds: str) -> bool:
        return any(self.past.was(kind, model, since) for kind in kinds)

    def _remove(self, answer: SeenAnswer, since: int, sight: Sight) -> str:
        models = self._models(answer, since)
        if any(self.past.was("model.removed", model, since) for model in models):
            return ""
        going = {run.model for run in self.book.runs.values() if run.reason == "remove"}
        if sight.unwritten and going.intersection(models):
            # Meant durably, told, not yet written.
            self.promised |= dict.fromkeys(going.intersection(models), self.book.step)
            return ""
        return f"no row says that {answer.names[0]!r} was removed"

    def broken(self, sight: Sight) -> Iterator[str]:
        """Yield what was promised, and is not so when a service has all in the log."""
        if self.promised and sight.open and not sight.unwritten:
            going = {run.model for run in self.book.runs.values() if run.reason == "remove"}
            for name, told in self.promised.items():
                if name in going:  # its owner was killed meanwhile, and the next one goes on
                    continue
                if name in self.book.models and not self._since(name, told, "model.removed"):
                    yield f"{name!r} is defined, though its removal was told"
            self.promised.clear()

    def _define(self, answer: SeenAnswer, since: int, _sight: Sight) -> str:
        for name in answer.names:
            model = self.book.models.get(name)
            if self._since(name, since, "model.defined", "model.removed"):
                continue
            if model is None:
                return f"{name!r} is not defined"
            for key, value in answer.options.get(name, {}).items():
                if _plain(model.spec.get(key)) != _plain(value):
                    return f"{key} of {name!r} is {model.spec.get(key)!r}, not {value!r}"
        return ""

    def _pinned(self, answer: SeenAnswer, since: int, _sight: Sight) -> str:
        for name in self._models(answer, since):
            model = self.book.models.get(name)
            rows = ("model.pinned", "model.unpinned", "model.removed")
            as_asked = model is not None and model.pinned == (answer.verb == "pin")
            if as_asked or self._since(name, since, *rows):
                return ""
        return f"no row says so of {answer.names[0]!r}"

    def _reset(self, answer: SeenAnswer, since: int, _sight: Sight) -> str:
        for name in self._models(answer, since):
            if self._is(name, "stopped") or self._since(name, since, "model.reset", "stopped"):
                return ""
        return f"no row says that {answer.names[0]!r} was reset"

    def _start(self, answer: SeenAnswer, since: int, sight: Sight) -> str:
        models = self._models(answer, since)
        for name in models:
            if self._since(name, since, "run.ready"):
                return ""
            runs = [r for r in self.book.runs.values() if r.model == name]
            if any(r.was_ready and (r.stage in LENT or r.since >= since) for r in runs):
                return ""
            serves = any(self.stages.get(r.run) in LENT for r in runs)
            if sight.unwritten and (serves or self._since(name, since, "served")):
                return ""
        return f"no run of {answer.names[0]!r} was ready"

    def _set_limits(self, answer: SeenAnswer, since: int, _sight: Sight) -> str:
        if self._since("", since, "limits.set"):
            return ""
        for key, value in answer.options.items():
            if getattr(self.book, key, value) != value:
                return f"{key} is {getattr(self.book, key)}, not {value}"
        return ""

    def _archive(self, _answer: SeenAnswer, since: int, _sight: Sight) -> str:
        return "" if self._since("", since, "log.continued") else "no row continues the log"

    def _close(self, _answer: SeenAnswer, since: int, sight: Sight) -> str:
        if self._since("", since, "service.closed"):
            return ""  # perhaps it was opened again since
        if sight.open:
            return "it is open"
        behind = self.behind >= since
        if self.book.open and not behind and not self.past.was("dead", "", since):
            return "no row says that it closed"
        return ""

    def _open(self, _answer: SeenAnswer, _since: int, sight: Sight) -> str:
        if not self.book.open:
            return "no row says that it opened"
        return "" if sight.open else "nobody has the log open"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
