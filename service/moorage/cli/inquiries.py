"""The commands that ask an event log questions, and how each is written on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Protocol

from moorage.cli.console import Console
from moorage.protocols import Flag


class Add(Protocol):
    """Adds one command with `--json` to the commands and returns its parser."""

    def __call__(  # noqa: D102
        self,
        commands: Any,
        name: str,
        run: Callable[[argparse.Namespace, Console, Flag], int],
        *,
        help_text: str,
        more: str = "",
    ) -> argparse.ArgumentParser: ...


def register(commands: Any, add: Add, add_state: Callable[[Any], None]) -> None:
    """Add the commands; `add_state` gives a command its `--state`."""
    replay = add(
        commands,
        "replay",
        _replay,
        help_text="Show models, ports, order, queue and pins as they were at any point",
        more="Times are UTC.",
    )
    add_state(replay)
    replay.add_argument(
        "--at",
        metavar="SEQ|TIME",
        help="after this event, or at this time (default: the end of the log)",
    )
    why = add(
        commands,
        "why",
        _why,
        help_text="Tell what led to an event, or to what a model is now",
        more="Times are UTC; +N is the time since the entry before it of the same run.",
    )
    add_state(why)
    why.add_argument("what", metavar="SEQ|MODEL", help="an event's number, or a name or alias")
    audit = add(
        commands,
        "audit",
        _audit,
        help_text="Hold the log against processes and ports",
        more="1: something does not agree. Beside a live service it only looks.",
    )
    add_state(audit)
    audit.add_argument(
        "--fix",
        action="store_true",
        help="do what each finding says, when no service owns the state; live servers go on",
    )
    verify = add(
        commands,
        "verify",
        _verify,
        help_text="Check that a log is whole and adds up",
        more="Every hash, every fold, every invariant after every event. 1: a flaw.",
    )
    add_state(verify)
    _register_transfers(commands, add, add_state)


def _register_transfers(commands: Any, add: Add, add_state: Callable[[Any], None]) -> None:
    export = add(
        commands,
        "export",
        _export,
        help_text="Print a log as JSON Lines",
        more="`moorage import` makes the same log of it again, row for row.",
    )
    add_state(export)
    importing = add(
        commands,
        "import",
        _import,
        help_text="Make a log of an export",
        more="Every hash is checked; a folder that holds a log is left alone.",
    )
    add_state(importing)
    importing.add_argument("file", metavar="FILE", help="an export, - for standard input")
    backup = add(
        commands,
        "backup",
        _backup,
        help_text="Copy a log into one new file",
        more="A live service is not held up. Older segments are whole files already.",
    )
    add_state(backup)
    backup.add_argument("path", metavar="PATH", help="the new file")


# Each command is imported when it runs: `moorage --help` needs no database.


def _replay(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import replay  # noqa: PLC0415

    return replay.run(options, console)


def _why(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import why  # noqa: PLC0415

    return why.run(options, console)


def _audit(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import audit  # noqa: PLC0415

    return audit.run(options, console)


def _verify(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import verify  # noqa: PLC0415

    return verify.run(options, console)


def _export(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import transfer  # noqa: PLC0415

    return transfer.run_export(options, console)


def _import(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import transfer  # noqa: PLC0415

    return transfer.run_import(options, console)


def _backup(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import transfer  # noqa: PLC0415

    return transfer.run_backup(options, console)
