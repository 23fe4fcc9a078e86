"""When things were last so: what a caller was told may have been true for an instant only."""

from __future__ import annotations

from simulation.judging.book import Book
from simulation.sight import SeenRow


class Past:
    """When things were last so, by step: `was(what, since)` also tells what is so no more."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._last: dict[tuple[str, str], int] = {}
        self._meant: dict[str, list[tuple[str, int]]] = {}

    def note(self, what: str, of: str = "") -> None:
        """Say that something is so in this step."""
        self._last[what, of] = self._book.step

    def was(self, what: str, of: str, since: int) -> bool:
        """Tell whether it was so at that step or later."""
        return self._last.get((what, of), -1) >= since

    def before(self, row: SeenRow) -> None:
        """Note what a row is about to end."""
        book, name = self._book, row.model or ""
        model = book.models.get(name)
        if model is not None:
            self.note(model.status, name)
            if model.pinned:
                self.note("pinned")
            if row.kind in ("model.defined", "model.removed"):
                for each in model.names:
                    self._meant.setdefault(each, []).append((name, book.step))
        run = book.runs.get(row.run or 0)
        if run is not None and run.stage == "stop_failed":
            self.note("run.stop_failed", name)
            self.note("stuck")
        if row.kind == "model.defined":
            for each in (name, *row.data["spec"]["aliases"]):
                if each not in book.names:
                    self.note("unknown", each)

    def after(self, row: SeenRow) -> None:
        """Note what a row began or said."""
        book, name = self._book, row.model or ""
        self.note(row.kind, name)
        if name in book.models:
            self.note(book.models[name].status, name)
        ended = row.data.get("outcome", "")
        if (
            row.data.get("stage")
            or row.data.get("wanted") is False
            or ended.startswith("failed")
            or ended == "refused"
        ):
            self.note("broke", name)
        if row.kind == "port.blocked":
            self.note("blocked", str(row.port))
        elif row.kind == "run.stop_failed":
            self.note("stuck")
        elif row.kind == "run.released":
            self.note("freed")
        elif row.kind == "limits.set":
            self.note("limits.set")
        if row.kind in ("run.stopping", "run.draining", "model.removed", "model.held") or ended:
            self.note("cancelled", name)

    def meanings(self, name: str, since: int) -> set[str]:
        """Return the models that a name or alias stood for at that step or later."""
        found = {model for model, until in self._meant.get(name, ()) if until >= since}
        if name in self._book.names:
            found.add(self._book.names[name])
        return found

    def unknown(self, name: str, since: int) -> bool:
        """Tell whether a name stood for nothing at that step or later."""
        return name not in self._book.names or self.was("unknown", name, since)
