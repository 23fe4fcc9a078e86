"""A timeline as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any, Final, get_args

from moorage.core.timeline import Bar, Mark, MarkKind, Shown, Timeline

_SHOWN: Final[tuple[Shown, ...]] = get_args(Shown)
_KINDS: Final[tuple[MarkKind, ...]] = get_args(MarkKind)


def page(timeline: Timeline) -> str:
    """Return the page. Nothing in it is fetched from elsewhere, and nothing of the log is code."""
    style, script = _asset("timeline.css"), _asset("timeline.js")
    parts = {
        "TITLE": html.escape(f"Moorage log {timeline.log_id or '(empty)'}"),
        "STYLE_HASH": _hash(style),
        "SCRIPT_HASH": _hash(script),
        "STYLE": style,
        "DATA": _json(to_data(timeline)),
        "SCRIPT": script,
    }
    # In one pass: what a log says never takes the place of a part.
    return re.sub(r"@([A-Z_]+)@", lambda found: parts[found[1]], _asset("timeline.html"))


def to_data(timeline: Timeline) -> dict[str, Any]:
    """Return what the page's script draws; texts that recur are kept once, in `texts`."""
    texts = _Texts()
    models = {name: number for number, name in enumerate(timeline.models)}
    return {
        "start": timeline.start,
        "end": timeline.end,
        "length": timeline.length,
        "events": timeline.events,
        "left_out": timeline.left_out,
        "models": timeline.models,
        "ports": timeline.ports,
        "states": _SHOWN,
        "kinds": _KINDS,
        "bars": [_bar(bar, models, texts) for bar in timeline.bars],
        "marks": [_mark(mark, models, texts) for mark in timeline.marks],
        "texts": texts.known(),
    }


class _Texts:
    def __init__(self) -> None:
        self._known: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))

    def known(self) -> list[str]:
        return list(self._known)


def _bar(bar: Bar, models: dict[str, int], texts: _Texts) -> list[Any]:
    spans = [n for s in bar.spans for n in (_SHOWN.index(s.shown), s.start, s.end)]
    return [
        bar.run,
        models[bar.model],
        bar.ports,
        bar.pid,
        bar.held,
        int(bar.ended),
        texts.number(bar.outcome),
        texts.number(bar.error),
        texts.number(bar.requested_by),
        bar.first_seq,
        bar.last_seq,
        spans,
    ]


def _mark(mark: Mark, models: dict[str, int], texts: _Texts) -> list[Any]:
    model = models.get(mark.model or "", -1)
    kind = _KINDS.index(mark.kind)
    return [kind, mark.at, mark.seq, mark.run, model, mark.port, texts.number(mark.text)]


def _json(data: dict[str, Any]) -> str:
    # In a script element only `</` and `<!--` could end or change what follows.
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("moorage.cli").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
