"""What one wrong edit is, and how it is made in a copy of the tree."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EDITS = Path(__file__).with_name("edits.toml")
PACKAGE = Path("service/moorage")


class RottenEditError(Exception):
    """The code has changed so that an edit does not fit it any more."""


@dataclass(frozen=True, slots=True)
class Change:
    """Exact text of a file of the package, there exactly once, and what takes its place."""

    file: str
    old: str
    new: str

    def made_in(self, text: str) -> str:
        """Return the file's text with the change."""
        if (found := text.count(self.old)) != 1:
            raise RottenEditError(f"{self.file} has this {found} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One fault, and where it is looked for.

    `tests` are what should find it, the quickest first. `simulated` when the simulation reaches
    the code, so that some seed should find it, too.
    """

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    simulated: bool = True

    def texts(self, root: Path) -> dict[Path, str]:
        """Return the changed files of a tree with their new texts."""
        texts: dict[Path, str] = {}
        for change in self.changes:
            path = root / PACKAGE / change.file
            text = texts.get(path) or path.read_text(encoding="utf-8")
            texts[path] = change.made_in(text)
        return texts

    @contextlib.contextmanager
    def made(self, root: Path) -> Iterator[None]:
        """Make the edit in a tree, and undo it at the end."""
        texts = self.texts(root)
        before = {path: path.read_bytes() for path in texts}
        try:
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
            yield
        finally:
            for path, old in before.items():
                path.write_bytes(old)


def edits() -> tuple[Edit, ...]:
    """Return all wrong edits."""
    data = tomllib.loads(EDITS.read_text(encoding="utf-8"))
    return tuple(
        Edit(
            name=edit["name"],
            changes=tuple(Change(**change) for change in edit["change"]),
            tests=tuple(edit["tests"]),
            simulated=edit.get("simulated", True),
        )
        for edit in data["edit"]
    )
