"""`moorage audit`: the log against the world, and with `--fix` the world brought back to it."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from moorage.cli import ps, source, values
from moorage.cli.console import Console, harmless
from moorage.core.audit import Finding, audit, dated
from moorage.core.events import ServiceOpened
from moorage.core.state import State
from moorage.errors import CorruptLogError, StateError, StateInUseError
from moorage.log.files import StateFiles
from moorage.log.head import read_cuts
from moorage.log.look import LogLook
from moorage.log.owner import Owner, is_claimed, look_for_owner
from moorage.log.reader import Filter, LogReader
from moorage.log.verify import flaws
from moorage.world.ports import LocalPorts
from moorage.world.processes import LocalProcesses
from moorage.world.view import look

_LOOKS = 5
"""How often log and world are looked at beside an owner that changes both meanwhile."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit found. `unseen` says why the world was not looked at, '' when it was."""

    state: State
    owner: Owner
    findings: tuple[Finding, ...]
    unseen: str = ""


def run(options: argparse.Namespace, console: Console) -> int:
    """Print every finding; with `--fix` fix them and print what is left."""
    try:
        with source.reading(options.state) as reader:
            database = Path(reader.path)
            if options.fix:
                _refuse_to_fix(database, look_for_owner(database))
            report = _audit(reader, console)
        if options.fix and report.findings:
            report = _fixed(console, database, report)
    except CorruptLogError as error:
        report = _of_the_log(((error.seq, error.problem),), ())
    _print(console, report)
    return 1 if report.findings else 0


def _of_the_log(chain: Sequence[tuple[int, str]], cuts: Sequence[str]) -> Report:
    """Return what is left to say of a log that does not add up."""
    found = audit(State(), None, chain=chain, cuts=cuts)
    return Report(State(), Owner(alive=None), found, "what the log adds up to cannot be told")


def _audit(reader: LogReader, console: Console) -> Report:
    database = Path(reader.path)
    owner = look_for_owner(database)
    files = StateFiles(database.parent)
    cuts = read_cuts(files.cuts) if database == files.database else ()
    console.progress("checking the log ...")
    flawed = list(flaws(reader))
    chain = [(flaw.seq, flaw.problem) for flaw in flawed]
    try:
        if any(flaw.unsound for flaw in flawed):
            return _of_the_log(chain, cuts)
        state = source.state_at(reader)
        unseen = _unseen(reader, owner)
        if unseen:
            return Report(state, owner, audit(state, None, chain=chain, cuts=cuts), unseen)
        state, found = _compared(reader, state, owner, chain, cuts)
        return Report(state, owner, dated(found, LogLook(reader)))
    except CorruptLogError as error:
        return _of_the_log(chain or [(error.seq, error.problem)], cuts)
    finally:
        console.progress("")


def _unseen(reader: LogReader, owner: Owner) -> str:
    """Return why this machine shows nothing of what the log is about, '' when it may."""
    last = reader.last(Filter(kind=ServiceOpened.kind))
    opened = last.event if last is not None else None
    if opened is None and reader.first > 1:
        return "the older segments, which say on which machine its service ran, are missing"
    if not isinstance(opened, ServiceOpened):
        return "no service was ever opened on the log"
    with closing(LocalProcesses()) as processes:
        here = opened.boot_id == processes.boot_id() or opened.host == socket.gethostname()
    if not here:
        return f"its service ran on {opened.host}, or this machine was called so then"
    if not owner.alive and is_claimed(reader.log_id):
        return "this is a copy, and the log goes on: audit the state folder that is in use"
    return ""


def _compared(
    reader: LogReader,
    state: State,
    owner: Owner,
    chain: Sequence[tuple[int, str]],
    cuts: Sequence[str],
) -> tuple[State, tuple[Finding, ...]]:
    """Look until log and world were seen at one moment; what is seen twice counts otherwise."""
    owned = owner.alive is not False
    before: tuple[Finding, ...] | None = None
    with closing(LocalProcesses()) as processes:
        for _ in range(_LOOKS):
            world = look(state, processes, LocalPorts(processes), owned=owned)
            found = audit(state, world, chain=chain, cuts=cuts)
            if not owned or reader.head == state.seq:
                return state, found
            before = found if before is None else tuple(f for f in found if f in before)
            state = source.state_at(reader)
    return state, before or ()


# --- fixing ---


def _refuse_to_fix(database: Path, owner: Owner) -> None:
    if database != StateFiles(database.parent).database:
        raise StateError(str(database), "is a copy; --fix needs the state folder itself")
    if owner.alive:
        raise StateInUseError(
            str(database.parent), f"{owner.who}, whose own audit(fix=True) it takes"
        )


def _fixed(console: Console, database: Path, before: Report) -> Report:
    """Open the service, which ends what has to end and keeps what lives, and audit again."""
    from moorage.cli import repair  # noqa: PLC0415 - only this needs all of a service

    broken = next((f for f in before.findings if f.kind == "broken-chain"), None)
    if broken is not None:
        raise StateError(
            str(database), f"{broken.problem}; --fix repairs no log: go on from a backup"
        )
    repair.repair(database.parent, before.state, console)
    with LogReader(database) as reader:
        after = _audit(reader, console)
    left = {(f.kind, f.run, f.port, f.pid) for f in after.findings}
    for finding in before.findings:
        if (finding.kind, finding.run, finding.port, finding.pid) not in left:
            console.line(f"{console.paint('fixed', 'green')}: {harmless(finding.problem)}")
            console.object({"object": "fixed"} | finding.to_data())
    return after


# --- printing ---


def _print(console: Console, report: Report) -> None:
    for finding in report.findings:
        _print_finding(console, finding)
    count = len(report.findings)
    state = report.state
    console.object(
        {"object": "audit", "findings": count, "seq": state.seq, "at": state.at}
        | {"owner_alive": report.owner.alive, "world_unseen": report.unseen}
    )
    if report.unseen:
        console.line(f"the world was not looked at: {harmless(report.unseen)}")
    against = "the log itself" if report.unseen else "log and world"
    what = f"{count} findings" if count != 1 else "1 finding"
    if state.seq:
        where = f"{values.moment(state.at)}{ps.ago(state.at)}"
        console.line(f"{what} in {against}, as of event {state.seq} ({where})")
    else:
        console.line(f"{what} in {against}")


def _print_finding(console: Console, finding: Finding) -> None:
    console.object({"object": "finding"} | finding.to_data())
    console.line(f"{console.paint(finding.kind, 'red')}: {harmless(finding.problem)}")
    if finding.since:
        console.line(f"    since {values.moment(finding.since)}{ps.ago(finding.since)}")
    if finding.events:
        console.line(f"    events {' to '.join(map(str, finding.events))}")
    console.line(f"    --fix: {finding.fix or 'nothing, this takes a person'}")
