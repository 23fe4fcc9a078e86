from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from log.making import entries, pinned, some
from moorage.core.events import Entry
from moorage.errors import StateError
from moorage.log.files import StateFiles
from moorage.log.reader import Filter, LogReader
from moorage.log.sqlite import SqliteLog


def closed_log(state: Path, count: int = 3) -> None:
    with closing(SqliteLog.open(state)) as log:
        log.append(some(count))


class Following:
    """A thread that follows a log; `got` is set as often as an entry comes."""

    def __init__(self, state: Path, after: int = 0, only: Filter = Filter()) -> None:  # noqa: B008
        self.seen: list[Entry] = []
        self.stop = threading.Event()
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(state, after, only))
        self._thread.start()

    def _run(self, state: Path, after: int, only: Filter) -> None:
        try:
            with LogReader(state) as reader:
                for entry in reader.follow(after, self.stop, only=only, poll_s=0.001):
                    with self._changed:
                        self.seen.append(entry)
                        self._changed.notify_all()
        except StateError as error:
            self.error = error

    def wait_for(self, count: int) -> list[int]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, timeout=20)
        return [entry.seq for entry in self.seen]

    def end(self) -> None:
        self.stop.set()
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_a_follower_sees_what_is_there_and_what_comes(log: SqliteLog, state: Path) -> None:
    log.append(some(3))
    follower = Following(state, after=1)
    first = follower.wait_for(2)
    log.append(some(2, after=3))
    then = follower.wait_for(4)
    follower.end()

    assert first == [2, 3]
    assert then == [2, 3, 4, 5]


def test_a_follower_sees_owners_come_and_go(state: Path) -> None:
    closed_log(state, 1)
    follower = Following(state)
    follower.wait_for(1)
    for head in (1, 2):
        with closing(SqliteLog.open(state)) as log:
            log.append(some(1, after=head))
        follower.wait_for(head + 1)
    follower.end()

    assert [entry.seq for entry in follower.seen] == [1, 2, 3]


def test_a_follower_of_some_sees_only_those(log: SqliteLog, state: Path) -> None:
    follower = Following(state, only=Filter(model="b"))
    log.append(entries([pinned("a"), pinned("b"), pinned("a"), pinned("b")]))
    seen = follower.wait_for(2)
    follower.end()

    assert seen == [2, 4]


def test_a_follower_is_told_when_the_log_is_deleted(state: Path) -> None:
    closed_log(state, 1)
    follower = Following(state)
    follower.wait_for(1)
    StateFiles(state).database.unlink()
    follower.join()

    assert "moved, replaced or deleted" in str(follower.error)


def test_a_follower_that_is_stopped_yields_no_more(log: SqliteLog, state: Path) -> None:
    log.append(some(10))
    stop = threading.Event()
    with LogReader(state) as reader:
        seen = []
        for entry in reader.follow(0, stop):
            seen.append(entry.seq)
            stop.set()

    assert seen == [1]
