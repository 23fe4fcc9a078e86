"""How many transfers there are at once; whoever has to wait is served first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from moorage.protocols import FetchCancelledError, Flag

LOOK_S: Final = 0.05
"""A Flag tells nobody when it is set, so whoever waits looks at it this often."""


class Turns:
    """Shared by all fetches of a service."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._lock = threading.Lock()
        self._free = at_once
        self._waiting: deque[threading.Event] = deque()

    def join(self) -> threading.Event:
        """Return what is set when it is one's turn."""
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._admit()
        return turn

    def leave(self, turn: threading.Event) -> None:
        """Give a turn back, or no longer wait for it."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._free += 1
            self._admit()

    def _admit(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()


class Turn:
    """The turn of one fetch: taken to transfer, given back while it waits for somebody else."""

    def __init__(self, turns: Turns, cancelled: Flag, waiting: Callable[[str], None]) -> None:
        self._turns = turns
        self._cancelled = cancelled
        self._waiting = waiting
        self._mine: threading.Event | None = None

    def take(self) -> None:
        """Block until it is one's turn. Raises FetchCancelledError."""
        if self._mine is not None:
            return
        self._mine = self._turns.join()
        try:
            self._wait(self._mine)
        except BaseException:
            self.give()
            raise

    def give(self) -> None:
        """Let another one. Idempotent."""
        if self._mine is not None:
            self._turns.leave(self._mine)
            self._mine = None

    def _wait(self, turn: threading.Event) -> None:
        if turn.is_set():
            return
        self._waiting(f"its turn: {self._turns.at_once} others are fetched at once")
        while not turn.wait(LOOK_S) and not self._cancelled.is_set():
            pass
        if self._cancelled.is_set():  # also when the turn came just then
            raise FetchCancelledError
        self._waiting("")
