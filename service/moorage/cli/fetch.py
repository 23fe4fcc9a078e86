"""`moorage fetch`: a model of the hub into its cache, as a service would fetch it."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import time
from typing import Any, Final

from moorage.cli import signals, values
from moorage.cli.console import Console, harmless
from moorage.core.pace import Fetching, Pace
from moorage.errors import ConfigurationError
from moorage.hub import HubFetcher
from moorage.protocols import FetchCancelledError, Fetched, FetchFailedError, Flag, Progress
from moorage.spec import ModelSpec

_BAR_CHARS: Final = 30
_KEPT: Final = "stopped; what has come is kept, and the same command goes on from there"


def run(options: argparse.Namespace, console: Console, stop: Flag) -> int:
    """Fetch, and print the path. Returns 1 when it could not be had; raises what ends a command."""
    spec = _spec(options)
    show = _Shown(console, what=" ".join(filter(None, (spec.repo, spec.file))))
    began = time.monotonic()
    try:
        with signals.raised():
            fetched = HubFetcher().fetch(spec, show.note, stop)
    except FetchFailedError as error:
        show.end()
        console.object({"object": "failed", "problem": error.problem, "reason": error.reason})
        console.problem(f"moorage: {error.problem}")
        return 1
    except (FetchCancelledError, KeyboardInterrupt, signals.EndedBySignal) as ended:
        show.end()
        console.problem(_KEPT)
        if isinstance(ended, FetchCancelledError):
            raise KeyboardInterrupt from ended  # nothing else sets the flag
        raise
    show.end()
    _print(console, fetched, time.monotonic() - began)
    return 0


def _spec(options: argparse.Namespace) -> ModelSpec:
    try:
        return ModelSpec(
            name="fetched",
            backend=_backend(options),
            repo=options.repo,
            file=options.file,
            revision=options.revision,
            mmproj=options.mmproj,
        )
    except ConfigurationError as error:
        subject = error.subject.removeprefix("ModelSpec.")
        raise ConfigurationError(f"fetch: {subject}", error.problem) from None


def _backend(options: argparse.Namespace) -> str:
    """Return one that would read these files: which of a repo are fetched depends on it."""
    if options.file is not None:
        return "llama.cpp"
    return "command" if options.all else "vllm"


def _print(console: Console, fetched: Fetched, seconds: float) -> None:
    names = ("name", "bytes", "hash")
    files = [dict(zip(names, file, strict=True)) for file in fetched.files]
    console.object(
        {"object": "fetched", "path": fetched.path, "commit": fetched.commit, "files": files}
        | {"fetched_bytes": fetched.fetched_bytes, "seconds": round(seconds, 3)}
    )
    if not console.as_json:
        total = values.size(sum(size for _, size, _ in fetched.files))
        came = values.size(fetched.fetched_bytes)
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        console.problem(
            f"{count}, {total}, of which {came} came now, in {values.seconds(seconds)}; "
            f"commit {fetched.commit[:12]}"
        )
    console.line(harmless(fetched.path))


class _Shown:
    """Shows a person a bar; anybody else is told each tenth, and for what it waits."""

    def __init__(self, console: Console, *, what: str) -> None:
        self._console = console
        self._what = what
        self._pace = Pace()
        self._step = -1
        self._waiting: str = ""

    def note(self, progress: Progress) -> None:
        """Take in what the fetch tells."""
        seen = self._pace.note(
            time.monotonic(), progress.done_bytes, progress.total_bytes, progress.waiting
        )
        if seen is None:
            return
        if self._console.watched:
            self._console.progress(_bar(seen, shutil.get_terminal_size().columns))
        elif seen.step > self._step or seen.waiting != self._waiting:
            self._step, self._waiting = max(seen.step, self._step), seen.waiting
            self._tell(seen)

    def end(self) -> None:
        """Take the bar away."""
        self._console.progress("")

    def _tell(self, seen: Fetching) -> None:
        if self._console.as_json:
            data: dict[str, Any] = dataclasses.asdict(seen)
            del data["at"]
            self._console.object({"object": "progress"} | data | {"eta_s": seen.eta_s})
            self._console.flush()
        else:
            self._console.problem(f"{self._what}: {_words(seen)}")


def _bar(seen: Fetching, columns: int) -> str:
    """Return one line that a terminal of this width does not wrap."""
    words = harmless(_words(seen))
    room = min(_BAR_CHARS, columns - len(words) - 4)
    if not seen.total_bytes or room < 1:
        return words[: columns - 1]
    full = min(room, seen.done_bytes * room // seen.total_bytes)
    return f"[{'#' * full}{'.' * (room - full)}] {words}"


def _words(seen: Fetching) -> str:
    if seen.total_bytes is None:
        waits = f", waits for {seen.waiting}" if seen.waiting else ""
        return f"{values.size(seen.done_bytes)} here{waits}"
    percent = 100 if not seen.total_bytes else seen.done_bytes * 100 // seen.total_bytes
    said = f"{percent} %, {values.size(seen.done_bytes)} of {values.size(seen.total_bytes)}"
    if seen.waiting:
        return f"{said}, waits for {seen.waiting}"
    rate = f", {values.size(round(seen.bytes_per_s))}/s" if seen.bytes_per_s else ""
    left = seen.eta_s
    return said + rate + (f", {values.age(left)} left" if left else "")
