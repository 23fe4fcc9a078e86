"""The state and its log, kept together: what is folded is written, or waits to be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from moorage.core.continuing import continued
from moorage.core.draft import Draft
from moorage.core.events import Entry
from moorage.core.fold import FOLD_VERSION
from moorage.core.invariants import InvariantError, check, fold
from moorage.core.snapshot import cached_state, state_to_data
from moorage.core.state import State
from moorage.errors import LogUnavailableError
from moorage.protocols import Clock, EventLog, Snapshot

_log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 2_000
"""Entries between two snapshots."""
MAX_BACKLOG = 10_000
"""Entries of observed facts that may wait for a disk."""


class Ledger:
    """Owned by the registry's thread. `state` is never changed once it was published."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        on_entries: Callable[[Sequence[Entry]], None],
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self._log = log
        self._snapshot_every = snapshot_every
        self._clock = clock
        self._on_entries = on_entries
        self._backlog: list[Entry] = []
        self._snapshot_at = 0
        self.unwritable: LogUnavailableError | None = None
        self.warning = ""
        self.state = self._load()

    def _load(self) -> State:
        state = self._snapshot() or State()
        self._snapshot_at = state.seq
        path = self._log.path
        for entry in self._log.read(after=state.seq):
            fold(state, entry, path)
        check(state, path)
        return state

    def _snapshot(self) -> State | None:
        """Return the state of the newest snapshot; it is a cache, one that does not fit is none."""
        snapshot = self._log.snapshot(FOLD_VERSION)
        if snapshot is None:
            return None
        state = cached_state(snapshot.seq, snapshot.state)
        if state is None:
            _log.warning("the snapshot at row %d does not fit: it is passed over", snapshot.seq)
        return state

    @property
    def backlog(self) -> int:
        """How many entries wait for the disk."""
        return len(self._backlog)

    def draft(self) -> Draft:
        """Begin a decision on the present state."""
        return Draft(self.state, self._clock.now())

    def commit(self, draft: Draft) -> None:
        """Append a decision durably and make its state the state.

        Raises LogUnavailableError; then nothing has changed.
        """
        if not draft.entries:
            return
        entries = [*self._backlog, *draft.entries]
        self._append(entries, draft.state)
        self._backlog.clear()
        self.state = draft.state
        self._on_entries(entries)

    def note(self, draft: Draft) -> None:
        """Fold observed facts at once; they are written with the next append that succeeds."""
        if len(self._backlog) + len(draft.entries) > MAX_BACKLOG:
            raise InvariantError(f"more than {MAX_BACKLOG} facts wait for the log")
        self._backlog += draft.entries
        self.state = draft.state

    def tidy(self) -> None:
        """Let the log keep its files short; what hinders it is told in `warning`."""
        self.warning = self._log.tidy()

    def flush(self) -> bool:
        """Write what waits; False while the log still refuses."""
        if not self._backlog:
            self.unwritable = None
            return True
        entries = tuple(self._backlog)
        try:
            self._append(entries, self.state)
        except LogUnavailableError:
            return False
        self._backlog.clear()
        self._on_entries(entries)
        return True

    def write(self) -> None:
        """Write what waits; raises LogUnavailableError while the log refuses."""
        if not self.flush() and self.unwritable is not None:
            raise self.unwritable

    def archive(self, program: str) -> str:
        """Begin a new segment of the log; return the path of the one before.

        Raises StateError or LogUnavailableError; then nothing has changed.
        """
        self.write()
        draft = self.draft()
        segment, base_hash = self._log.segment + 1, self._log.head_hash
        event = continued(self.state, program=program, segment=segment, base_hash=base_hash)
        draft.emit(event, None)
        path = self._log.archive(draft.entries[0])
        self.state = draft.state
        self._snapshot_at = draft.state.seq
        self._on_entries(draft.entries)
        return path

    def _append(self, entries: Sequence[Entry], state: State) -> None:
        snapshot = None
        if entries[-1].seq - self._snapshot_at >= self._snapshot_every:
            snapshot = Snapshot(entries[-1].seq, FOLD_VERSION, state_to_data(state))
        try:
            self._log.append(entries, snapshot=snapshot)
        except LogUnavailableError as error:
            self.unwritable = error
            raise
        self.unwritable = None
        if snapshot is not None:
            self._snapshot_at = snapshot.seq
