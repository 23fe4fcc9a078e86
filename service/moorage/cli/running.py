"""Reads the command line, runs one command and turns how it ended into an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from moorage.cli import parser
from moorage.cli.console import Console, standard
from moorage.cli.signals import EndedBySignal, Interrupt
from moorage.errors import MoorageError
from moorage.protocols import Flag

FINE: Final = 0
FINDING: Final = 1
COULD_NOT_RUN: Final = 2
INTERRUPTED: Final = 130
_SIGNALLED: Final = 128
_MOST_CHARS: Final = 2_000
"""Of a refusal: what cannot be meant may be quoted in it, and be of any length."""


def main(arguments: Sequence[str] | None = None, *, stop: Flag | None = None) -> int:
    """Run one command and return its exit status; `stop` ends a command that follows.

    0 fine, 1 a finding, 2 it could not run (one line on standard error), 130 after Ctrl-C.
    """
    console = standard(as_json=False)
    interrupt = Interrupt()
    try:
        with interrupt.heard():
            status = _run(sys.argv[1:] if arguments is None else arguments, stop or interrupt)
            console.flush()
    except KeyboardInterrupt:
        return _interrupted(console)
    except EndedBySignal as ended:
        _interrupted(console)
        return _SIGNALLED + ended.number
    except BrokenPipeError:
        _discard_output()
        return FINE
    except (MoorageError, OSError) as error:
        return _could_not_run(console, error)
    return INTERRUPTED if interrupt.is_set() else status


def _run(arguments: Sequence[str], stop: Flag) -> int:
    try:
        options = parser.build().parse_args(arguments)
    except SystemExit as asked:  # --help and --version
        return asked.code if isinstance(asked.code, int) else FINE
    console = standard(as_json=options.json)
    return parser.command(options)(options, console, stop)


def _could_not_run(console: Console, error: Exception) -> int:
    text = " ".join(str(error).split())
    text = text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
    console.problem(text if isinstance(error, parser.UsageError) else f"moorage: {text}")
    try:
        console.flush()
    except OSError:
        _discard_output()
    return COULD_NOT_RUN


def _interrupted(console: Console) -> int:
    try:
        console.flush()
    except OSError:
        _discard_output()
    return INTERRUPTED


def _discard_output() -> None:
    """Let the interpreter flush what is left to nowhere: the reader is gone or the disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
