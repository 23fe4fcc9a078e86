"""Reading one database of a log: the live one or an older segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from moorage.errors import NotALogError
from moorage.log import engine, revisions, segments
from moorage.log.head import Head
from moorage.log.reading import ReadConnection
from moorage.log.rows import Row, to_object, to_rows, to_snapshots
from moorage.log.schema import events, snapshots, state_bytes
from moorage.protocols import Snapshot

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


ALL = Filter()


class Segment:
    """One database, changed in nothing. Raises as LogReader does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = ReadConnection(path)
        try:
            self.log_id, self.start = self._connection.run(self._identify)
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> int:
        """The seq of the last row, 0 when there is none."""
        found: int = self._connection.run(lambda reading: reading.execute(_HEAD).scalar_one())
        return found

    @property
    def moved(self) -> bool:
        """Whether the path is no longer that of the database that was opened."""
        return self._connection.moved

    def page(self, after: int, rows: int, only: Filter) -> list[Row]:
        """Return the first rows with `seq > after`, at most so many."""
        if only == ALL:  # a replay reads all there is: a third of the time without SQLAlchemy
            page = f"{_PAGE} LIMIT ?", (after, rows)
            return self._connection.run(
                lambda c: to_rows(engine.driver_connection(c).execute(*page))
            )
        query = (
            sa.select(*events.c)
            .where(events.c.seq > after, *only.conditions())
            .order_by(events.c.seq)
            .limit(rows)
        )
        return self._connection.run(lambda c: [Row._make(row) for row in c.execute(query)])

    def last(self, only: Filter) -> int | None:
        """Return the seq of the last row that the filter picks."""
        return self._scalar(sa.select(sa.func.max(events.c.seq)).where(*only.conditions()))

    def first_later(self, at: str) -> int | None:
        """Return the seq of the first row that is later than a time."""
        return self._scalar(sa.select(sa.func.min(events.c.seq)).where(events.c.at > at))

    def snapshot(self, fold_version: int, until: int | None) -> Snapshot | None:
        """Return the newest readable snapshot, the base state included, not later than `until`."""
        return next(self._snapshots(fold_version, until), None) or self._base(fold_version, until)

    def change(self) -> tuple[int, int, int]:
        """Return what differs after another connection has committed; the last is the head."""
        return self._connection.run(self._change)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _scalar(self, query: sa.Select[Any]) -> int | None:
        found: int | None = self._connection.run(lambda c: c.execute(query).scalar_one())
        return found

    def _snapshots(self, fold_version: int, until: int | None) -> Iterator[Snapshot]:
        query = (
            sa.select(snapshots.c.seq, state_bytes)
            .join(events, (events.c.seq == snapshots.c.seq) & (events.c.hash == snapshots.c.hash))
            .where(snapshots.c.fold_version == fold_version)
            .order_by(snapshots.c.seq.desc())
        )
        if until is not None:
            query = query.where(snapshots.c.seq <= until)
        found = self._connection.run(lambda reading: reading.execute(query).all())
        return to_snapshots(found, fold_version)

    def _base(self, fold_version: int, until: int | None) -> Snapshot | None:
        before: Head = self.start.before
        if not before.seq or (until is not None and until < before.seq):
            return None
        try:
            event = to_object(self.page(before.seq, 1, ALL)[0].data)
            known = event["fold_version"] == fold_version
            return Snapshot(before.seq, fold_version, event["base"]) if known else None
        except (LookupError, ValueError, TypeError):
            return None

    def _identify(self, connection: sa.Connection) -> tuple[str, segments.Start]:
        found = revisions.revision(connection, self.path)
        if found is None:
            raise NotALogError(str(self.path), "is empty; a service that opens it makes it a log")
        revisions.check_known(found, self.path)  # every older one has the same tables to read
        log_id = revisions.log_id(connection, self.path)
        first = connection.exec_driver_sql(segments.FIRST).first()
        return log_id, segments.start(tuple(first) if first else None, log_id, self.path)

    def _change(self, connection: sa.Connection) -> tuple[int, int, int]:
        version: int = connection.exec_driver_sql("PRAGMA data_version").scalar_one()
        return self._connection.generation, version, connection.execute(_HEAD).scalar_one()
