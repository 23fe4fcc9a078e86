"""Questions in SQL: read-only, with a time limit, and of this one log only."""

from __future__ import annotations

import difflib
import re
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from moorage.errors import NotALogError, QueryError
from moorage.log import engine, faults, joined, revisions, views
from moorage.log.files import StateFiles
from moorage.log.owner import look_for_owner
from moorage.log.reading import ReadConnection, find_database
from moorage.log.schema import metadata

Value = str | int | float | bytes | None

_STEPS: Final = 10_000
"""Of SQLite's machine between two looks at the clock; well under a millisecond."""
_MOST_BYTES: Final = 100_000_000
"""Of one value, also of those in between."""
_READS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_PRAGMAS: Final = frozenset(
    {
        "application_id",
        "compile_options",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    }
)
_SETTERS: Final = frozenset({"application_id", "user_version"})
"""Of those, the ones that would change something when they are given a value."""
_MISTAKES: Final = ("", "ERROR", "AUTH", "RANGE", "MISMATCH", "TOOBIG", "MISUSE", "NOLFS")
_MISSING: Final = re.compile(r"no such (table|column): (?:\w+\.)?(\w+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of an answer; `more` says that there are further ones.

    `first` is the first seq of what is there of the log: beyond 1, older segments are missing, and
    views know nothing of what was said in them only.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    more: bool
    first: int = 1


def ask(place: Path, query: str, *, timeout_s: float, limit: int | None) -> Answer:
    """Return what a log answers to one statement that only reads; at most `limit` rows.

    `events` are those of all segments; the views are those of this program, whatever revision the
    log has. Raises QueryError for a
    statement that is wrong, writes or takes too long, and StateError as a LogReader does.
    """
    _check_text(query)
    database = find_database(place)
    deadline = time.monotonic() + timeout_s

    def work(connection: sa.Connection) -> Answer:
        found = revisions.revision(connection, database)
        if found is None:
            raise NotALogError(str(database), "is empty; a service that opens it makes it a log")
        revisions.check_known(found, database)
        with _limited(engine.driver_connection(connection), deadline, timeout_s) as limited:
            return _answer(limited, query, limit)

    first, statements = joined.temporary(database)
    prepare = (*statements, *views.temporary(alive=_owner_alive(database)))
    with closing(ReadConnection(database, prepare=prepare)) as reading:
        return replace(reading.run(work), first=first)


def _check_text(query: str) -> None:
    try:
        query.encode()
    except UnicodeEncodeError:
        raise QueryError("it holds bytes that are no UTF-8") from None
    if "\0" in query:
        raise QueryError("it holds a NUL character")


def _owner_alive(database: Path) -> bool | None:
    # A single file that was copied away says nothing about the service that it came from.
    if database != StateFiles(database.parent).database:
        return None
    return look_for_owner(database).alive


def _answer(database: sqlite3.Connection, query: str, limit: int | None) -> Answer:
    cursor = database.execute(query)
    if cursor.description is None:
        raise QueryError("there is no statement in it")
    columns = tuple(column[0] for column in cursor.description)
    if limit is None:
        return Answer(columns, tuple(cursor), more=False)
    rows = cursor.fetchmany(limit + 1)
    return Answer(columns, tuple(rows[:limit]), more=len(rows) > limit)


class _Watch:
    """Called by SQLite every so many steps; keeps what it was interrupted by."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self.interruption: BaseException | None = None
        self.late = False

    def __call__(self) -> bool:
        # Whatever is raised in here would get lost: sqlite3 only ends the statement.
        try:
            self.late = time.monotonic() > self._deadline
        except BaseException as error:  # noqa: BLE001 - raised again where the statement ends
            self.interruption = error
            return True
        return self.late


@contextmanager
def _limited(
    database: sqlite3.Connection, deadline: float, timeout_s: float
) -> Generator[sqlite3.Connection]:
    """Let a connection only read, and only until the deadline, for as long as the block lasts."""
    watch = _Watch(deadline)
    text_factory = database.text_factory
    database.text_factory = _text
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    database.set_authorizer(_authorize)
    database.set_progress_handler(watch, _STEPS)
    try:
        yield database
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _explained(error, watch, timeout_s) from error
    finally:
        database.set_progress_handler(None, 0)
        database.set_authorizer(None)
        database.text_factory = text_factory


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _authorize(
    action: int, first: str | None, second: str | None, _schema: str | None, _by: str | None
) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        allowed = name in _PRAGMAS and not (second is not None and name in _SETTERS)
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _explained(
    error: sqlite3.Error | sqlite3.Warning, watch: _Watch, timeout_s: float
) -> BaseException:
    if watch.interruption is not None:
        return watch.interruption
    name = faults.error_name(error) if isinstance(error, sqlite3.Error) else ""
    if name == "INTERRUPT":
        # Neither late nor kept: a signal came between two lines of the watch.
        return _too_late(timeout_s) if watch.late else KeyboardInterrupt()
    if name == "AUTH" or str(error).startswith("not authorized"):
        return QueryError("it may only read this log: SELECT, VALUES, WITH or EXPLAIN")
    if name in _MISTAKES:
        return QueryError(f"{error}{_meant(str(error))}")
    return error


def _too_late(timeout_s: float) -> QueryError:
    return QueryError(f"took longer than {timeout_s:g} s; narrow it, or allow more with --timeout")


def _meant(problem: str) -> str:
    """Return a hint at the names that a mistyped one may have meant."""
    found = _MISSING.search(problem)
    if found is None:
        return ""
    tables = {view.name: tuple(view.columns) for view in views.ALL}
    tables |= {name: tuple(table.columns.keys()) for name, table in metadata.tables.items()}
    names = tables if found[1] == "table" else {c for columns in tables.values() for c in columns}
    near = difflib.get_close_matches(found[2], sorted(names), n=3)
    return f"; did you mean {', '.join(near)}?" if near else "; `moorage sql` alone lists the views"
