"""Servers as processes of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from moorage.protocols import (
    ExitStatus,
    Flag,
    FoundProcess,
    Identity,
    LaunchFailedError,
    LaunchOrder,
    RunProcess,
    StopReport,
    StopSignal,
)
from moorage.world import launching, logfiles
from moorage.world.exits import ExitWatcher
from moorage.world.handles import Handles
from moorage.world.housekeeping import Housekeeper, Kept
from moorage.world.procfs import System, UnreadableError, local_system
from moorage.world.stopping import Stopper
from moorage.world.tree import Tree

_HOUSEKEEPING_S = 1.0
_RUN_DIGITS = 18  # more than any run number has: a token can be made up by anybody
_REAP_WAIT_S = 1.0  # the watcher's thread needs microseconds


class LocalProcesses:
    """Launches, watches and stops servers on this machine.

    Holds two threads, `moorage-exits` and `moorage-housekeeper`, from construction (none can
    start while the interpreter exits) until `close`. A log file over `max_log_bytes` is copied
    and truncated; lines written in that instant are lost. Of each model `keep_logs` older files
    stay.
    """

    def __init__(
        self,
        *,
        max_log_bytes: int = 64 << 20,
        keep_logs: int = 5,
        housekeeping_s: float = _HOUSEKEEPING_S,
        system: System | None = None,
        pidfds: bool | None = None,
    ) -> None:
        self._system = system or local_system()
        self._handles = Handles(self._system, pidfds=pidfds)
        self._owner = os.getpid()
        self._watcher = ExitWatcher()
        try:
            self._housekeeper = Housekeeper(
                max_log_bytes=max_log_bytes, keep_logs=keep_logs, every_s=housekeeping_s
            )
        except BaseException:
            self._watcher.close()
            raise

    def launch(self, order: LaunchOrder) -> Identity:
        """Spawn in a session of its own; return without waiting. Raises LaunchFailedError."""
        pid = launching.spawn(order)
        try:
            identity = self._identify(pid)
            handle = self._handles.open(pid, identity.start_ticks)
        except OSError as error:  # no descriptor left to look at it with
            launching.undo(pid)
            raise LaunchFailedError(launching.why(order.argv[0], error)) from error
        process = RunProcess(run=order.run, token=order.token, identity=identity, ports=())
        tree = Tree(self._system, process)
        self._housekeeper.keep(
            order.token, Kept(order.run, tree, order.log_file), model=order.model
        )
        if handle is not None:
            self._watcher.add(order.token, handle, before_reap=tree.remember)
        return identity

    def watch(
        self,
        process: RunProcess,
        on_exit: Callable[[ExitStatus], None],
        *,
        log_file: Path | None = None,
    ) -> None:
        """Call `on_exit` once, from `moorage-exits`, when the leader has ended."""
        identity = process.identity
        if identity is None:
            raise ValueError(f"run {process.run} has no leader that could be watched")
        if self._housekeeper.get(process.token) is None:
            tree = Tree(self._system, process)
            if self._follow(process.token, identity, tree):
                self._housekeeper.keep(process.token, Kept(process.run, tree, log_file))
        self._watcher.tell(process.token, on_exit)

    def stop(
        self, process: RunProcess, signals: Sequence[StopSignal], *, kill_wait_s: float, hurry: Flag
    ) -> StopReport:
        """Stop the whole tree; see the protocol. Blocks until it is done or its time is up."""
        started = time.monotonic()
        tree = self.tree(process)
        stopper = Stopper(
            self._system,
            self._handles,
            tree,
            process.identity,
            process.ports,
            hurry,
            reap=not self._watcher.watches(process.token),
        )
        left, ports_open = stopper.run(signals, kill_wait_s)
        leader = process.identity.pid if process.identity else None
        report = StopReport(
            swept=tuple(sorted(stopper.swept - {leader})),
            remaining=tuple(sorted(left.proved)),
            unproven=tuple(sorted(left.unproven)),
            ports_open=tuple(ports_open),
            seconds=time.monotonic() - started,
            peak_bytes=stopper.peak_bytes,
        )
        if report.clean:
            self._housekeeper.drop(process.token)
            self._watcher.forget(process.token, wait_s=_REAP_WAIT_S)
        return report

    def lives(self, process: RunProcess) -> bool:
        """Tell whether the leader lives: same pid, start ticks and boot, and no zombie."""
        return self.tree(process).leader_alive()

    def memory(self, process: RunProcess) -> int | None:
        """Return the largest sum of the members' peaks seen until now.

        Pages that members share count for each of them.
        """
        return self.tree(process).peak_bytes()

    def log_tail(self, log_file: Path, *, lines: int = 20) -> tuple[str, ...]:
        """Return the last lines, control characters made visible."""
        return logfiles.tail(log_file, lines)

    def find(self, log_id: str) -> Sequence[FoundProcess]:
        """Return every live process that carries a token of this log."""
        return list(self._find(log_id))

    def boot_id(self) -> str:
        """Return the id of this boot of the machine."""
        return self._system.boot_id()

    def tree(self, process: RunProcess) -> Tree:
        """Return the tree of a run, with what is remembered of it where it is looked after."""
        kept = self._housekeeper.get(process.token)
        return kept.tree if kept is not None else Tree(self._system, process)

    def pids(self) -> Iterator[int]:
        """Yield all pids there are."""
        return self._system.pids()

    def command(self, pid: int) -> str:
        """Return the command line of a process, "" when there is none to be seen."""
        return self._system.command(pid)

    def close(self) -> None:
        """End both threads. Processes are left alone. Idempotent."""
        if os.getpid() != self._owner:
            return  # a forked copy has neither the threads nor a say
        self._housekeeper.close()
        self._watcher.close()

    def _identify(self, pid: int) -> Identity:
        stat = self._system.stat(pid)
        # It may have ended and been reaped by the host (SIGCHLD ignored, waitpid(-1)) already,
        # and the pid may be another's: then the identity is one that no process has.
        ticks = stat.start_ticks if stat is not None and stat.session == pid else 0
        return Identity(pid, pid, pid, ticks, self._system.boot_id())

    def _follow(self, key: str, identity: Identity, tree: Tree) -> bool:
        """Watch the leader; False when it is gone."""
        if identity.boot_id != self._system.boot_id():
            return False
        handle = self._handles.open(identity.pid, identity.start_ticks)
        if handle is not None:
            self._watcher.add(key, handle, before_reap=tree.remember)
        return handle is not None

    def _find(self, log_id: str) -> Iterator[FoundProcess]:
        prefix = f"{log_id}:"
        for pid in self._system.pids():
            token = next((t for t in self._chain(pid) if t.startswith(prefix)), None)
            stat = self._system.stat(pid) if token is not None else None
            if token is None or stat is None or not stat.alive:
                continue
            run, _, nonce = token.removeprefix(prefix).partition(":")
            if run.isdecimal() and len(run) <= _RUN_DIGITS:
                yield FoundProcess(
                    pid=pid,
                    start_ticks=stat.start_ticks,
                    token=token,
                    run=int(run),
                    nonce=nonce,
                    command=self._system.command(pid),
                )

    def _chain(self, pid: int) -> tuple[str, ...]:
        try:
            return self._system.chain(pid)
        except UnreadableError:
            return ()
