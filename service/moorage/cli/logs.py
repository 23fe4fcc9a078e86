"""`moorage logs`: what a model's server wrote."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from moorage.cli import source
from moorage.cli.console import Console
from moorage.cli.outputfile import OutputFile
from moorage.core.events import RunLaunching, RunReleased
from moorage.errors import StateError
from moorage.log.reader import Filter, LogReader
from moorage.protocols import Flag

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class _Launch:
    """A run whose server was launched, and where that writes to."""

    model: str
    run: int
    output: OutputFile


def run(options: argparse.Namespace, console: Console, stop: Flag) -> int:
    """Print the last lines of a run; with `-f` what comes, until `stop` is set.

    Following a run by its number ends with that run; following a model goes on with its next run.
    """
    with source.reading(options.state) as reader:
        model = source.model_called(reader, options.model)
        head = reader.head
        launch = _latest(_launches(reader, model, run=options.run))
        if launch is not None:
            _print(
                console, launch, launch.output.last(options.lines, unfinished=not options.follow)
            )
        elif not options.follow or options.run is not None:
            raise _nothing(reader, model, options.run)
        if options.follow:
            _Following(console, reader, model, options.run).go_on(launch, head, stop)
    return 0


def _launches(
    reader: LogReader, model: str, *, run: int | None = None, after: int = 0
) -> Iterable[_Launch]:
    only = Filter(kind=RunLaunching.kind, model=model, run=run)
    for entry in reader.read(after, only=only):
        if isinstance(entry.event, RunLaunching):
            yield _Launch(model, entry.event.run, OutputFile(_place(reader, entry.event)))


def _place(reader: LogReader, event: RunLaunching) -> Path:
    """Return the log file: beside this database, for a copied state has its own; else as said."""
    said = Path(event.log_file)
    beside = Path(reader.path).parent / "logs" / event.model / said.name
    return beside if beside.exists() else said


def _latest(launches: Iterable[_Launch]) -> _Launch | None:
    return max(launches, key=lambda launch: launch.run, default=None)


def _nothing(reader: LogReader, model: str, run: int | None) -> StateError:
    which = "no run" if run is None else f"no run {run}"
    return StateError(
        reader.path,
        f"{which} of {model!r} got as far as a launch, so there is no output; "
        f"`moorage events --model {model}` says what happened",
    )


def _print(console: Console, launch: _Launch, lines: Iterable[str]) -> None:
    for line in lines:
        console.line(line)
        console.object({"model": launch.model, "run": launch.run, "line": line})


class _Following:
    """Goes on printing what a model's servers write."""

    def __init__(
        self, console: Console, reader: LogReader, model: str, only_run: int | None
    ) -> None:
        self._console = console
        self._reader = reader
        self._model = model
        self._only_run = only_run

    def go_on(self, launch: _Launch | None, after: int, stop: Flag) -> None:
        """Follow from a launch on, looking at the log for what comes `after`."""
        self._console.flush()
        while not stop.is_set():
            head = self._reader.head
            # Looked at before the file is read: what it says was written before it ended is there.
            over = self._is_over()
            later = None if self._only_run else _latest(self._launched_since(after))
            if launch is not None:
                _print(self._console, launch, launch.output.more(to_the_end=over or bool(later)))
            if over:
                return
            if later is not None:
                launch = later
                self._console.line(f"==> {launch.model} run {launch.run} <==")
            self._console.flush()
            after = head
            if later is None:
                stop.wait(_POLL_S)

    def _launched_since(self, after: int) -> Iterable[_Launch]:
        return _launches(self._reader, self._model, after=after)

    def _is_over(self) -> bool:
        if self._only_run is None:
            return False
        only = Filter(kind=RunReleased.kind, model=self._model, run=self._only_run)
        return any(self._reader.rows(limit=1, only=only))
