"""A log as JSON Lines and back, row for row and hash for hash.

The first line says which log it is and what its first row follows, then comes a line a row, and
the last line says how many there are, so that a cut file is known for one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO, cast

from sqlalchemy.exc import DBAPIError

from moorage.core import chain
from moorage.core.shape import flaw
from moorage.errors import CorruptLogError, StateError
from moorage.log import engine, faults, revisions
from moorage.log.files import StateFiles, companions, make_folder, remove_folders, sync, whole_file
from moorage.log.head import Head
from moorage.log.reader import LogReader
from moorage.log.rows import Row, to_entry, to_json, to_object
from moorage.log.schema import events

FORMAT: Final = 1
_INSERT = engine.compiled(events.insert())
_BATCH_ROWS = 1_000
_MOST = (1 << 63) - 1
_LINE_CHARS = 64 << 20
"""No row is as long as this; /dev/zero is one line without end."""
_HEADER = frozenset({"moorage", "log_id", "after", "after_hash"})
_END = frozenset({"end", "hash"})
_FIELDS = set(Row._fields)
_ROWS = (_FIELDS, _FIELDS - {"data"} | {"data_text"})
_NUMBERS = ("run", "port", "pid", "cause")


def exported(reader: LogReader) -> Iterator[dict[str, Any]]:
    """Yield a log as JSON-ready objects, one a line; what is appended meanwhile is left out."""
    before, end = reader.before, reader.head
    yield {
        "moorage": FORMAT,
        "log_id": reader.log_id,
        "after": before.seq,
        "after_hash": before.hash,
    }
    last = before
    for row in reader.rows(before.seq, limit=end - before.seq):
        yield _object(row)
        last = Head(row.seq, row.hash)
    yield {"end": last.seq, "hash": last.hash}


def _object(row: Row) -> dict[str, Any]:
    found = row._asdict()
    text = found.pop("data")
    if to_json(value := to_object(text)) == text:
        return found | {"data": value}
    return found | {"data_text": text}  # as another program wrote it: the hash is of the text


def lines_of(file: TextIO, source: str) -> Iterator[str]:
    """Yield the lines of an export. Raises StateError for one that goes on and on."""
    number = 0
    while line := file.readline(_LINE_CHARS):
        number += 1
        if len(line) == _LINE_CHARS:
            problem = f"line {number} is longer than {_LINE_CHARS >> 20} MB: this is no export"
            raise StateError(source, problem)
        yield line


def imported(lines: Iterable[str], source: str, state: Path) -> int:
    """Make a log of an export in a folder that holds none; return its number of rows.

    Every row is checked against its hash. Raises StateError that names the line; then there is
    no log and nothing is left behind. `source` names the export for messages.
    """
    folder = state.expanduser().absolute()
    made = make_folder(folder)
    files = StateFiles(folder)
    try:
        _check_empty(files)
        for each in made:
            sync(each.parent)
        with whole_file(files.database) as part:
            return _write(part, _Lines(lines, source))
    except (sqlite3.Error, DBAPIError) as error:
        raise faults.on_open(files.database, error) from error
    except OSError as error:
        raise StateError(str(folder), f"cannot be written: {error.strerror}") from error
    finally:
        remove_folders(made)  # keeps what is not empty


def _check_empty(files: StateFiles) -> None:
    for path in (files.database, *companions(files.database), files.head, files.archive):
        if path.exists():
            raise StateError(str(files.folder), f"holds {path.name} already; name a new folder")


def _write(part: Path, lines: _Lines) -> int:
    connection = engine.connect_writer(part, mode="rw", busy_timeout_s=0.0)
    try:
        revisions.upgrade(connection, log_id=lines.log_id)
        database = engine.driver_connection(connection)
        database.execute("BEGIN IMMEDIATE")
        for batch in lines.batches():
            database.executemany(_INSERT, batch)
        database.execute("COMMIT")
    finally:
        engine.disconnect(connection)
    return lines.count


class _Lines:
    """The lines of an export, checked as they come."""

    def __init__(self, lines: Iterable[str], source: str) -> None:
        self._lines = iter(lines)
        self._source = source
        self._number = 0
        self._ended = False
        self.count = 0
        header = self._next()
        if header is None or header.keys() != _HEADER or header["moorage"] != FORMAT:
            raise self._problem(f"is no header of an export of format {FORMAT}")
        self.log_id = self._text(header, "log_id")
        if not self.log_id.isascii() or not self.log_id.isalnum():
            raise self._problem("has a log_id that is none")
        self._before = Head(self._whole(header, "after"), self._text(header, "after_hash"))
        if not self._before.seq and self._before.hash != chain.genesis(self.log_id):
            raise self._problem("has another beginning than its log_id says")

    def batches(self) -> Iterator[list[Row]]:
        """Yield all rows, some at a time; raises StateError when the end is missing."""
        batch: list[Row] = []
        while (found := self._next()) is not None:
            if found.keys() == _END:
                self._check_end(found)
                break
            batch.append(self._row(found))
            if len(batch) == _BATCH_ROWS:
                yield batch
                batch = []
        if not self._ended:
            raise StateError(self._source, f"is cut short after line {self._number - 1}")
        yield batch

    def _check_end(self, found: Mapping[str, Any]) -> None:
        if (found["end"], found["hash"]) != (self._before.seq, self._before.hash):
            raise self._problem(f"says that the log ends elsewhere than at row {self._before.seq}")
        self._ended = True
        if self._next() is not None:
            raise self._problem("comes after the end")

    def _row(self, found: Mapping[str, Any]) -> Row:
        if set(found) not in _ROWS:
            raise self._problem("is no row")
        run, port, pid, cause = (self._maybe_whole(found, name) for name in _NUMBERS)
        row = Row(
            seq=self._whole(found, "seq"),
            at=self._text(found, "at"),
            kind=self._text(found, "kind"),
            version=self._whole(found, "version"),
            model=None if found["model"] is None else self._text(found, "model"),
            run=run,
            port=port,
            pid=pid,
            cause=cause,
            data=self._data(found),
            hash=self._text(found, "hash"),
        )
        if row.seq != self._before.seq + 1:
            raise self._problem(f"has row {row.seq} after row {self._before.seq}")
        try:
            fits = chain.link(self._before.hash, row[:-1]) == row.hash
            wrong = flaw(to_entry(row, self._source))
        except CorruptLogError as error:
            raise self._problem(f"cannot be understood: {error.problem}") from error
        if wrong:
            raise self._problem(wrong)
        if not fits:
            raise self._problem(f"was changed: the hash of row {row.seq} does not fit")
        self._before = Head(row.seq, row.hash)
        self.count += 1
        return row

    def _data(self, found: Mapping[str, Any]) -> str:
        if "data_text" in found:
            return self._text(found, "data_text")
        data = found["data"]
        if not isinstance(data, dict):
            raise self._problem("has no data")
        try:
            return to_json(cast("dict[str, Any]", data))
        except ValueError as error:
            raise self._problem(f"has data that no log holds: {error}") from error

    def _text(self, found: Mapping[str, Any], name: str) -> str:
        value = found[name]
        if not isinstance(value, str):
            raise self._problem(f"has no {name}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self._problem(f"has a {name} that no log holds") from error
        return value

    def _maybe_whole(self, found: Mapping[str, Any], name: str) -> int | None:
        return None if found[name] is None else self._whole(found, name)

    def _whole(self, found: Mapping[str, Any], name: str) -> int:
        value = found[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
            raise self._problem(f"has no {name}")
        return value

    def _next(self) -> dict[str, Any] | None:
        try:
            line = next(self._lines, None)
            self._number += 1
            return None if line is None else to_object(line)
        except ValueError as error:
            raise self._problem(f"is no JSON object: {error}") from error

    def _problem(self, text: str) -> StateError:
        return StateError(self._source, f"line {self._number} {text}")
