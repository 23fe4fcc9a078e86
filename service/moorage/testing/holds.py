"""Points at which a worker waits until a test lets it go on."""

from __future__ import annotations

import threading

from moorage.protocols import Flag

LONGEST_S = 30.0
"""No wait of the fakes lasts longer: a forgotten hold fails its test instead of hanging it."""
_LOOK_S = 0.002  # a Flag tells nobody when it is set, so it is looked at


class Hold:
    """Stops whoever comes until `release`. Usable from any thread."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_reached(self, timeout_s: float = LONGEST_S) -> None:
        """Block until somebody waits here. Raises TimeoutError."""
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"{self.what}: nobody came within {timeout_s:g} s")

    @property
    def reached(self) -> bool:
        """True once somebody came."""
        return self._reached.is_set()

    def release(self) -> None:
        """Let everybody pass, now and later."""
        self._released.set()

    def wait(self, end: Flag | None = None) -> bool:
        """Wait here until it is released or `end` is set; tell whether it was released."""
        self._reached.set()
        looks = int(LONGEST_S / _LOOK_S) if end is not None else 1
        for _ in range(looks):
            if self._released.wait(_LOOK_S if end is not None else LONGEST_S):
                return True
            if end is not None and end.is_set():
                return False
        raise TimeoutError(f"{self.what}: not released within {LONGEST_S:g} s")
