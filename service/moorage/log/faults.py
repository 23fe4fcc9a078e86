"""What SQLite reports, as our errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from moorage.errors import CorruptLogError, LogUnavailableError, NotALogError, StateError

# By the first word of the error's name after SQLITE_.
_UNAVAILABLE = {
    "FULL": "the disk is full",
    "READONLY": "the database is read-only",
    "BUSY": "another program holds a lock on the database",
    "LOCKED": "another program holds a lock on the database",
    "PROTOCOL": "another program holds a lock on the database",
    "IOERR": "the disk reports an error",
    "CANTOPEN": "the database cannot be opened",
    "PERM": "this user may not",
    "NOMEM": "out of memory",
}
# "ERROR": it holds not the tables and columns it should; "": text that is no UTF-8.
_DAMAGED = ("CORRUPT", "ERROR", "CONSTRAINT", "MISMATCH", "TOOBIG", "")


RAISED = (sqlite3.Error, DBAPIError, UnicodeDecodeError)
"""What reading raises; the last one where the text of an error holds what is damaged itself."""
Raised = sqlite3.Error | DBAPIError | UnicodeDecodeError


def sqlite_error(error: Raised) -> BaseException:
    """Return the driver's own error."""
    return (error.orig or error) if isinstance(error, DBAPIError) else error


def error_name(error: Raised) -> str:
    """Return the name of an SQLite error without `SQLITE_`, such as `IOERR_FSYNC`, else ''."""
    name: str = getattr(sqlite_error(error), "sqlite_errorname", "")
    return name.removeprefix("SQLITE_")


def needs_reopening(error: sqlite3.Error | DBAPIError) -> bool:
    """Return whether the connection may no longer know what is on the disk."""
    return error_name(error).startswith(("IOERR", "CORRUPT", "NOTADB", "CANTOPEN"))


def on_append(path: Path, error: sqlite3.Error | DBAPIError) -> Exception:
    """Translate what went wrong while appending."""
    name = error_name(error)
    why = _UNAVAILABLE.get(name.partition("_")[0])
    if why is not None:
        return LogUnavailableError(str(path), f"{why} ({name}: {error})")
    if name.startswith(("CORRUPT", "NOTADB")):
        return CorruptLogError(str(path), 0, f"the database is damaged ({error})")
    return RuntimeError(
        f"{path}: SQLite refused an append ({name or type(error).__name__}: {error})"
    )


def on_open(path: Path, error: Raised) -> Exception:
    """Translate what went wrong while opening or reading."""
    name = error_name(error)
    base = name.partition("_")[0]
    detail = f"{name or 'error'}: {sqlite_error(error)}"
    if base == "NOTADB":
        return NotALogError(str(path), "is no database, or an encrypted one")
    if base in _DAMAGED:
        return CorruptLogError(str(path), 0, f"the database is damaged ({detail})")
    if base in ("CANTOPEN", "PERM", "READONLY", "AUTH"):
        return StateError(str(path), f"cannot be opened ({detail})")
    if base in _UNAVAILABLE:
        return LogUnavailableError(str(path), f"{_UNAVAILABLE[base]} ({detail})")
    return RuntimeError(f"{path}: SQLite failed ({detail})")
