"""What the migrations make, which Alembic's own check does not see all of."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from moorage.log import revisions, views
from moorage.log.files import StateFiles
from moorage.log.schema import APPLICATION_ID, metadata
from moorage.log.sqlite import SqliteLog

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def database(state: Path) -> Iterator[sqlite3.Connection]:
    SqliteLog.open(state).close()
    with closing(sqlite3.connect(StateFiles(state).database)) as connection:
        yield connection


def names(database: sqlite3.Connection, kind: str) -> set[str]:
    query = "SELECT name FROM sqlite_master WHERE type = ? AND name NOT LIKE 'sqlite_%'"
    return {name for (name,) in database.execute(query, (kind,))}


def test_a_new_log_has_these_objects(database: sqlite3.Connection) -> None:
    assert names(database, "table") == {"alembic_version", *metadata.tables}
    assert names(database, "index") == {"events_run"}
    assert names(database, "view") == {view.name for view in views.ALL}
    assert names(database, "trigger") == {
        "events_no_update",
        "events_no_delete",
        "events_in_order",
        "log_no_update",
        "log_no_delete",
        "log_only_one",
    }
    assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


@pytest.mark.parametrize("table", metadata.tables.values(), ids=str)
def test_the_queries_know_each_column_as_it_is(database: sqlite3.Connection, table: object) -> None:
    found = {
        name: (kind, bool(required))
        for _, name, kind, required, _, _ in database.execute(f"PRAGMA table_info({table})")
    }
    known = {
        column.name: (str(column.type), not column.nullable)
        for column in metadata.tables[str(table)].columns
    }

    assert found == known


def test_tables_refuse_values_of_another_type(database: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value in INTEGER"):
        database.execute(
            "INSERT INTO events VALUES (1, '', '', 'one', NULL, NULL, NULL, NULL, NULL, '', '')"
        )


def test_alembic_makes_and_tells_the_same_log_by_hand(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    url = f"url=sqlite:///{StateFiles(state).database}"

    def alembic(*command: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "alembic", "-x", url, *command],
            cwd=CHECKOUT,
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout

    alembic("upgrade", "head")
    told = alembic("current")
    with closing(SqliteLog.open(state)) as log:
        assert len(log.log_id) == 16
    assert told.startswith(f"{revisions.head()} (head)")


def test_the_revisions_written_down_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory.from_config(revisions._config())

    assert tuple(script.revision for script in scripts.walk_revisions()) == revisions.KNOWN
