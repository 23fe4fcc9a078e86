"""One thread that keeps log files bounded and remembers who belongs to which run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moorage.world import logfiles
from moorage.world.tree import Tree

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Kept:
    """A live run as the housekeeper sees it."""

    run: int
    tree: Tree
    log_file: Path | None


class Housekeeper:
    """Looks at every run in turn, from its thread `moorage-housekeeper`."""

    def __init__(self, *, max_log_bytes: int, keep_logs: int, every_s: float) -> None:
        self._max_log_bytes = max_log_bytes
        self._keep_logs = keep_logs
        self._every_s = every_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._runs: dict[str, Kept] = {}
        self._unpruned: dict[tuple[Path, str], Kept] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="moorage-housekeeper", daemon=True)
        self._thread.start()

    def keep(self, key: str, kept: Kept, *, model: str | None = None) -> None:
        """Look after a run; with `model`, also remove old log files of its model at the next look.

        Costs the caller no look at the disk: it stands between a request and its server.
        """
        with self._changed:
            idle = not self._runs and not self._unpruned
            self._runs[key] = kept
            if model is not None and kept.log_file is not None:
                self._unpruned[kept.log_file.parent, model] = kept
            if idle:
                self._changed.notify()

    def get(self, key: str) -> Kept | None:
        """Return a run that is looked after."""
        with self._changed:
            return self._runs.get(key)

    def drop(self, key: str) -> None:
        """Look after it no more."""
        with self._changed:
            self._runs.pop(key, None)

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:  # itself: an interrupt inside of the condition's would leave it locked
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> None:
        """Look at every run now."""
        with self._changed:
            runs = list(self._runs.values())
            unpruned, self._unpruned = list(self._unpruned.values()), {}
        for kept in runs:
            self._guarded(kept, self._tend)
        for kept in unpruned:
            self._guarded(kept, self._prune)

    def _serve(self) -> None:
        while self._await_turn():
            self.look()

    def _await_turn(self) -> bool:
        with self._changed:
            while not self._closed and not self._runs and not self._unpruned:
                self._changed.wait()
            if not self._closed:
                self._changed.wait(self._every_s)
            return not self._closed

    def _tend(self, kept: Kept) -> None:
        if kept.tree.leader_alive():
            kept.tree.peak_bytes()
        log_file = kept.log_file
        if log_file is None or not log_file.exists():
            return
        if log_file.stat().st_size > self._max_log_bytes:
            logfiles.rotate(log_file, self._keep_logs)
            self._prune(kept)

    def _prune(self, kept: Kept) -> None:
        if kept.log_file is not None:
            with self._changed:
                live = {k.log_file for k in self._runs.values() if k.log_file is not None}
            logfiles.prune(kept.log_file, kept.run, self._keep_logs, live)

    def _guarded(self, kept: Kept, act: Callable[[Kept], None]) -> None:
        try:
            act(kept)
        except Exception:  # noqa: BLE001  a full disk or a fault with one run must not end this for the others
            _log.exception("looking after run %d failed", kept.run)
