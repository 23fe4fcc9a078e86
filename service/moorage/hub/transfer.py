"""One file, from the hub into the cache: alone, from where it stopped, and only if it is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, TypeVar

import httpx2

from moorage.core.words import size
from moorage.hub.access import HubAccess
from moorage.hub.cache import RepoCache
from moorage.hub.listing import HubFile, Listing
from moorage.hub.locks import unlock
from moorage.hub.meter import Meter
from moorage.hub.part import Part
from moorage.hub.problems import HUB_ERRORS
from moorage.hub.tries import Tries
from moorage.hub.turns import Turn
from moorage.hub.wire import Exchange, Headers
from moorage.protocols import FetchCancelledError, FetchFailedError, Flag

SEGMENT: Final = 10 << 30
"""Asked for at once: where the hub's files are kept, answers beyond 50 GB are refused."""
LOCK_LOOK_S: Final = 0.1
"""Between two looks at a lock: nothing tells when it is released."""
_Locked = TypeVar("_Locked")
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Transfer:
    """Brings the missing files of one fetch, one after another. Used by one thread."""

    def __init__(
        self,
        *,
        access: HubAccess,
        cache: RepoCache,
        listed: Listing,
        get: Callable[[HubFile, Headers], Exchange],
        turn: Turn,
        meter: Meter,
        cancelled: Flag,
    ) -> None:
        self._access = access
        self._cache = cache
        self._commit = listed.commit
        self._same = listed.same_content()
        self._get = get
        self._turn = turn
        self._meter = meter
        self._cancelled = cancelled

    def bring(self, file: HubFile, later: Sequence[HubFile]) -> None:
        """Have a file's content in the cache; the files of `later` are to come after it.

        Raises FetchFailedError, FetchCancelledError and what ended the last attempt.
        """
        with self._alone(file) as part:
            if self._cache.has(self._commit, file):  # somebody else was quicker
                part.restart()
                return
            self._turn.take()
            self._meter.stands(part.size)
            self._refuse_full_disk(file.size - part.size, later)
            self._complete(part, file)
            part.become(self._cache.blob(file))

    @contextmanager
    def _alone(self, file: HubFile) -> Generator[Part]:
        """Lock out all others who would fetch the same."""
        others = self._wait_for(lambda: self._cache.try_lock_others(file))
        try:
            with self._wait_for(lambda: Part.open(self._cache.part(file), file)) as part:
                yield part
        finally:
            unlock(others)

    def _wait_for(self, lock: Callable[[], _Locked | None]) -> _Locked:
        """Wait for somebody who fetches the same file, and let others transfer meanwhile."""
        locked = lock()
        if locked is None:
            self._turn.give()
            self._meter.waiting("another fetch of the same file")
        while locked is None:
            if self._cancelled.wait(LOCK_LOOK_S):
                raise FetchCancelledError
            locked = lock()
        self._meter.waiting("")
        return locked

    def _refuse_full_disk(self, needed: int, later: Sequence[HubFile]) -> None:
        path, free = self._cache.room()
        if needed + sum(file.size for file in later) <= free:
            return  # without a look at what is here of each of them
        needed += self._cache.needed(later)
        if needed > free:
            raise disk_full(needed, path, free)

    def _complete(self, part: Part, file: HubFile) -> None:
        """Have all of it, from this disk as far as possible."""
        twin = self._cache.twin(self._commit, self._same[file.etag])
        if twin is not None:
            part.copy(twin, self._cancelled)
        if part.size:
            self._go_on(part, file)
        else:
            self._fill(part, file)

    def _go_on(self, part: Part, file: HubFile) -> None:
        """Go on with what is here already; when that was wrong, begin anew once."""
        self._meter.waiting("a look at what is here already")
        part.catch_up(self._cancelled)
        self._meter.waiting("")
        try:
            self._fill(part, file)
        except WrongHashError:
            self._meter.stands(0)
            self._fill(part, file)

    def _fill(self, part: Part, file: HubFile) -> None:
        tries = Tries(self._access, self._cancelled, self._meter.waiting)
        while part.size < file.size:
            before = part.size
            try:
                self._receive(part, file)
            except HUB_ERRORS as error:
                tries.wait_or_raise(error, part.size - before)
        if not part.is_right():
            part.restart()
            raise WrongHashError(file)

    def _receive(self, part: Part, file: HubFile) -> None:
        """Append what one request brings; an answer that proves wrong leaves what was here."""
        before = part.size
        last = min(before + SEGMENT, file.size) - 1
        whole = before == 0 and last == file.size - 1
        headers = {} if whole else {"Range": f"bytes={before}-{last}"}
        with self._get(file, headers) as exchange:
            answer = exchange.answer()
            for piece in _without(_agree(answer, part, file), exchange.pieces(self._meter.idle)):
                if part.size + len(piece) > file.size:
                    part.cut(before)
                    raise _wrong_size(file, "more")
                part.append(piece)
                self._meter.came(len(piece))
        if part.size > last:
            return
        if _tells_no_size(answer):  # it came to its end: a login page, or another file
            part.cut(before)
            raise _wrong_size(file, "less")
        raise httpx2.RemoteProtocolError(f"closed {size(last + 1 - part.size)} too early")


def _agree(answer: httpx2.Response, part: Part, file: HubFile) -> int:
    """Hold an answer against what was asked for; return how much of it is here already."""
    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != part.size:
            raise httpx2.RemoteProtocolError("another range came than was asked for")
        total, here = found[2], 0
    else:  # it knows no ranges, and sends all
        total, here = answer.headers.get("Content-Length", "*"), part.size
    if total not in ("*", str(file.size)):
        raise _wrong_size(file, f"{total} bytes")
    return here


def _tells_no_size(answer: httpx2.Response) -> bool:
    partial = answer.status_code == HTTPStatus.PARTIAL_CONTENT
    return not partial and "Content-Length" not in answer.headers


def _without(count: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out so many bytes at the front."""
    for piece in pieces:
        if rest := piece[count:]:
            yield rest
        count = max(0, count - len(piece))


class WrongHashError(FetchFailedError):
    """All of a file came, and it is another than the hub lists."""

    def __init__(self, file: HubFile) -> None:
        super().__init__(
            f"{file.name} arrived with other content than the hub lists (not {file.hash}); it was "
            "removed: try again, and look at proxies and caches on the way",
            "wrong-hash",
        )


def disk_full(needed: int, path: str, free: int) -> FetchFailedError:
    """Return the error of a disk that has not the room for what is still to come."""
    return FetchFailedError(
        f"no space is left at {path}: {size(needed)} are needed, {size(free)} are free; free "
        "some, or move the cache by HF_HOME",
        "disk-full",
    )


def _wrong_size(file: HubFile, found: str) -> FetchFailedError:
    return FetchFailedError(
        f"the hub sends {found} for {file.name}, where it lists {file.size} bytes; try again, and "
        "look at proxies and caches on the way",
        "wrong-size",
    )
