"""What must hold between the rows and the processes, ports and signals of the world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulation.judging.book import Book
from simulation.sight import SeenRow, SeenServer, Sight

LENT_SOON = ("loading", "ready", "reserved")
"""Stages in which nobody means to stop a run."""


class World:
    """Looks at servers, ports and signals. `live` are our trees of which something lives."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.live: dict[str, SeenServer] = {}
        self._pids: set[int] = set()
        self._known: set[str] = set()
        self._began: set[int] = set()
        """Runs of which something was seen to live."""
        self.silent: set[int] = set()
        """Runs that were adopted as ready and did not answer since."""

    def see(self, sight: Sight) -> None:
        """Take over the processes of this step; before its rows are folded."""
        mark = self.book.log_id + ":"
        self.live = {
            server.token: server
            for server in sight.servers
            if (server.leader_alive or server.others)
            and (server.token.startswith(mark) or not self.book.log_id)
        }

    def of_run(self, run: int) -> Iterator[SeenServer]:
        """Yield the live trees of a run."""
        return (server for server in self.live.values() if server.run == run)

    def row(self, row: SeenRow) -> Iterator[str]:
        """Judge a row that was just folded against the world."""
        run = row.run or 0
        match row.kind:
            case "run.reserved":
                yield from self._reserved(row)
            case "run.launched":
                wrong = [s.leader for s in self.of_run(run) if s.leader != row.pid]
                if wrong:
                    yield f"run {run} was launched as pid {row.pid}, its leader is {wrong[0]}"
            case "run.exited":
                if any(s.leader_alive and s.leader == row.pid for s in self.of_run(run)):
                    yield f"run {run} is said to have exited, its leader {row.pid} lives"
            case "run.swept" | "run.released" | "run.abandoned":
                if row.kind == "run.released" and run in self._began and not self._swept(run):
                    yield f"run {run} is released, no end of its tree was recorded"
                for server in self.of_run(run):
                    yield f"{row.kind} of run {run}, but {_living(server)} of its tree live"
            case "run.adopted" if row.data["state"] == "ready":
                self.silent.add(run)
            case _:
                pass

    def _reserved(self, row: SeenRow) -> Iterator[str]:
        taken = {port: s for s in self.live.values() for port in s.ports}
        for port in (row.port or 0, *row.data["more_ports"]):
            if port in taken:
                other = taken[port]
                yield (
                    f"port {port} was given to run {row.run} while {_living(other)} "
                    f"of run {other.run} live"
                )

    def check(self, sight: Sight) -> Iterator[str]:
        """Judge what lives and who was signalled."""
        by_model: dict[str, str] = {}
        for token, server in self.live.items():
            if token not in self._known:
                self._known.add(token)
                self._began.add(server.run)
                yield from self._begun(server, sight)
            if server.model in by_model:
                yield f"two trees of {server.model!r} live: {by_model[server.model]}, {token}"
            by_model[server.model] = token
        if self.silent:
            self.silent &= self.book.runs.keys()
            self.silent -= {s.run for s in self.live.values() if s.answers and s.leader_alive}
        if sight.signalled:
            yield from self._signals(sight)
        self._pids = {pid for s in self.live.values() for pid in (s.leader, *s.others)}

    def _begun(self, server: SeenServer, sight: Sight) -> Iterator[str]:
        run = self.book.runs.get(server.run)
        nonce = server.token.rsplit(":", 1)[-1]
        if server.run in self.book.ends:
            yield f"a server of run {server.run} began, which has ended"
        elif run is None or run.nonce != nonce or run.stage in ("queued", "reserved"):
            yield f"a server of run {server.run} began before its run.launching was durable"
        elif server.model != run.model or not set(server.ports) <= set(run.ports):
            yield (
                f"a server of {server.model!r} on {server.ports} began for run {run.run} "
                f"of {run.model!r} on {run.ports}"
            )
        elif run.stage not in ("launching", "stopping", "loading", "stop_failed", "ready"):
            yield f"a server began for run {run.run}, which is {run.stage}"
        if not sight.open and sight.published is None:
            yield f"a server of run {server.run} began while nobody had the log open"

    def _swept(self, run: int) -> bool:
        return self.book.last is not None and self.book.last.run == run and self.book.last.swept

    def _signals(self, sight: Sight) -> Iterator[str]:
        now = {pid: s for s in self.live.values() for pid in (s.leader, *s.others)}
        stages = _stages(sight)
        for pid in sight.signalled:
            if pid not in now and pid not in self._pids:
                yield f"pid {pid} was signalled, which is none of ours"
            elif pid in now and stages.get(now[pid].run) in LENT_SOON:
                run = now[pid].run
                yield f"pid {pid} of run {run} was signalled while that is {stages[run]}"

    def alive(self, run: int) -> bool:
        """Tell whether anything of a run lives."""
        return any(True for _ in self.of_run(run))


def _living(server: SeenServer) -> str:
    pids = [*((server.leader,) if server.leader_alive else ()), *server.others]
    return f"pids {', '.join(map(str, pids))}"


def _stages(sight: Sight) -> Mapping[int, str]:
    if sight.published is None:
        return {}
    return {run["run"]: str(run["stage"]) for run in sight.published["runs"]}
