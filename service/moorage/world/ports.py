"""Looks at ports: who has one, and when the server on it is ready."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from moorage.protocols import LOOPBACK, Flag, Listener, Readiness, ReadinessOrder, RunProcess
from moorage.world import probing, sockets
from moorage.world.processes import LocalProcesses
from moorage.world.procfs import local_system
from moorage.world.tree import Tree

_FIRST_DELAY_S = 0.001
_LAST_DELAY_S = 0.25
_SHARE = 0.005  # of the time spent so far is the next delay: the answer comes half a percent late
_log = logging.getLogger(__name__)

_REQUEST_S = 2.0
_CERTAIN = 2  # looks that must agree before a stranger ends the run


class LocalPorts:
    """Ports of this machine. Any thread.

    With `processes`, trees are known by what was remembered of them, too.
    """

    def __init__(self, processes: LocalProcesses | None = None) -> None:
        self._processes = processes
        self._system = local_system()

    def stranger(self, port: int) -> Listener | None:
        """Return who keeps us from binding 127.0.0.1:port now, None when it is free.

        None as well when that cannot be asked: the launch will tell, or the check of the owner.
        """
        try:
            if _bindable(port):
                return None
        except PermissionError:
            return Listener(port, None, "(not permitted for this user)")
        except OSError:  # no descriptor left, as a rule: no reason for the registry to end
            _log.warning("whether port %d is free cannot be asked", port, exc_info=True)
            return None
        try:
            return self._describe(port)
        except OSError:
            return Listener(port, None, "")

    def wait_ready(self, order: ReadinessOrder, cancelled: Flag) -> Readiness:
        """Poll until ready, lost, timed out or cancelled. Blocks; `cancelled` ends it at once."""
        return _Wait(order, cancelled, self._tree(order.process), self).run()

    def lost(self, process: RunProcess) -> Listener | None:
        """Return who beyond the run's own tree listens on its first port, None for nobody.

        None as well when that cannot be asked.
        """
        port = process.ports[0]
        try:
            strangers = self.strangers_on(port, self._tree(process))
        except OSError:
            _log.warning("who listens on port %d cannot be asked", port, exc_info=True)
            return None
        if not strangers:
            return None
        pid = strangers[0]
        return Listener(port, pid, self._system.command(pid) if pid else "")

    def _tree(self, process: RunProcess) -> Tree:
        if self._processes is not None:
            return self._processes.tree(process)
        return Tree(self._system, process)

    def strangers_on(self, port: int, tree: Tree) -> list[int | None]:
        """Return who, beyond the tree, gets connections to the port; None: not to be seen."""
        listening = sockets.answering(port)
        inodes = {s.inode for s in listening if s.inode}
        missing = [s for s in listening if s.inode in inodes - self._held(inodes, tree)]
        missing += [s for s in listening if s.pid and s.pid not in tree.scan().proved]
        if not missing:
            return []
        seen = sockets.owners({s.inode for s in missing}, self._system.pids())
        pids = [seen.get(s.inode, {s.pid}) for s in missing]
        return [next(iter(found)) for found in pids]

    def _held(self, inodes: set[int], tree: Tree) -> set[int]:
        """Return which sockets the tree holds; looks further from the leader only when it must."""
        leader = tree.living_leader()
        held = set(sockets.owners(inodes, () if leader is None else (leader,)))
        if held != inodes:
            held = set(sockets.owners(inodes, tree.remember()))
        return held if held == inodes else set(sockets.owners(inodes, tree.scan().proved))

    def describe(self, pid: int | None) -> str:
        """Return words for a process."""
        if pid is None:
            return "a process that this user cannot see"
        return f"pid {pid} ({self._system.command(pid) or 'gone'})"

    def _describe(self, port: int) -> Listener:
        listening = sockets.answering(port)
        holders = sockets.owners({s.inode for s in listening if s.inode}, self._system.pids())
        pids = {pid for found in holders.values() for pid in found}
        pids |= {s.pid for s in listening if s.pid}
        if not pids:
            return Listener(port, None, "")
        pid = min(pids)  # of a forked server the oldest, as a rule
        return Listener(port, pid, self._system.command(pid))


class _Wait:
    """One wait for readiness; used by one thread."""

    def __init__(
        self, order: ReadinessOrder, cancelled: Flag, tree: Tree, ports: LocalPorts
    ) -> None:
        self._order = order
        self._cancelled = cancelled
        self._tree = tree
        self._ports = ports
        self._owned = False
        self._doubts = 0
        self._strangers: list[int | None] = []
        self._seen = probing.NOBODY

    def run(self) -> Readiness:
        started = time.monotonic()
        deadline = started + self._order.timeout_s
        while not self._cancelled.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return Readiness("timeout", f"last seen: {self._seen}")
            try:
                outcome = self._look(min(left, _REQUEST_S))
            except OSError as error:  # this process has no descriptor left, as a rule
                self._seen, outcome = f"nothing, it could not be asked ({error.strerror})", None
            if outcome is not None:
                return outcome
            now = time.monotonic()
            delay = min(max(_FIRST_DELAY_S, (now - started) * _SHARE), _LAST_DELAY_S)
            self._cancelled.wait(max(0.0, min(delay, deadline - now)))
        return Readiness("cancelled")

    def _look(self, timeout_s: float) -> Readiness | None:
        order = self._order
        was_owned = self._owned or not order.owner_check
        answer = probing.get(
            order.port,
            order.health_path,
            timeout_s=timeout_s,
            cancelled=self._cancelled,
            go_on=lambda: was_owned or self._owned_now(),
        )
        # A last request that the deadline cut short says less than the one before.
        cut_short = answer.connected and answer.status is None and timeout_s < _REQUEST_S
        if not cut_short or self._seen == probing.NOBODY:
            self._seen = answer.seen
        if self._strangers and self._doubts >= _CERTAIN:
            return self._lost()
        if answer.status is None or not 200 <= answer.status < 300:  # noqa: PLR2004
            return None
        if order.owner_check and was_owned and not self._owned_now():
            return None  # it has changed hands since: looked at again before it is lost
        return self._ready()

    def _ready(self) -> Readiness | None:
        self._tree.remember()
        if self._order.process.identity is not None and not self._tree.leader_alive():
            self._seen = "the server's first process has ended"
            return None  # its end is told by the exit watcher, and cancels this
        return Readiness("ready", self._seen)

    def _owned_now(self) -> bool:
        self._strangers = self._ports.strangers_on(self._order.port, self._tree)
        self._doubts = self._doubts + 1 if self._strangers else 0
        self._owned = not self._strangers
        return self._owned

    def _lost(self) -> Readiness:
        names = ", ".join(self._ports.describe(pid) for pid in self._strangers)
        return Readiness("lost", f"port {self._order.port} is answered by {names}")


def pool_overlaps_ephemeral(ports: Iterable[int]) -> tuple[int, ...]:
    """Return those ports that the kernel may hand to any outgoing connection."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    except OSError:  # no Linux: the range IANA reserves for it, which macOS uses
        text = "49152 65535"
    low, high = map(int, text.split())
    return tuple(port for port in ports if low <= port <= high)


def unbindable(ports: Iterable[int]) -> tuple[int, ...]:
    """Return those ports that this user may not bind."""
    refused: list[int] = []
    for port in ports:
        try:
            _bindable(port)
        except PermissionError:
            refused.append(port)
    return tuple(refused)


def _bindable(port: int) -> bool:
    """Tell whether 127.0.0.1:port can be bound now; False when it is taken. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        # As servers do: connections of a former server in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
