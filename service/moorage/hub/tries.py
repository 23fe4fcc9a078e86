"""How often, and after which wait, a request to the hub is made again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import httpx2

from moorage.core.words import seconds
from moorage.hub.access import HubAccess
from moorage.hub.problems import may_pass, told_to_wait_s
from moorage.protocols import FetchCancelledError, Flag

SHORT_S: Final = 30.0
"""A hub that asks for a pause of up to this much gets it; a longer one is told to the caller."""
GAIN: Final = 1 << 20
"""An attempt that brought so many bytes was worth it: the count begins anew."""
LONGEST_S: Final = 8.0
"""Between two attempts, unless the hub asks for more."""
_log = logging.getLogger(__name__)


class Tries:
    """Counts attempts of one kind.

    With `within_s` all have to be made in that time, and nobody is waited for who does not listen:
    a hub that is down is known at once.
    """

    def __init__(
        self,
        access: HubAccess,
        cancelled: Flag,
        waiting: Callable[[str], None],
        *,
        within_s: float | None = None,
    ) -> None:
        self._access = access
        self._cancelled = cancelled
        self._waiting = waiting
        self._failed = 0
        self._due = None if within_s is None else time.monotonic() + within_s

    def wait_or_raise(self, error: Exception, gained: int = 0) -> None:
        """Wait until the next attempt, or raise what the last one ended with."""
        if gained >= GAIN:
            self._failed = 0
        told = told_to_wait_s(error)
        backoff = min(self._access.retry_wait_s * 2**self._failed, LONGEST_S)
        wait_s = max(told or 0.0, backoff)
        self._failed += 1
        if not may_pass(error) or self._failed > self._access.retries or (told or 0) > SHORT_S:
            raise error
        if self._due is not None:
            if told is None and self._is_too_late(error, wait_s):
                raise error
            self._due += told or 0.0
        self._pause(error, wait_s)

    def _is_too_late(self, error: Exception, wait_s: float) -> bool:
        down = isinstance(error, httpx2.ConnectError)
        return down or (self._due is not None and time.monotonic() + wait_s >= self._due)

    def _pause(self, error: Exception, wait_s: float) -> None:
        # Not what it says: addresses are in it, with what signs them.
        _log.info("the hub is asked again in %s, after %s", seconds(wait_s), type(error).__name__)
        self._waiting(f"the hub, which is asked again in {seconds(wait_s)}")
        if self._cancelled.wait(wait_s):
            raise FetchCancelledError
        self._waiting("")
