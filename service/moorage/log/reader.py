"""Reading a log without owning it: beside its owner, after it, on a copy, in a read-only folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from moorage.core.events import Entry
from moorage.errors import CorruptLogError, StateError
from moorage.log import segments
from moorage.log.head import Head
from moorage.log.reading import find_database
from moorage.log.rows import PAGE_ROWS, Row, to_entry
from moorage.log.segment import ALL, Filter, Segment
from moorage.protocols import Flag, Snapshot

__all__ = ["Filter", "LogReader"]

_Result = TypeVar("_Result")


class LogReader:
    """Reads a log page by page and changes nothing in it. Used by one thread at a time.

    Takes a state folder or the path of a database, and reads the older segments before it as far
    as they are there; `alone` reads that one database only. Raises StateError when there is no
    log, NotALogError, NewerSchemaError, or CorruptLogError when it cannot be understood.
    """

    def __init__(self, path_or_state: Path | str, *, alone: bool = False) -> None:
        self._alone = alone
        self._older: list[Segment] | None = None  # None: not looked for yet
        self._live = Segment(find_database(Path(path_or_state)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The path of the live database."""
        return str(self._live.path)

    @property
    def log_id(self) -> str:
        """The id given when the log was created."""
        return self._live.log_id

    @property
    def head(self) -> int:
        """The seq of the last durable entry now, 0 when there is none."""
        return self._current(lambda: self._live.head)

    @property
    def first(self) -> int:
        """The seq of the first entry that can be read; beyond 1 when older segments are missing."""
        return self.before.seq + 1

    @property
    def before(self) -> Head:
        """What the first entry that can be read follows; its seq is 0 in a log that is whole."""
        return self.chain()[0].start.before

    def chain(self) -> list[Segment]:
        """Return the segments that are there, oldest first; the last one is the live one."""
        if self._older is None:
            self._older = [] if self._alone else _older_than(self._live)
        return [*self._older, self._live]

    def rows(
        self, after: int = 0, *, limit: int | None = None, only: Filter = ALL
    ) -> Iterator[Row]:
        """Yield rows as they are stored, with `seq > after` in order."""
        for _, page in self._pages(after, limit, only):
            yield from page

    def read(
        self,
        after: int = 0,
        *,
        limit: int | None = None,
        until: int | None = None,
        only: Filter = ALL,
    ) -> Iterator[Entry]:
        """Yield entries with `seq > after` in order, up to `until`; the first is `first` at least.

        Holds no read open between pages.
        """
        gapless = only == ALL
        after = max(after, self._begin(after))
        for path, page in self._pages(after, limit, only):
            for row in page:
                if until is not None and row.seq > until:
                    return
                if gapless and row.seq != after + 1:
                    raise CorruptLogError(path, after + 1, "is missing")
                after = row.seq
                yield to_entry(row, path)

    def entry(self, seq: int) -> Entry | None:
        """Return one entry, None when there is none of that seq."""
        for path, page in self._pages(seq - 1, 1, ALL):
            return to_entry(page[0], path) if page[0].seq == seq else None
        return None

    def last(self, only: Filter) -> Entry | None:
        """Return the last entry that the filter picks, None when there is none."""
        found = self._newest(lambda segment: segment.last(only))
        return None if found is None else self.entry(found)

    def seq_at(self, at: str) -> int:
        """Return the seq of the last entry before the first one that is later than this time."""

        def look() -> int | None:
            found = (segment.first_later(at) for segment in self.chain())
            return next((seq for seq in found if seq is not None), None)

        later = self._current(look)
        return self.head if later is None else later - 1

    def snapshot(self, fold_version: int, *, until: int | None = None) -> Snapshot | None:
        """Return the newest readable snapshot of this fold version, not later than `until`.

        The base state of a segment is one of the entry before it.
        """
        return self._newest(lambda segment: segment.snapshot(fold_version, until))

    def follow(
        self, after: int, stop: Flag, *, only: Filter = ALL, poll_s: float = 0.1
    ) -> Iterator[Entry]:
        """Yield what is there and then what comes, until `stop` is set.

        Raises StateError when the database was moved or deleted meanwhile.
        """
        seen: tuple[int, ...] = ()
        while not stop.is_set():
            change = self._current(self._changed)
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

    def _changed(self) -> tuple[int, int, int]:
        return self._live.change()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for segment in (*(self._older or ()), self._live):
            segment.close()

    # --- segments ---

    def _pages(
        self, after: int, limit: int | None, only: Filter
    ) -> Iterator[tuple[str, list[Row]]]:
        """Yield pages that are not empty, each with the path of its database."""
        left = limit
        while left is None or left > 0:
            wanted = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
            path, page, end = self._current(lambda: self._page(after, wanted, only))  # noqa: B023
            if page:
                yield path, page
            left = None if left is None else left - len(page)
            if len(page) == wanted:
                after = page[-1].seq
            elif end is None:
                return
            else:
                after = end

    def _page(self, after: int, wanted: int, only: Filter) -> tuple[str, list[Row], int | None]:
        """Return a page with its database's path and last seq, None where more may come."""
        segment, end = self._holding(after)
        return str(segment.path), segment.page(after, wanted, only), end

    def _holding(self, after: int) -> tuple[Segment, int | None]:
        """Return the segment of the first row after this one, and its last seq as in `_page`."""
        if after < self._live.start.before.seq:
            for segment, following in itertools.pairwise(self.chain()):
                if after < following.start.before.seq:
                    return segment, following.start.before.seq
        return self._live, None

    def _begin(self, after: int) -> int:
        """Return the seq before the first entry after this one that can be read."""
        return after if after >= self._live.start.before.seq else max(after, self.before.seq)

    def _newest(self, look: Callable[[Segment], _Result | None]) -> _Result | None:
        """Return what is found first, looking at the live segment first."""

        def each() -> _Result | None:
            found = look(self._live)
            if found is not None:
                return found
            older = (look(segment) for segment in reversed(self.chain()[:-1]))
            return next((result for result in older if result is not None), None)

        return self._current(each)

    def _current(self, look: Callable[[], _Result]) -> _Result:
        """Look at the live segment, and again when it became an older one meanwhile."""
        try:
            return look()
        except StateError:
            if not self._went_on():
                raise
            return look()

    def _went_on(self) -> bool:
        """Take up the segment that continues what was the live one."""
        if self._alone or not self._live.moved:
            return False
        try:
            live = Segment(self._live.path)
        except StateError:
            return False
        if live.log_id != self.log_id or live.start.segment <= self._live.start.segment:
            live.close()
            return False
        self.close()
        self._live, self._older = live, None
        return True


def _older_than(live: Segment) -> list[Segment]:
    """Return the segments that lead to this one, oldest first, as far back as they are there."""
    named = segments.archived(segments.archive_of(live.path))
    chain = [live]
    try:
        while chain[0].start.before.seq:
            wanted = chain[0].start.before.seq
            found = _opened([each for each in named if each.last == wanted], live.log_id)
            if found is None:
                break
            chain.insert(0, found)
    except BaseException:
        for segment in chain[:-1]:
            segment.close()
        raise
    return chain[:-1]


def _opened(candidates: list[segments.Archived], log_id: str) -> Segment | None:
    """Return the first one that is what its name says, and of this log."""
    for each in candidates:
        segment = Segment(each.path)
        if (segment.log_id, segment.start.seq) == (log_id, each.first):
            return segment
        segment.close()
    return None
