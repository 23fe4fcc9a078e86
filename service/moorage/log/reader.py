"""Reading a log without owning it: beside its owner, after it, on a copy, in a read-only folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from moorage.core.events import Entry
from moorage.errors import CorruptLogError, NotALogError
from moorage.log import engine, revisions
from moorage.log.reading import ReadConnection, find_database
from moorage.log.rows import Row, to_entry, to_object
from moorage.log.schema import events, snapshots
from moorage.protocols import Flag, Snapshot

_PAGE_ROWS = 1000
_HEAD = sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0))
_PAGE = engine.compiled(
    sa.select(*events.c).where(events.c.seq > sa.bindparam("after")).order_by(events.c.seq)
)
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events to read; None does not restrict.

    `kind` is a kind such as `run.ready` or a beginning such as `run.` or `run`.
    """

    kind: str | None = None
    model: str | None = None
    run: int | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return what a row has to meet."""
        found: list[sa.ColumnElement[bool]] = []
        if self.kind is not None:
            found.append(events.c.kind.between(self.kind, self.kind + _LAST_CHARACTER))
        if self.model is not None:
            found.append(events.c.model == self.model)
        if self.run is not None:
            found.append(events.c.run == self.run)
        return found


_ALL = Filter()


class LogReader:
    """Reads a log page by page and changes nothing in it. Used by one thread at a time.

    Takes a state folder or the path of a database. Raises StateError when there is no log,
    NotALogError, NewerSchemaError, or CorruptLogError when it cannot be understood.
    """

    def __init__(self, path_or_state: Path | str) -> None:
        self._path = find_database(Path(path_or_state))
        self._connection = ReadConnection(self._path)
        try:
            self._log_id = self._connection.run(self._identify)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The database's path."""
        return str(self._path)

    @property
    def log_id(self) -> str:
        """The id given when the log was created."""
        return self._log_id

    @property
    def head(self) -> int:
        """The seq of the last durable entry now, 0 when there is none."""
        found: int = self._connection.run(lambda reading: reading.execute(_HEAD).scalar_one())
        return found

    def rows(
        self, after: int = 0, *, limit: int | None = None, only: Filter = _ALL
    ) -> Iterator[Row]:
        """Yield rows as they are stored, with `seq > after` in order."""
        left = limit
        while left is None or left > 0:
            wanted = _PAGE_ROWS if left is None else min(left, _PAGE_ROWS)
            page = self._page(after, wanted, only)
            yield from page
            if len(page) < wanted:
                return
            after = page[-1].seq
            left = None if left is None else left - len(page)

    def read(
        self, after: int = 0, *, limit: int | None = None, only: Filter = _ALL
    ) -> Iterator[Entry]:
        """Yield entries with `seq > after` in order; holds no read open between pages."""
        path, gapless = self.path, only == _ALL
        for row in self.rows(after, limit=limit, only=only):
            if gapless and row.seq != after + 1:
                raise CorruptLogError(path, after + 1, "is missing")
            after = row.seq
            yield to_entry(row, path)

    def entry(self, seq: int) -> Entry | None:
        """Return one entry, None when there is none of that seq."""
        row = next(self.rows(seq - 1, limit=1), None)
        return to_entry(row, self.path) if row is not None and row.seq == seq else None

    def last(self, only: Filter) -> Entry | None:
        """Return the last entry that the filter picks, None when there is none."""
        seq = sa.select(sa.func.max(events.c.seq)).where(*only.conditions())
        found = self._connection.run(lambda reading: reading.execute(seq).scalar_one())
        return None if found is None else self.entry(found)

    def seq_at(self, at: str) -> int:
        """Return the seq of the last entry before the first one that is later than this time."""
        later = sa.select(sa.func.min(events.c.seq)).where(events.c.at > at)
        found = self._connection.run(lambda reading: reading.execute(later).scalar_one())
        return self.head if found is None else found - 1

    def snapshot(self, fold_version: int, *, until: int | None = None) -> Snapshot | None:
        """Return the newest readable snapshot of this fold version, not later than `until`."""
        query = (
            sa.select(snapshots.c.seq, snapshots.c.state)
            .join(events, (events.c.seq == snapshots.c.seq) & (events.c.hash == snapshots.c.hash))
            .where(snapshots.c.fold_version == fold_version)
            .order_by(snapshots.c.seq.desc())
        )
        if until is not None:
            query = query.where(snapshots.c.seq <= until)
        for seq, state in self._connection.run(lambda reading: reading.execute(query).all()):
            try:
                return Snapshot(seq, fold_version, to_object(state))
            except ValueError:
                continue  # a cache that cannot be read is no cache: try the older one
        return None

    def follow(
        self, after: int, stop: Flag, *, only: Filter = _ALL, poll_s: float = 0.1
    ) -> Iterator[Entry]:
        """Yield what is there and then what comes, until `stop` is set.

        Raises StateError when the database was moved or deleted meanwhile.
        """
        seen: tuple[int, ...] = ()
        while not stop.is_set():
            change = self._connection.run(self._change)
            if change == seen:
                stop.wait(poll_s)
                continue
            for entry in self.read(after, only=only):
                after = entry.seq
                yield entry
                if stop.is_set():
                    return
            seen = change
            after = max(after, change[-1])  # what was not picked need not be looked at again

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _page(self, after: int, rows: int, only: Filter) -> list[Row]:
        if only == _ALL:  # a replay reads all there is: a third of the time without SQLAlchemy
            return self._connection.run(
                lambda c: list(
                    map(
                        Row._make,
                        engine.driver_connection(c).execute(f"{_PAGE} LIMIT ?", (after, rows)),
                    )
                )
            )
        query = (
            sa.select(*events.c)
            .where(events.c.seq > after, *only.conditions())
            .order_by(events.c.seq)
            .limit(rows)
        )
        return self._connection.run(lambda c: [Row._make(row) for row in c.execute(query)])

    def _identify(self, connection: sa.Connection) -> str:
        found = revisions.revision(connection, self._path)
        if found is None:
            raise NotALogError(self.path, "is empty; a service that opens it makes it a log")
        revisions.check_known(found, self._path)  # every older one has the same tables to read
        return revisions.log_id(connection)

    def _change(self, connection: sa.Connection) -> tuple[int, int, int]:
        """Return what differs after another connection has committed; the last is the head."""
        version: int = connection.exec_driver_sql("PRAGMA data_version").scalar_one()
        return self._connection.generation, version, connection.execute(_HEAD).scalar_one()
