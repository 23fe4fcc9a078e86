"""`moorage demo`: the main job before the reader's eyes, on real llama.cpp servers."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moorage.backends.llama import LlamaCpp
from moorage.cli import signals, source
from moorage.cli.console import Console, harmless
from moorage.cli.demochecks import checked
from moorage.cli.demostory import FAILING, MODELS, ROOM, Story
from moorage.cli.events import show, to_data
from moorage.errors import ConfigurationError, MoorageError, StateError
from moorage.gguf import GgufError, check_gguf, write_tiny
from moorage.log.files import StateFiles
from moorage.log.reader import LogReader
from moorage.protocols import LOOPBACK, LaunchFailedError, PlanRequest
from moorage.service import DEFAULT_PORTS, ModelService
from moorage.spec import ModelSpec

FOLDER: Final = "moorage-demo"
_TINY: Final = "tiny.gguf"


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the demo runs on. `model` is None where the tiny one has to be made."""

    folder: Path
    known: bool
    model: Path | None
    server: tuple[str, ...]


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the demo. Returns 1 when something it shows does not hold.

    Raises MoorageError, with nothing left behind, when it cannot begin.
    """
    with signals.raised():
        setting = _prepare(options)
        before = _head(setting)
        service = ModelService.open(setting.folder, ports=DEFAULT_PORTS, max_loaded=ROOM)
        try:
            with service:
                problems = _tell(service, console, setting, before)
        except MoorageError as error:
            console.progress("")
            console.problem(f"moorage: {error}")
            return 1
        return _conclude(console, setting.folder, before, problems)


def _prepare(options: argparse.Namespace) -> _Setting:
    model = _given(options.model) if options.model is not None else None
    folder = Path(options.state if options.state is not None else FOLDER)
    known = _is_a_demos(folder)
    return _Setting(folder, known, model, _server(model))


def _given(text: str) -> Path:
    """Return the reader's own model. Raises ConfigurationError when it cannot be one."""
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise ConfigurationError("--model", f"{text} is a folder; name the GGUF file in it")
    try:
        check_gguf(path)
    except GgufError as error:
        raise ConfigurationError("--model", f"{text} {error.reason}") from error
    except OSError as error:
        raise ConfigurationError("--model", f"{text} cannot be read: {error.strerror}") from error
    return path


def _is_a_demos(folder: Path) -> bool:
    """Return whether an earlier demo made this state; raise StateError when something else did."""
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
    except OSError as error:
        raise StateError(str(folder), f"cannot be read: {error.strerror}") from error
    if not folder.is_dir() or not StateFiles(folder).database.exists():
        raise StateError(str(folder), "is there already and no state; name another with --state")
    with LogReader(folder) as reader:
        others = set(source.state_at(reader).models) - {*MODELS, FAILING}
    if others:
        raise StateError(
            str(folder),
            f"belongs to a service with other models ({', '.join(sorted(others))}), which this "
            "demo would remove; name another with --state",
        )
    return True


def _server(model: Path | None) -> tuple[str, ...]:
    """Return the command of a llama.cpp server. Raises ConfigurationError when there is none."""
    with tempfile.TemporaryDirectory(prefix="moorage-demo-") as scratch:
        if model is None:
            model = Path(scratch, _TINY)
            write_tiny(model)
        spec = ModelSpec(name="demo", backend=LlamaCpp.name, path=str(model))
        request = PlanRequest(spec=spec, path=str(model), host=LOOPBACK, ports=(DEFAULT_PORTS[0],))
        try:
            argv = LlamaCpp().plan(request).argv
        except LaunchFailedError as error:
            raise ConfigurationError("the demo needs a llama.cpp server", error.problem) from error
    return argv[: argv.index("--model")]


def _head(setting: _Setting) -> int:
    if not setting.known:
        return 0
    with LogReader(setting.folder) as reader:
        return reader.head


def _tell(
    service: ModelService, console: Console, setting: _Setting, before: int
) -> tuple[str, ...]:
    model = setting.model or _tiny(setting.folder)
    _introduce(console, setting, model)
    story = Story(service, console, model, tiny=setting.model is None, after=before)
    return story.tell()


def _tiny(folder: Path) -> Path:
    """Return the tiny model in a state folder, whole; one that is there may be in use."""
    path = (folder / _TINY).absolute()
    try:
        check_gguf(path)
    except (GgufError, FileNotFoundError):
        write_tiny(path)
    return path


def _introduce(console: Console, setting: _Setting, model: Path) -> None:
    console.line(console.paint("Three models, room for two, real llama.cpp servers", "bold"))
    console.line()
    how = "left by an earlier demo, its log goes on" if setting.known else "new"
    console.line(f"state   {harmless(str(setting.folder))} ({how})")
    if setting.model is None:
        console.line(f"model   a tiny one of random weights, written to {harmless(str(model))}:")
        console.line("        its answers are gibberish (--model PATH takes your own GGUF file)")
    else:
        console.line(f"model   {harmless(str(model))}")
    console.line(f"server  {harmless(shlex.join(setting.server))}")
    data = {"state": str(setting.folder), "model": str(model), "tiny": setting.model is None}
    console.object({"object": "demo", **data, "server": setting.server})


def _conclude(console: Console, folder: Path, before: int, problems: Sequence[str]) -> int:
    """Print the log and what was checked in it; return the exit status."""
    _print_log(console, folder, before)
    console.line()
    console.line(console.paint("Checked", "bold"))
    found = [*((False, problem) for problem in problems), *checked(folder, before)]
    for holds, text in found:
        mark = console.paint("ok", "green") if holds else console.paint("NOT SO", "red")
        console.line(f"   {mark}  {harmless(text)}")
        console.object({"object": "check", "holds": holds, "text": text})
    console.line()
    console.line(console.paint("Look further", "bold"))
    for command in ("ps", "events", f"logs {MODELS[-1]}"):
        console.line(f"   {_program()} {command} --state {shlex.quote(str(folder))}")
    return 0 if all(holds for holds, _ in found) else 1


def _print_log(console: Console, folder: Path, before: int) -> None:
    with LogReader(folder) as reader:
        entries = tuple(reader.read(before))
    console.line()
    console.line(console.paint(f"6  The log of all this: {len(entries)} events", "bold"))
    for entry in entries:
        if console.as_json:
            console.object({"object": "event"} | to_data(entry))
        else:
            show(console, entry)


def _program() -> str:
    """Return what the reader has to type to run this program again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m moorage"
    known = called.name != "moorage" or shutil.which("moorage") is not None
    return "moorage" if known else shlex.quote(sys.argv[0])
