"""`moorage verify`: what was done to a log is found and named."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from moorage.core import chain
from moorage.core.fold import FOLD_VERSION, replay
from moorage.core.snapshot import state_to_data
from moorage.log.rows import Row
from moorage.log.sqlite import SqliteLog
from moorage.protocols import Snapshot
from offline.acting import Acting
from offline.conftest import Ask, written
from support.history import History

ROWS = 100


@pytest.fixture
def whole(state: Path) -> Path:
    entries = list(History(seed=5).entries(30))[:ROWS]
    return written(state, entries)


def tamper(state: Path, *statements: str, chained: bool = False) -> None:
    """Change rows as somebody with SQLite at hand can; `chained` makes all hashes fit again."""
    with closing(sqlite3.connect(state / "moorage.db", isolation_level=None)) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        if chained:
            (log_id,) = database.execute("SELECT log_id FROM log").fetchone()
            previous = chain.genesis(log_id)
            for found in database.execute("SELECT * FROM events ORDER BY seq").fetchall():
                previous = chain.link(previous, Row._make(found)[:-1])
                change = "UPDATE events SET hash = ? WHERE seq = ?"
                database.execute(change, (previous, found[0]))


def test_a_whole_log_is_told_whole_and_how_fresh_it_is(whole: Path, ask: Ask) -> None:
    answer = ask("verify", "--state", whole)

    assert answer.status == 0
    assert answer.out.startswith(f"whole: {ROWS} rows, the last of 2026-03-02T")
    assert "ago" in answer.out


SWAP = (
    "UPDATE events SET seq = -1 WHERE seq = 40",
    "UPDATE events SET seq = 40 WHERE seq = 41",
    "UPDATE events SET seq = 41 WHERE seq = -1",
)


@pytest.mark.parametrize(
    ("statements", "row", "says"),
    [
        (["UPDATE events SET model = 'other' WHERE seq = 40"], 40, "was changed"),
        (["UPDATE events SET at = '2020' || substr(at, 5) WHERE seq = 40"], 40, "was changed"),
        (["UPDATE events SET data = data || ' ' WHERE seq = 40"], 40, "was changed"),
        (["UPDATE events SET data = '{' WHERE seq = 40"], 40, "cannot be understood"),
        (["UPDATE events SET data = '[]' WHERE seq = 40"], 40, "cannot be understood"),
        (["UPDATE events SET kind = 'run.flown' WHERE seq = 40"], 40, "is not known"),
        (["UPDATE events SET version = 9 WHERE seq = 40"], 40, "is not known"),
        (["UPDATE events SET cause = 90 WHERE seq = 40"], 40, "names a later row, 90"),
        (["DELETE FROM events WHERE seq = 40"], 40, "is missing; row 41 follows row 39"),
        (["DELETE FROM events WHERE seq = 1"], 2, "is the first one, but begins neither"),
        (["DELETE FROM events WHERE seq > 90"], 91, "it once ended at row 100"),
        (["DELETE FROM events"], 1, "it once ended at row 100"),
        (SWAP, 40, "was changed"),
    ],
)
def test_what_was_done_to_a_row_is_named(
    whole: Path, ask: Ask, statements: list[str], row: int, says: str
) -> None:
    tamper(whole, *statements)

    answer = ask("verify", "--state", whole, "--json")

    named = [flaw["problem"] for flaw in answer.of("flaw") if flaw["seq"] == row]
    assert answer.status == 1
    assert any(says in problem for problem in named)
    assert all(end["flaws"] == len(answer.of("flaw")) for end in answer.of("verify"))


def test_one_change_is_named_once(whole: Path, ask: Ask) -> None:
    tamper(whole, "UPDATE events SET pid = 99999 WHERE seq = 40")

    answer = ask("verify", "--state", whole, "--json")

    assert [flaw["seq"] for flaw in answer.of("flaw")] == [40]


def test_rows_that_do_not_go_together_are_found_though_all_hashes_fit(
    whole: Path, ask: Ask
) -> None:
    (whole / "moorage.head").unlink()
    tamper(whole, "UPDATE events SET run = run + 1 WHERE kind = 'run.reserved'", chained=True)

    answer = ask("verify", "--state", whole, "--json")

    assert answer.status == 1
    assert "contradicts the rows before it" in answer.of("flaw")[0]["problem"]


@pytest.mark.parametrize("field", ["ports", "max_loaded"])
def test_data_of_the_wrong_shape_is_found_whoever_wrote_the_hashes(
    whole: Path, ask: Ask, field: str
) -> None:
    (whole / "moorage.head").unlink()
    tamper(
        whole,
        f"UPDATE events SET data = json_set(data, '$.{field}', 'x') WHERE seq = 2",
        chained=True,
    )

    answers = [ask(command, "--state", whole) for command in ("verify", "audit")]

    assert [answer.status for answer in answers] == [1, 1]


def test_a_rewritten_log_is_told_by_the_head_beside_it(whole: Path, ask: Ask) -> None:
    tamper(whole, "UPDATE events SET pid = 99999 WHERE seq = 40", chained=True)

    answer = ask("verify", "--state", whole, "--json")

    assert answer.of("flaw")[-1]["problem"] == "differs from the one that was written there"


def test_a_snapshot_that_is_not_what_the_rows_add_up_to_is_found(whole: Path, ask: Ask) -> None:
    entries = list(History(seed=5).entries(30))[:50]
    data = state_to_data(replay(entries)) | {"max_loaded": 77}
    log = SqliteLog.open(whole)
    log.append((), snapshot=Snapshot(50, FOLD_VERSION, data))
    log.close()

    answer = ask("verify", "--state", whole, "--json")

    (flaw,) = answer.of("flaw")
    assert (flaw["seq"], answer.status) == (50, 1)
    assert "snapshot" in flaw["problem"]


def test_a_snapshot_that_is_right_is_no_flaw(state: Path, ask: Ask) -> None:
    acting = Acting()
    acting.define("a", "b")
    acting.load("a")
    log = SqliteLog.open(state)
    snapshot = Snapshot(acting.state.seq, FOLD_VERSION, state_to_data(acting.state))
    log.append(acting.entries, snapshot=snapshot)
    log.close()

    assert ask("verify", "--state", state).status == 0


def torn(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size // 2)


def flipped(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.seek(wal.stat().st_size // 2)
        file.write(b"\xff" * 64)


@pytest.mark.parametrize("damage", [torn, flipped, Path.unlink])
def test_what_a_damaged_wal_has_lost_shows_as_a_cut(
    tmp_path: Path, whole: Path, ask: Ask, damage: Callable[[Path], None]
) -> None:
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    log = SqliteLog.open(whole)
    entries = list(History(seed=5).entries(30))[ROWS : ROWS + 50]
    for entry in entries:
        log.append([entry])
    for path in whole.glob("moorage.*"):  # as they are while it is open: after a crash
        (crashed / path.name).write_bytes(path.read_bytes())
    log.close()
    untouched = ask("verify", "--state", crashed)
    damage(crashed / "moorage.db-wal")

    answer = ask("verify", "--state", crashed, "--json")

    assert untouched.status == 0
    assert answer.status == 1
    assert f"it once ended at row {ROWS + 50}" in answer.of("flaw")[-1]["problem"]


def test_a_deleted_shm_costs_nothing(tmp_path: Path, whole: Path, ask: Ask) -> None:
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    log = SqliteLog.open(whole)
    log.append(list(History(seed=5).entries(30))[ROWS : ROWS + 1])
    for name in ("moorage.db", "moorage.db-wal", "moorage.head"):
        (crashed / name).write_bytes((whole / name).read_bytes())
    log.close()

    answer = ask("verify", "--state", crashed, "--json")

    assert (answer.status, answer.of("verify")[0]["rows"]) == (0, ROWS + 1)


def test_a_copy_is_told_to_have_no_head_to_be_held_against(
    tmp_path: Path, whole: Path, ask: Ask
) -> None:
    tamper(whole, "DELETE FROM events WHERE seq > 90")
    (tmp_path / "copy.db").write_bytes((whole / "moorage.db").read_bytes())

    answer = ask("verify", "--state", tmp_path / "copy.db")

    assert answer.status == 0
    assert "rows cut from its end would not show" in answer.out
