"""Where a command prints: text that cannot drive the terminal, colours for people, or JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_GAP: Final = "  "


def harmless(text: str) -> str:
    """Return text on one line in which whatever is no printable character is spelled out.

    Commands, errors and log lines come from servers: none may move a cursor or set a title.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Console:
    """One command's output. `json` prints objects only, one a line."""

    def __init__(self, out: TextIO, err: TextIO, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out = out
        self._err = err
        watched = out.isatty()
        # https://no-color.org: any value but the empty one.
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._coloured = watched and wanted and not as_json
        self._progress = watched and err.isatty() and os.environ.get("TERM") != "dumb"
        self._progress = self._progress and not as_json

    def line(self, text: str = "") -> None:
        """Print a line for people; nothing when the output is JSON."""
        if not self.as_json:
            self._out.write(text + "\n")

    def object(self, data: Mapping[str, Any]) -> None:
        """Print an object as one line of JSON; nothing when the output is for people."""
        if self.as_json:
            self._out.write(json.dumps(data, allow_nan=False) + "\n")

    def raw(self, text: str) -> None:
        """Print a line, whoever it is for."""
        self._out.write(text + "\n")

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = ""
    ) -> None:
        """Print harmless cells in columns as wide as needed; the last one is never padded."""
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for number, row in enumerate((head, *rows)):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            text = indent + _GAP.join(cells).rstrip()
            self.line(self.paint(text, "bold") if number == 0 else text)

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour where somebody sees it."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._coloured and text else text

    @property
    def watched(self) -> bool:
        """Whether a person sees what is under way."""
        return self._progress

    def progress(self, text: str) -> None:
        """Show what is under way while a person is watching; '' takes it away."""
        if self._progress:
            self._err.write(f"\r\x1b[K{text}")
            self._err.flush()

    def problem(self, text: str) -> None:
        """Say on standard error what went wrong, or is no result; every line harmless."""
        for line in text.splitlines():
            self._err.write(harmless(line) + "\n")
        self._err.flush()

    def flush(self) -> None:
        """Hand over what is buffered."""
        self._out.flush()


def standard(*, as_json: bool) -> Console:
    """Return the console of this process."""
    # Without these streams, as after `>&-`, there is nobody to print to.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        # What the terminal's encoding has no character for is spelled out instead of raised.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return Console(sys.stdout, sys.stderr, as_json=as_json)


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
