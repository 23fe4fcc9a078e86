"""`moorage events`: the log itself, one line an event."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from moorage.cli import source, values
from moorage.cli.console import Console, harmless
from moorage.core import codec
from moorage.core.events import KINDS, Entry, Event
from moorage.core.state import describe_pool
from moorage.errors import ConfigurationError
from moorage.log.reader import Filter
from moorage.protocols import Flag

# Long, or of use to programs only; `--json` has them all.
_LEFT_OUT: Final = frozenset(
    {"spec", "argv", "log_tail", "log_file", "base", "files", "nonce"}
    | {"spec_hash", "secrets_hash", "base_hash", "boot_id", "start_ticks", "group", "session"}
)
_KIND_WIDTH: Final = max(map(len, KINDS))
_TEXT_CHARS: Final = 160
_PLAIN: Final = re.compile(r"[\w.,:;/@+%-]+")
"""Needs no quotes to be told from what comes after it."""
_COLOURS: Final = {
    "run.ready": "green",
    "run.evicting": "yellow",
    "run.stop_failed": "red",
    "model.backoff": "red",
    "model.failed": "red",
    "port.blocked": "yellow",
}


def run(options: argparse.Namespace, console: Console, stop: Flag) -> int:
    """Print the events asked for; with `-f` go on until `stop` is set or `--limit` is reached."""
    if options.kind is not None:
        _check_kind(options.kind)
    with source.reading(options.state) as reader:
        model = source.model_called(reader, options.model) if options.model is not None else None
        only = Filter(kind=options.kind, model=model, run=options.run)
        if options.follow:
            found = reader.follow(options.after, stop, only=only)
            _print(console, itertools.islice(found, options.limit), each=True)
        else:
            _print(console, reader.read(options.after, limit=options.limit, only=only), each=False)
    return 0


def _check_kind(beginning: str) -> None:
    if any(kind.startswith(beginning) for kind in KINDS):
        return
    near = difflib.get_close_matches(beginning, KINDS, n=3)
    groups = sorted({kind.partition(".")[0] + "." for kind in KINDS})
    meant = f"did you mean {', '.join(near)}?" if near else f"kinds begin with {', '.join(groups)}"
    raise ConfigurationError("--kind", f"no kind of event begins with {beginning!r}; {meant}")


def _print(console: Console, entries: Iterable[Entry], *, each: bool) -> None:
    for entry in entries:
        show(console, entry)
        if each:
            console.flush()


def show(console: Console, entry: Entry) -> None:
    """Print one entry, for people or as JSON."""
    if console.as_json:
        console.object(to_data(entry))
    else:
        colour = _COLOURS.get(entry.event.kind)
        text = describe(entry)
        console.line(console.paint(text, colour) if colour else text)


def to_data(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON-ready data, in the order of the log's columns."""
    columns, data = codec.encode(entry.event)
    head = {"seq": entry.seq, "at": entry.at, "kind": entry.event.kind}
    return head | {"version": entry.event.version, **columns, "cause": entry.cause, "data": data}


def describe(entry: Entry) -> str:
    """Return an entry as one harmless line: seq, time, kind, whom, then what tells."""
    event = entry.event
    cause = f"cause={entry.cause}" if entry.cause is not None else ""
    facts = " ".join((*_facts(event), *filter(None, (cause,))))
    whom = _whom(event)
    head = f"{entry.seq:>6}  {values.moment(entry.at)}  {event.kind:<{_KIND_WIDTH}}"
    return f"{head}  {whom:<20}  {facts}".rstrip()


def _whom(event: Event) -> str:
    columns, _ = codec.encode(event)
    text = columns["model"] or ""
    if columns["run"] is not None:
        text += f"#{columns['run']}"
    if columns["port"] is not None:
        text += f" :{columns['port']}"
    return harmless(text)


def _facts(event: Event) -> Iterator[str]:
    columns, data = codec.encode(event)
    if columns["pid"] is not None:
        yield f"pid={columns['pid']}"
    for field in dataclasses.fields(event):
        name = field.name
        if name in data and name not in _LEFT_OUT and not _is_nothing(data[name]):
            yield f"{name}={_value(name, data[name])}"
    spec: Mapping[str, Any] = data.get("spec") or {}
    for name in ("backend", "path", "repo", "file", "executable", "aliases"):
        if spec.get(name):
            yield f"{name}={_value(name, spec[name])}"


def _is_nothing(value: object) -> bool:
    return value is None or value in ("", ())


def _value(name: str, value: Any) -> str:
    if name == "ports":
        return describe_pool(value).replace(", ", ",")
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, str):
        return _text(value)
    return harmless(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _text(value: str) -> str:
    short = value if len(value) <= _TEXT_CHARS else f"{value[: _TEXT_CHARS - 1]}…"
    return harmless(short if _PLAIN.fullmatch(short) else json.dumps(short, ensure_ascii=False))
