"""What can be written on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NoReturn

from moorage.cli import answers, inquiries, source
from moorage.cli.console import Console
from moorage.errors import MoorageError
from moorage.protocols import Flag

Command = Callable[[argparse.Namespace, Console, Flag], int]

_MOST_SEQ = (1 << 63) - 1


class UsageError(MoorageError):
    """The command line cannot be meant; the message begins with the command's name."""


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line instead of printing the whole usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see `{self.prog} --help`")


def command(options: argparse.Namespace) -> Command:
    """Return what runs the command that was named."""
    found: Command = options.command
    return found


def build() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="moorage",
        description="Look into the event logs of Moorage services, see one at work, fetch models.",
        epilog="Exit status: 0 fine, 1 a finding (such as a failed start), 2 could not run.",
    )
    parser.add_argument("--version", action="version", version=f"moorage {version('moorage')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_demo(commands)
    _add_fetch(commands)
    _add_ps(commands)
    _add_logs(commands)
    _add_events(commands)
    inquiries.register(commands, _add, _add_state)
    answers.register(commands, _add, _add_state)
    _add_archive(commands)
    _add_db(commands)
    return parser


def _add(commands: Any, name: str, run: Command, *, help_text: str, more: str = "") -> _Parser:
    parser: _Parser = commands.add_parser(name, help=help_text, description=f"{help_text}. {more}")
    parser.set_defaults(command=run)
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    return parser


def _add_state(parser: _Parser) -> None:
    parser.add_argument(
        "--state",
        metavar="DIR",
        help=f"the service's state folder, or a copy of its database (default: {source.VARIABLE})",
    )


def _add_demo(commands: Any) -> None:
    parser = _add(
        commands,
        "demo",
        _demo,
        help_text="Run three models in room for two, on real llama.cpp servers",
        more="Needs no network. 1: something that it shows did not hold.",
    )
    parser.add_argument(
        "--model", metavar="PATH", help="a GGUF file of yours (default: a tiny one is made)"
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="a new folder, or one of an earlier demo (default: moorage-demo)",
    )


def _add_fetch(commands: Any) -> None:
    parser = _add(
        commands,
        "fetch",
        _fetch,
        help_text="Fetch a model from the Hugging Face hub into its cache, and print its path",
        more="What is there is not fetched again, what was begun goes on where it stopped. Takes"
        " HF_TOKEN, HF_HOME, HF_ENDPOINT and the like. 1: it could not be had.",
    )
    parser.add_argument("repo", metavar="REPO", help="such as org/name")
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="one file, or a GGUF model in parts by any of them (default: what vllm reads)",
    )
    parser.add_argument(
        "--all", action="store_true", help="all files, also the same weights in other formats"
    )
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: main)")
    parser.add_argument("--mmproj", metavar="FILE", help="the model's projector, too")


def _add_ps(commands: Any) -> None:
    parser = _add(
        commands,
        "ps",
        _ps,
        help_text="Show models, ports and room",
        more="Replays the log, so it works beside a live service and after its end. Times are UTC.",
    )
    _add_state(parser)


def _add_logs(commands: Any) -> None:
    parser = _add(commands, "logs", _logs, help_text="Show what a model's server wrote")
    _add_state(parser)
    parser.add_argument("model", metavar="MODEL", help="a name or an alias")
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on with what is written; with --run until that run has ended",
    )
    parser.add_argument(
        "--lines", type=_count, default=50, metavar="N", help="so many lines (default: 50)"
    )
    parser.add_argument("--run", type=_number, metavar="N", help="this run (default: the latest)")


def _add_events(commands: Any) -> None:
    parser = _add(
        commands, "events", _events, help_text="Show the event log", more="Times are UTC."
    )
    _add_state(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is appended")
    parser.add_argument(
        "--after", type=_count, default=0, metavar="SEQ", help="only what comes after this one"
    )
    parser.add_argument("--limit", type=_number, metavar="N", help="at most so many")
    parser.add_argument("--model", metavar="MODEL", help="only of this model, by name or alias")
    parser.add_argument("--run", type=_number, metavar="N", help="only of this run")
    parser.add_argument("--kind", metavar="PREFIX", help="such as run.ready, run. or port")


def _add_archive(commands: Any) -> None:
    parser = _add(
        commands,
        "archive",
        _archive,
        help_text="Begin a new file for an event log, and keep the old one beside it",
        more="No service may own the log just now; a live one has `service.archive()`.",
    )
    _add_state(parser)


def _add_db(commands: Any) -> None:
    text = "Tell or upgrade the schema of an event log"
    db = commands.add_parser("db", help=text, description=f"{text}.")
    actions = db.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    current = _add(
        actions,
        "current",
        _db_current,
        help_text="Tell the schema's revision",
        more="1: not newest.",
    )
    _add_state(current)
    upgrade = _add(
        actions, "upgrade", _db_upgrade, help_text="Bring the schema to this program's revision"
    )
    _add_state(upgrade)


def _count(text: str) -> int:
    return _whole(text, low=0)


def _number(text: str) -> int:
    return _whole(text, low=1)


def _whole(text: str, *, low: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not low <= value <= _MOST_SEQ:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} on")
    return value


# Each command is imported when it runs: `moorage --help` needs no database.


def _demo(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import demo  # noqa: PLC0415

    return demo.run(options, console)


def _fetch(options: argparse.Namespace, console: Console, stop: Flag) -> int:
    from moorage.cli import fetch  # noqa: PLC0415

    return fetch.run(options, console, stop)


def _ps(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import ps  # noqa: PLC0415

    return ps.run(options, console)


def _logs(options: argparse.Namespace, console: Console, stop: Flag) -> int:
    from moorage.cli import logs  # noqa: PLC0415

    return logs.run(options, console, stop)


def _events(options: argparse.Namespace, console: Console, stop: Flag) -> int:
    from moorage.cli import events  # noqa: PLC0415

    return events.run(options, console, stop)


def _archive(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import archive  # noqa: PLC0415

    return archive.run(options, console)


def _db_current(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import db  # noqa: PLC0415

    return db.run_current(options, console)


def _db_upgrade(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import db  # noqa: PLC0415

    return db.run_upgrade(options, console)
