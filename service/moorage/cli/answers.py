"""The commands that answer in SQL and in a picture, and how each is written on the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from moorage.cli.console import Console
from moorage.cli.inquiries import Add
from moorage.protocols import Flag


def register(commands: Any, add: Add, add_state: Callable[[Any], None]) -> None:
    """Add the commands; `add_state` gives a command its `--state`."""
    _add_sql(commands, add, add_state)
    _add_timeline(commands, add, add_state)


def _add_sql(commands: Any, add: Add, add_state: Callable[[Any], None]) -> None:
    sql = add(
        commands,
        "sql",
        _sql,
        help_text="Ask the event log a question in SQL",
        more="Reads only, also beside a live service, on a copy and in a read-only folder."
        " Without a query: what there is to ask.",
    )
    add_state(sql)
    sql.add_argument(
        "query",
        metavar="QUERY",
        nargs="?",
        help="one statement of SQLite's, @NAME for one that is at hand, - for standard input",
    )
    sql.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="give up after this time (default: 10)",
    )
    sql.add_argument(
        "--limit",
        type=_limit,
        metavar="N",
        help="at most so many rows, 0 for all (default: 1000; with --json all)",
    )
    sql.add_argument(
        "--datasette",
        action="store_true",
        help="print a configuration for Datasette, with the statements at hand",
    )


def _add_timeline(commands: Any, add: Add, add_state: Callable[[Any], None]) -> None:
    timeline = add(
        commands,
        "timeline",
        _timeline,
        help_text="Draw models and ports over time, as one HTML file",
        more="Times are UTC.",
    )
    add_state(timeline)
    timeline.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="moorage-timeline.html",
        help="where to write it (default: moorage-timeline.html)",
    )
    timeline.add_argument(
        "--from", dest="begin", metavar="TIME", help="leave out what was over before"
    )
    timeline.add_argument("--to", dest="end", metavar="TIME", help="leave out what came after")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


# Each command is imported when it runs: `moorage --help` needs no database.


def _sql(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import sql  # noqa: PLC0415

    return sql.run(options, console)


def _timeline(options: argparse.Namespace, console: Console, _stop: Flag) -> int:
    from moorage.cli import timeline  # noqa: PLC0415

    return timeline.run(options, console)
