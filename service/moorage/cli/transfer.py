"""`moorage export`, `moorage import` and `moorage backup`: logs that go elsewhere and come back."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from moorage.cli import source, values
from moorage.cli.console import Console
from moorage.errors import StateError
from moorage.log.backup import backup
from moorage.log.reader import LogReader
from moorage.log.transfer import exported, imported, lines_of


def run_export(options: argparse.Namespace, console: Console) -> int:
    """Print a log as JSON Lines, with or without `--json`."""
    with source.reading(options.state) as reader:
        for found in exported(reader):
            console.raw(json.dumps(found, allow_nan=False, separators=(",", ":")))
    return 0


def run_import(options: argparse.Namespace, console: Console) -> int:
    """Make a state folder of an export; `-` reads standard input."""
    state = source.place(options.state)
    if options.file == "-":
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]
        count = imported(lines_of(sys.stdin, "standard input"), "standard input", state)
    else:
        try:
            file = Path(options.file).open(encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            raise StateError(options.file, f"cannot be read: {error.strerror}") from error
        with file:
            count = imported(lines_of(file, options.file), options.file, state)
    console.object({"object": "import", "rows": count, "state": str(state)})
    console.line(f"{count} events are now in {state}")
    return 0


def run_backup(options: argparse.Namespace, console: Console) -> int:
    """Copy a log, also a live one, into one new file."""
    console.progress("copying ...")
    try:
        size = backup(source.place(options.state), Path(options.path))
    finally:
        console.progress("")
    with LogReader(options.path) as reader:
        head = reader.head
    console.object({"object": "backup", "path": options.path, "bytes": size, "head": head})
    console.line(f"{options.path}: {head} events, {values.size(size)}")
    return 0
