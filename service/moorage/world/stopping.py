"""Ends the tree of a run: its signals, SIGKILL, then a sweep until nothing is found."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from moorage.protocols import Flag, Identity, StopSignal
from moorage.world import sockets
from moorage.world.handles import Handle, Handles, wait_any
from moorage.world.procfs import System
from moorage.world.tree import Scan, Tree, protected

_log = logging.getLogger(__name__)

_HURRY_LOOK_S = 0.02  # a Flag cannot be polled with a descriptor, so it is looked at this often
_RESCAN_S = 0.25  # what forks while it is being killed is looked for this often
_QUIET_SCANS = 2
_PORT_LOOK_S = 0.005


@dataclass(slots=True)
class Stopper:
    """One stop of one run. Blocks; used by one thread."""

    system: System
    handles: Handles
    tree: Tree
    leader: Identity | None
    ports: Sequence[int]
    hurry: Flag
    reap: bool
    """Nobody watches the leader: if it is our child, it is reaped here."""
    swept: set[int] = field(default_factory=set[int])
    peak_bytes: int | None = None

    def run(self, signals: Sequence[StopSignal], kill_wait_s: float) -> tuple[Scan, list[int]]:
        """Return what is left: processes and ports."""
        members = self.tree.remember()  # while the leader lives to prove them
        self.peak_bytes = self.tree.peak_bytes(members)
        ours = self._listening(members)
        leader = self._open_leader()
        try:
            if leader is not None:
                self._ask(leader, signals)
                self._kill_group(leader)
            deadline = time.monotonic() + kill_wait_s
            left = self._sweep(deadline)
            return left, self._ports_open(left, ours, deadline)
        finally:
            if leader is not None:
                if self.reap:
                    leader.reap()
                leader.close()

    # --- the leader is asked ---

    def _open_leader(self) -> Handle | None:
        if self.leader is None or self.leader.boot_id != self.system.boot_id():
            return None
        if self.leader.pid in protected(self.system):
            return None
        return self.handles.open(self.leader.pid, self.leader.start_ticks)

    def _ask(self, leader: Handle, signals: Sequence[StopSignal]) -> None:
        for step in signals:
            if leader.exited() or self.hurry.is_set():
                return
            self._signal(leader, step.number, group=step.target == "group")
            stat = self.system.stat(leader.pid)
            if stat is not None and stat.state == "T":  # a stopped process hears nothing else
                self._signal(leader, signal.SIGCONT, group=False)
            self._wait(leader, step.wait_s)

    def _kill_group(self, leader: Handle) -> None:
        if not leader.exited():
            self.swept |= self.tree.remember().keys()
            self._signal(leader, signal.SIGKILL, group=True)

    def _wait(self, leader: Handle, wait_s: float) -> None:
        end = time.monotonic() + wait_s
        while not leader.exited() and not self.hurry.is_set():
            left = end - time.monotonic()
            if left <= 0:
                return
            wait_any([leader], min(left, _HURRY_LOOK_S))

    def _signal(self, leader: Handle, number: int, *, group: bool) -> None:
        try:
            if not group:
                leader.send(number)
            elif self._shared(leader.pid) or not (leader.exited() or leader.send_group(number)):
                self._signal_members(leader.pid, number)
        except PermissionError:
            _log.warning("not permitted to signal process %d of the run", leader.pid)

    def _shared(self, group: int) -> bool:
        """Tell whether we or our ancestors are in a group."""
        stats = map(self.system.stat, protected(self.system))
        return any(stat is not None and stat.group == group for stat in stats)

    def _signal_members(self, group: int, number: int) -> None:
        """Signal a group where the kernel cannot do that without a race: one by one."""
        members = self.tree.remember()
        stats = [stat for pid in members if (stat := self.system.stat(pid)) is not None]
        inside = {stat.pid: members[stat.pid] for stat in stats if stat.group == group}
        for handle in self._send_each(inside, number):
            handle.close()

    def _send_each(self, members: dict[int, int], number: int) -> Iterator[Handle]:
        """Signal the members that are still the same; yield their handles, open."""
        for pid, ticks in members.items():
            handle = self.handles.open(pid, ticks)
            if handle is None:
                continue
            try:
                if handle.send(number) and number == signal.SIGKILL:
                    self.swept.add(pid)
            except PermissionError:
                _log.warning("not permitted to signal process %d of the run", pid)
            yield handle

    # --- the tree is emptied ---

    def _sweep(self, deadline: float) -> Scan:
        quiet = 0
        while True:
            found = self.tree.scan()
            quiet = 0 if found.proved else quiet + 1
            if quiet == _QUIET_SCANS or time.monotonic() >= deadline:
                return found
            if found.proved:
                self._kill(found.proved, deadline)

    def _kill(self, members: dict[int, int], deadline: float) -> None:
        killed: list[Handle] = []
        end = min(deadline, time.monotonic() + _RESCAN_S)
        try:
            self._kill_as_many_as_can_be_held(members, killed)
            while alive := [handle for handle in killed if not handle.exited()]:
                if (left := end - time.monotonic()) <= 0:
                    return
                wait_any(alive, left)
        finally:
            for handle in killed:
                handle.close()

    def _kill_as_many_as_can_be_held(self, members: dict[int, int], killed: list[Handle]) -> None:
        try:
            for handle in self._send_each(members, signal.SIGKILL):
                killed.append(handle)  # noqa: PERF402  they stay when the next one fails
        except OSError:
            if not killed:
                raise
            # No descriptor is left. These are closed in a moment, and the sweep comes round again.

    # --- the ports are closed ---

    def _listening(self, members: Iterable[int]) -> set[int]:
        """Return the run's own listening sockets: whoever holds one later inherited it."""
        found = {s.inode for port in self.ports for s in sockets.answering(port) if s.inode}
        return set(sockets.owners(found, members)) if found else set()

    def _ports_open(self, left: Scan, ours: set[int], deadline: float) -> list[int]:
        suspects = left.proved.keys() | set(left.unproven)
        while True:
            still = [port for port in self.ports if self._is_held(port, suspects, ours)]
            if not still or suspects or time.monotonic() >= deadline:
                return still
            # A listener nobody seems to hold: a hand-over under way, or one we may not see.
            threading.Event().wait(_PORT_LOOK_S)

    def _is_held(self, port: int, suspects: set[int], ours: set[int]) -> bool:
        listening = sockets.answering(port)
        if not listening:
            return False
        holders = sockets.owners([s.inode for s in listening if s.inode], self.system.pids())
        for s in listening:
            pids = holders.get(s.inode, set[int]()) | ({s.pid} if s.pid else set[int]())
            if s.inode in ours or pids & suspects:
                return True
            if not pids and s.uid == os.getuid():  # ours to look at, yet without an owner
                return True
        return False
