"""Databases that are damaged, rewritten or of another time: an answer or one line, never more."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import bending, bounds
from fuzz.seeds import PORTS, seeds
from moorage import ModelService, MoorageError
from moorage.core.fold import replay
from moorage.core.snapshot import state_to_data
from moorage.log.reader import LogReader
from moorage.testing import FakeClock, fake_parts
from support.examples import NAMES, SHARES, Share

Command = tuple[str, ...]
chances = st.randoms(use_true_random=False)

READS: tuple[Command, ...] = (
    ("ps",),
    ("ps", "--json"),
    ("events",),
    ("events", "--json"),
    ("events", "-f", "--limit", "40"),
    ("events", "--model", "a"),
    ("replay",),
    ("replay", "--at", "12"),
    ("replay", "--at", "2026-01-01T00:00:01", "--json"),
    ("why", "a"),
    ("why", "d", "--json"),
    ("why", "20"),
    ("why", "7", "--json"),
    ("audit",),
    ("audit", "--json"),
    ("verify",),
    ("verify", "--json"),
    ("export",),
    ("logs", "a"),
    ("logs", "model-1", "-f"),
    ("timeline", "-o", "OUT"),
    ("timeline", "--json", "-o", "OUT"),
    ("sql", "SELECT * FROM models"),
    ("sql", "SELECT * FROM runs", "--json"),
    ("sql", "SELECT * FROM ports"),
    ("sql", "SELECT * FROM leaks"),
    ("sql", "SELECT * FROM evictions"),
    ("sql", "SELECT * FROM loads"),
    ("sql", "SELECT * FROM events", "--json"),
    ("backup", "OUT"),
    ("db", "current"),
)
OWNS: tuple[Command, ...] = (("archive",), ("db", "upgrade"), ("open",))
"""What takes the log, and may change it, where it is one."""


def digest(folder: Path) -> dict[str, str]:
    """Return a hash of every database file of a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.db"))
    }


def check_reads(state: Path, chance: Random, count: int = 3) -> None:
    """Ask some commands; whatever they answer, the log is the same after it."""
    before = digest(state)
    for command in chosen(READS, chance, count):
        ask(command, state)
        assert digest(state) == before, command


def chosen(commands: Sequence[Command], chance: Random, count: int) -> list[Command]:
    """Return some commands, each once."""
    return chance.sample(commands, count)


def ask(command: Command, state: Path) -> bounds.Answer:
    """Run a command that reads."""
    with tempfile.TemporaryDirectory() as out:
        named = [str(Path(out) / "file") if word == "OUT" else word for word in command]
        return bounds.run(*named, "--state", state)


def check_owns(state: Path, chance: Random) -> None:
    """Take the log; a refusal leaves the events that were there, and an answer the old ones."""
    before = events(state)
    command = chance.choice(OWNS)
    if command == ("open",):
        opened(state)
    else:
        bounds.run(*command, "--state", state)
    after = events(state)
    if before is not None and command != ("archive",):
        assert after is not None, command
        assert after[: len(before)] == before, command


def opened(state: Path) -> None:
    """Open and close a service on fakes, or be refused."""
    parts = fake_parts(clock=FakeClock())
    with bounds.in_time(), contextlib.suppress(MoorageError):
        ModelService.open(state, ports=PORTS, max_loaded=2, parts=parts).close()


def events(state: Path) -> list[tuple[object, ...]] | None:
    """Return the events' rows as they are stored, None where SQLite cannot tell."""
    try:
        with closing(sqlite3.connect(state / "moorage.db")) as database:
            database.text_factory = bytes
            return database.execute("SELECT * FROM events ORDER BY rowid").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # the latter in the text of an error
        return None


def bend_file(state: Path, chance: Random) -> None:
    """Damage one of a log's files, wherever its bytes are."""
    path = chance.choice([path for path in sorted(state.rglob("*")) if path.is_file()])
    path.chmod(0o600)
    path.write_bytes(bending.bent_bytes(path.read_bytes(), chance))


def bend_rows(state: Path, chance: Random) -> None:
    bending.bend_rows(state / "moorage.db", chance)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name) / "state"


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
@pytest.mark.parametrize(("bend", "examples"), [(bend_rows, 12), (bend_file, 10)])
def test_a_damaged_log_is_answered_for_or_refused_in_one_line_and_is_not_changed(
    share: Share, bend: Callable[[Path, Random], None], examples: int
) -> None:
    @share.of(examples)
    @given(seed=st.integers(0, len(seeds()) - 1), chance=chances)
    def check(seed: int, chance: Random) -> None:
        with folder() as state:
            seeds()[seed].put(state)
            bend(state, chance)
            check_reads(state, chance)
            check_owns(state, chance)


@pytest.mark.parametrize("statement", bending.OTHER_TABLES)
def test_whatever_is_beside_the_events_is_refused_or_done_without(
    statement: str, tmp_path: Path
) -> None:
    chance = Random(statement)
    state = chance.choice(seeds()).put(tmp_path / "state")
    bending.change(state / "moorage.db", statement)

    check_reads(state, chance, 4)
    check_owns(state, chance)


# --- what was found -------------------------------------------------------------------------------

OPENED = "UPDATE events SET data = json_set(data, ?, json(?)) WHERE kind = 'service.opened'"
ROW = "UPDATE events SET {} = ? WHERE seq = 5"


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (OPENED, ("$.ports", "[1]")),
        (OPENED, ("$.ports", "[[18000,1000000000000]]")),
        (OPENED, ("$.ports", "[[1,65535],[1,65535]]")),
        (OPENED, ("$.max_loaded", '"many"')),
        (OPENED, ("$.min_residency_s", "1e999")),
        (OPENED, ("$.min_residency_s", "9" * 400)),
        (ROW.format("at"), ("[" * 3000,)),
        (ROW.format("at"), ("2026-01-01",)),
        (ROW.format("data"), (b"{}",)),
        (ROW.format("data"), ("[" * 3000,)),
        (ROW.format("data"), ('{"' + "a" * 9000 + '":1}',)),
        (ROW.format("version"), (b"1",)),
        (ROW.format("cause"), ("x",)),
        (ROW.format("cause"), (2**63 - 1,)),
        (ROW.format("hash"), (None,)),
        (ROW.format("hash"), (b"\xff",)),
        (ROW.format("kind"), ("run.fetched",)),
    ],
)
def test_a_row_that_no_writer_makes_is_named(
    statement: str, values: tuple[object, ...], tmp_path: Path
) -> None:
    state = seeds()[2].put(tmp_path / "state")
    rehashed = " hash = " not in statement
    bending.change(state / "moorage.db", statement, *values, rehashed=rehashed)

    verified = bounds.run("verify", "--state", state)

    assert verified.status == 1
    assert verified.out.startswith("row ")
    for command in chosen(READS, Random(statement), 3):
        ask(command, state)
    opened(state)


def test_a_head_file_with_odd_bytes_is_as_good_as_none(tmp_path: Path) -> None:
    state = seeds()[0].put(tmp_path / "state")
    (state / "moorage.head").write_bytes(b"%020d " % 7 + b"\xff" * 64 + b"\n")

    opened(state)

    assert bounds.run("verify", "--state", state).status == 0


@pytest.mark.parametrize("damage", ['{"max_loaded": "many"}', '{"ports": [[1, 1000000000000]]}'])
def test_a_snapshot_of_the_wrong_shape_is_passed_over(damage: str, tmp_path: Path) -> None:
    state = seeds()[1].put(tmp_path / "state")
    whole = bounds.run("ps", "--json", "--state", state)
    with LogReader(state) as reader:
        data = state_to_data(replay(reader.read())) | json.loads(damage)
    bending.change(
        state / "moorage.db",
        "INSERT INTO snapshots SELECT seq, hash, 1, ? FROM events ORDER BY seq DESC LIMIT 1",
        json.dumps(data),
    )

    assert bounds.run("ps", "--json", "--state", state) == whole
    opened(state)
