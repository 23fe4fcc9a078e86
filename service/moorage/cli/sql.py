"""`moorage sql`: answers from the log, as a table or as JSON."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from moorage.cli import source
from moorage.cli.console import Console, harmless
from moorage.errors import QueryError
from moorage.log import canned, questions, views
from moorage.log.reading import find_database

_ROWS: Final = 1000
_GAP_COLUMNS: Final = 2
_EXAMPLES: Final = (
    "moorage sql @leaked-ports",
    "moorage sql 'SELECT * FROM loads ORDER BY p95_s DESC'",
    "moorage sql \"SELECT run, outcome, error FROM runs WHERE outcome LIKE 'failed%'\"",
    "moorage sql \"SELECT at, data ->> 'reason' AS why FROM events WHERE kind = 'run.draining'\"",
)


def run(options: argparse.Namespace, console: Console) -> int:
    """Print what a query answers; without one, what there is to ask."""
    if options.datasette:
        print_datasette(options, console)
        return 0
    query = _query(options.query)
    if query is None:
        _print_help(console)
        return 0
    limit = options.limit if options.limit is not None else 0 if console.as_json else _ROWS
    answer = questions.ask(
        source.place(options.state), query, timeout_s=options.timeout, limit=limit or None
    )
    if console.as_json:
        _print_objects(console, answer)
    else:
        _print_rows(console, answer)
    if answer.first > 1:
        console.flush()
        console.problem(
            f"older segments are missing: the answer is of what event {answer.first} and later "
            "ones say, and leaves out runs and models that began before"
        )
    if answer.more:
        console.flush()
        console.problem(f"there are more than these {limit} rows: --limit 0 shows all")
    return 0


def print_datasette(options: argparse.Namespace, console: Console) -> None:
    """Print Datasette's metadata for the database that a command was told to look at."""
    database = find_database(source.place(options.state))
    metadata = canned.datasette(database.stem)
    console.object(metadata)
    console.line(json.dumps(metadata, indent=2))


def _query(given: str | None) -> str | None:
    """Return the statement to run, None when there is none and a person may want help."""
    if given is None and sys.stdin.isatty():
        return None
    text = _piped() if given in (None, "-") else str(given)
    if not text.strip():
        return None if given is None else text
    return _at_hand(text[1:].strip()) if text.startswith("@") else text


def _piped() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise QueryError("it holds bytes that are no UTF-8") from None


def _at_hand(name: str) -> str:
    queries = {one.name: one.query for one in canned.ALL}
    if name not in queries:
        near = difflib.get_close_matches(name, queries, n=3) or sorted(queries)
        raise QueryError(f"no statement called @{name} is at hand; there is {', '.join(near)}")
    return queries[name]


# --- answers ---


def _print_objects(console: Console, answer: questions.Answer) -> None:
    names = _distinct(answer.columns)
    for row in answer.rows:
        console.object(dict(zip(names, map(_json, row), strict=True)))


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return the names with `_2` and so on where one comes again: JSON would drop the first."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _json(value: questions.Value) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _print_rows(console: Console, answer: questions.Answer) -> None:
    if not answer.rows:
        console.line("no row")
        return
    head = [harmless(column) for column in answer.columns]
    rows = [[_cell(value) for value in row] for row in answer.rows]
    if _is_too_wide(head, rows):
        _print_records(console, head, rows)
    else:
        console.table(head, rows)


def _cell(value: questions.Value) -> str:
    if value is None:
        return "-"
    return f"x'{value.hex()}'" if isinstance(value, bytes) else harmless(str(value))


def _is_too_wide(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a terminal would break the table's lines. A file takes any width."""
    if not sys.stdout.isatty():
        return False
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    needed = sum(widths) + _GAP_COLUMNS * (len(widths) - 1)
    return needed > shutil.get_terminal_size().columns


def _print_records(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a row as a block of lines, one a column."""
    width = max(map(len, head))
    for number, row in enumerate(rows, 1):
        console.line(console.paint(f"row {number}", "bold"))
        for name, cell in zip(head, row, strict=True):
            console.line(f"  {name:<{width}}  {cell}")


# --- what there is to ask ---


def _print_help(console: Console) -> None:
    for view in views.ALL:
        console.line(console.paint(view.name, "bold"))
        console.line(f"  {view.says}")
        console.table(("COLUMN", ""), list(view.columns.items()), indent="  ")
        console.line()
        for column, says in view.columns.items():
            console.object({"view": view.name, "column": column, "says": says})
    for line in _more():
        console.line(line)


def _more() -> Iterator[str]:
    yield "The log itself is the table `events`: seq, at, kind, version, model, run, port, pid,"
    yield "cause, data (JSON), hash. Times are UTC text, which sorts as it should."
    yield ""
    yield "At hand:"
    width = max(len(one.name) for one in canned.ALL)
    for one in canned.ALL:
        yield f"  @{one.name:<{width}}  {one.says}"
    yield ""
    yield "Examples:"
    for example in _EXAMPLES:
        yield f"  {example}"
