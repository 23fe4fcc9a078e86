"""`moorage why`: what led to an event, or to what a model is now."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from moorage.cli import events, ps, source, values
from moorage.cli.console import Console, harmless
from moorage.core.events import Entry
from moorage.core.state import State
from moorage.core.story import Part, run_of, stages, story
from moorage.core.why import Teller, present
from moorage.errors import ConfigurationError, UnknownModelError
from moorage.log.look import LogLook
from moorage.log.reader import Filter, LogReader

_DETAIL_CHARS = 200
_MOST_DIGITS = 100
"""Of a number; a model's name may well consist of digits, too."""


def run(options: argparse.Namespace, console: Console) -> int:
    """Tell the story of one event, by its seq, or of a model, by its name."""
    with source.reading(options.state) as reader:
        look = LogLook(reader)
        if options.what.isdecimal() and len(options.what) < _MOST_DIGITS:
            subject = _entry(reader, int(options.what))
        else:
            state = source.state_at(reader)
            subject = _of_model(console, reader, state, options.what)
        _tell(console, look, story(subject, look))
    return 0


def _entry(reader: LogReader, seq: int) -> Entry:
    found = reader.entry(seq) if 0 < seq <= reader.head else None
    if found is None:
        raise ConfigurationError("why", f"the log has no event {seq}, it ends at {reader.head}")
    return found


def _of_model(console: Console, reader: LogReader, state: State, name: str) -> Entry:
    """Print what a model is now; return the entry to explain."""
    model = state.models.get(state.names.get(name, ""))
    last = reader.last(Filter(model=model.name if model is not None else name))
    if last is None:
        raise UnknownModelError(name, source.near(name, state.names))
    says = present(state, model) if model is not None else (f"{name} was removed.",)
    ago = f", {values.moment(state.at)}{ps.ago(state.at)}"
    for text in says:
        console.line(harmless(text))
    console.line(f"(as of event {state.seq}{ago})")
    console.line()
    run_now = state.runs.get(model.run or 0) if model is not None else None
    console.object(
        {
            "object": "model",
            "model": model.name if model is not None else name,
            "seq": state.seq,
            "at": state.at,
            "says": list(says),
        }
    )
    return _entry(reader, run_now.last_seq) if run_now is not None else last


def _tell(console: Console, look: LogLook, parts: Sequence[Part]) -> None:
    teller = Teller(look)
    for part in parts:
        said = teller.say(part.entry)
        data = events.to_data(part.entry)
        console.object(
            {"object": "entry", "role": part.role, "after_s": part.after_s, "says": said.text}
            | {"details": list(said.details)}
            | data
        )
        after = "" if part.after_s is None else f"+{values.seconds(part.after_s)}"
        text = f"{part.entry.seq:>7}  {values.moment(part.entry.at)}  {after:>9}  "
        line = text + harmless(said.text)
        console.line(console.paint(line, "bold") if part.role == "subject" else line)
        for detail in said.details:
            console.line(" " * len(text) + "  " + _short(detail))
    number = run_of(parts[-1].entry.event)
    if number is not None:
        _tell_stages(console, look, number)


def _short(detail: str) -> str:
    text = harmless(detail)
    return text if len(text) <= _DETAIL_CHARS else f"{text[: _DETAIL_CHARS - 1]}…"


def _tell_stages(console: Console, look: LogLook, number: int) -> None:
    spent = stages(look.run(number))
    if not spent:
        return
    console.line()
    listed = ", ".join(f"{stage} {values.seconds(seconds)}" for stage, seconds in spent)
    console.line(f"{Teller(look).named(number)} spent: {listed}")
    console.object(
        {"object": "stages", "run": number}
        | {"seconds": {stage.value: seconds for stage, seconds in spent}}
    )
