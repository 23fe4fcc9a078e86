"""An event log in memory, with faults on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from moorage.core import chain
from moorage.core.events import Entry, LogContinued
from moorage.errors import LogUnavailableError
from moorage.log.rows import Row, to_entry, to_json, to_object, to_row
from moorage.protocols import Snapshot

_SNAPSHOTS_KEPT = 2


@dataclass(slots=True)
class MemoryStorage:
    """What outlives a crash of its owner: rows, and snapshots as (seq, fold version, JSON)."""

    rows: list[Row] = field(default_factory=list[Row])
    snapshots: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])


class MemoryLog:
    """The twin of SqliteLog: the same rows, hashes and errors, kept in memory.

    Set `unavailable` to a reason and every append raises LogUnavailableError, as with a full
    disk, until it is None again. `fail_next` and `crash_next` are for one append. After a
    crash, `reopened` gives what a new process would find.
    """

    def __init__(
        self,
        log_id: str = "00000000000000aa",
        *,
        path: str = "memory",
        storage: MemoryStorage | None = None,
    ) -> None:
        self._log_id = log_id
        self._path = path
        self._storage = storage or MemoryStorage()
        self._closed = False
        self._failure: BaseException | None = None
        self._fails_committed = False
        self._crashes = False
        self.unavailable: str | None = None

    @property
    def log_id(self) -> str:
        """The id given at construction."""
        return self._log_id

    @property
    def path(self) -> str:
        """A name for messages."""
        return self._path

    @property
    def head(self) -> int:
        """The seq of the last durable entry."""
        return len(self._storage.rows)

    @property
    def head_hash(self) -> str:
        """The hash of that entry's row."""
        return self._storage.rows[-1].hash if self._storage.rows else chain.genesis(self._log_id)

    @property
    def segment(self) -> int:
        """The number of the live segment."""
        return 1 + sum(row.kind == LogContinued.kind for row in self._storage.rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """What is stored, as the table `events` would hold it."""
        return tuple(self._storage.rows)

    def fail_next(self, error: BaseException | None = None) -> None:
        """Make the next append raise before anything is written; LogUnavailableError without one.

        The append after it works again.
        """
        self._failure = error or LogUnavailableError(self._path, "made to fail")
        self._fails_committed = self._crashes = False

    def crash_next(self, error: BaseException, *, committed: bool) -> None:
        """Make the next append raise `error`, when `committed` only after all is durable.

        The log is unusable from then on, as that of a killed process; go on with `reopened`.
        """
        self._failure = error
        self._fails_committed = committed
        self._crashes = True

    def reopened(self) -> MemoryLog:
        """Close this log and return another on the same storage."""
        self.close()
        return MemoryLog(self._log_id, path=self._path, storage=self._storage)

    def append(self, entries: Sequence[Entry], *, snapshot: Snapshot | None = None) -> None:
        """Store all entries, or none; see EventLog."""
        self._check_usable()
        rows = self._rows_of(entries)
        if rows or snapshot is not None:  # nothing to write needs no disk
            self._raise_if_due(after_commit=False)
        kept = self._snapshots_with(snapshot, len(self._storage.rows) + len(rows))
        self._storage.rows.extend(rows)
        self._storage.snapshots = kept
        self._raise_if_due(after_commit=True)

    def archive(self, entry: Entry) -> str:
        """Begin a new segment, which has no snapshots; all rows are kept in one list."""
        self.append([entry])
        self._storage.snapshots = []
        return self._path

    def read(self, after: int = 0, *, limit: int | None = None) -> Iterator[Entry]:
        """Yield entries in order; see EventLog."""
        last = None if limit is None else after + limit
        while after < min(self.head if last is None else last, self.head):
            self._check_usable()
            yield to_entry(self._storage.rows[after], self._path)
            after += 1

    def tidy(self) -> str:
        """Have nothing to do; see EventLog."""
        self._check_usable()
        return ""

    def snapshot(self, fold_version: int) -> Snapshot | None:
        """Return the newest snapshot of this fold version."""
        self._check_usable()
        for seq, version, state in reversed(self._storage.snapshots):
            if version == fold_version:
                return Snapshot(seq, version, to_object(state))
        return None

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._closed = True

    def _first(self) -> int:
        """Return the seq of the live segment's first row."""
        continued = (r.seq for r in reversed(self._storage.rows) if r.kind == LogContinued.kind)
        return next(continued, 1)

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(f"{self._path}: the log is closed")

    def _rows_of(self, entries: Sequence[Entry]) -> list[Row]:
        rows: list[Row] = []
        stored = self._storage.rows
        seq = len(stored)
        previous = stored[-1].hash if stored else chain.genesis(self._log_id)
        for entry in entries:
            seq += 1
            if entry.seq != seq:
                raise RuntimeError(f"{self._path}: append of row {entry.seq}, the next is {seq}")
            rows.append(to_row(entry, previous))
            previous = rows[-1].hash
        return rows

    def _snapshots_with(self, snapshot: Snapshot | None, head: int) -> list[tuple[int, int, str]]:
        kept = self._storage.snapshots
        if snapshot is None:
            return kept
        if not self._first() <= snapshot.seq <= head:
            raise RuntimeError(
                f"{self._path}: a snapshot of row {snapshot.seq}, which is not there"
            )
        others = [
            each for each in kept if each[0] != snapshot.seq and each[1] == snapshot.fold_version
        ]
        added = (snapshot.seq, snapshot.fold_version, to_json(snapshot.state))
        return sorted([*others, added])[-_SNAPSHOTS_KEPT:]

    def _raise_if_due(self, *, after_commit: bool) -> None:
        if self.unavailable is not None and not after_commit:
            raise LogUnavailableError(self._path, self.unavailable)
        failure = self._failure
        if failure is None or after_commit is not self._fails_committed:
            return
        self._failure = None
        self._closed = self._crashes
        raise failure
