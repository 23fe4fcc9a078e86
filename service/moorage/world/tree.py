"""Which processes belong to a run, and the proof of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from moorage.protocols import RunProcess
from moorage.world.procfs import Stat, System, UnreadableError


@dataclass(frozen=True, slots=True)
class Scan:
    """What lives of a run: `proved` by pid with start ticks; `unproven` is not to be signalled."""

    proved: dict[int, int] = field(default_factory=dict[int, int])
    unproven: tuple[int, ...] = ()


class Tree:
    """The processes of one run. Any thread.

    Proof is one of: it is the leader; its environment carries the token; it is in the leader's
    session or group while the leader's pid is still held; it is a child of a proved one; it was
    proved before and is still the same process. A zombie is dead. Ourselves and our ancestors
    are never signalled: where they are inside, they are told as unproven.
    """

    def __init__(self, system: System, process: RunProcess) -> None:
        self._system = system
        self._token = process.token
        identity = process.identity
        if identity is not None and identity.boot_id != system.boot_id():
            identity = None  # pids and ticks of another boot say nothing
        self._identity = identity
        self._lock = threading.Lock()
        self._known: dict[int, int] = {}
        self._peak: int | None = None

    def leader_held(self) -> bool:
        """Tell whether the leader, alive or as a zombie, still has its pid."""
        if self._identity is None:
            return False
        stat = self._system.stat(self._identity.pid)
        return stat is not None and stat.start_ticks == self._identity.start_ticks

    def leader_alive(self) -> bool:
        """Tell whether the leader lives."""
        return self.living_leader() is not None

    def living_leader(self) -> int | None:
        """Return the pid of the leader while it lives."""
        identity = self._identity
        if identity is None or self._live(identity.pid, identity.start_ticks) is None:
            return None
        return identity.pid

    def remember(self) -> dict[int, int]:
        """Find the members that can be found cheaply, and keep them as known.

        Session, group and descendants prove nothing once the leader is gone, so this is called
        while it lives, and once more before its pid is given up.
        """
        return self._near(list(self._system.pids()), protected(self._system))

    def scan(self) -> Scan:
        """Look at every process there is."""
        pids, spared = list(self._system.pids()), protected(self._system)
        members = self._near(pids, spared)
        for pid in pids:
            if pid not in members and pid not in spared and self._token in self._chain(pid):
                members |= self._confirm(pid)
        members |= self._descendants(members, spared)
        with self._lock:
            self._known |= members
        unproven = (*self._unproven(pids, members.keys() | spared), *self._spared(spared))
        return Scan(members, unproven)

    def peak_bytes(self, members: Iterable[int] | None = None) -> int | None:
        """Return the largest sum of its members' peaks seen until now.

        `members` are those just found, where they are at hand.
        """
        found = self.remember() if members is None else members
        peaks = [self._system.peak_bytes(pid) for pid in found]
        total = sum(peak for peak in peaks if peak is not None)
        with self._lock:
            self._peak = max(self._peak or 0, total) or None
            return self._peak

    def _near(self, pids: Iterable[int], protected: set[int]) -> dict[int, int]:
        with self._lock:
            known = dict(self._known)
        members = {pid: ticks for pid, ticks in known.items() if self._live(pid, ticks)}
        together = self._together(pids)
        # After the look, not before: its pid was held all the while, so the numbers were ours.
        if self.leader_held():
            members |= {s.pid: s.start_ticks for s in together if s.alive}
        members = {pid: ticks for pid, ticks in members.items() if pid not in protected}
        members |= self._descendants(members, protected)
        with self._lock:
            gone = known.items() - members.items()
            self._known = dict(self._known.items() - gone) | members
        return members

    def _together(self, pids: Iterable[int]) -> list[Stat]:
        """Return what is in the leader's session or group by number."""
        identity = self._identity
        if identity is None:
            return []
        found: list[Stat] = []
        for pid in pids:
            try:  # two system calls cost a tenth of reading stat
                if os.getsid(pid) != identity.session and os.getpgid(pid) != identity.group:
                    continue
            except (ProcessLookupError, PermissionError):
                continue
            stat = self._system.stat(pid)
            if stat and (stat.session == identity.session or stat.group == identity.group):
                found.append(stat)
        return found

    def _descendants(self, members: dict[int, int], protected: set[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        todo = list(members.items())
        while todo:
            parent, ticks = todo.pop()
            children = [
                stat
                for pid in self._system.children(parent)
                if pid not in members and pid not in found and pid not in protected
                if (stat := self._system.stat(pid)) and stat.alive and stat.parent == parent
            ]
            if children and self._live(parent, ticks):  # it was the parent all the while
                found |= {child.pid: child.start_ticks for child in children}
                todo += [(child.pid, child.start_ticks) for child in children]
        return found

    def _confirm(self, pid: int) -> dict[int, int]:
        """Tie a token to one process: the pid may have changed hands since it was read."""
        before = self._system.stat(pid)
        if before is None or self._token not in self._chain(pid):
            return {}
        after = self._live(pid, before.start_ticks)
        return {pid: after.start_ticks} if after else {}

    def _unproven(self, pids: Iterable[int], settled: set[int]) -> Iterator[int]:
        identity = self._identity
        if identity is None or self._system.stat(identity.pid) is not None:
            # While anybody is in a session or group its number names no new process: one that
            # has it, the leader or another, answers for all of them.
            return
        for stat in self._together(pids):
            if stat.pid in settled or not stat.alive or stat.start_ticks < identity.start_ticks:
                continue
            if not self._chain(stat.pid):  # a token that is not ours would be an alibi
                yield stat.pid

    def _spared(self, spared: set[int]) -> Iterator[int]:
        """Yield ourselves and our ancestors as far as we run inside of this run."""
        leader = self.living_leader()
        return (pid for pid in spared if pid == leader or self._token in self._chain(pid))

    def _chain(self, pid: int) -> tuple[str, ...]:
        try:
            return self._system.chain(pid)
        except UnreadableError:
            return ()

    def _live(self, pid: int, start_ticks: int) -> Stat | None:
        stat = self._system.stat(pid)
        return stat if stat and stat.start_ticks == start_ticks and stat.alive else None


def protected(system: System) -> set[int]:
    """Return ourselves and our ancestors, which are never signalled."""
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        stat = system.stat(pid)
        pid = stat.parent if stat is not None else 0
    return pids
