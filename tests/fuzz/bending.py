"""Valid things bent: bytes, JSON, rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from moorage.core import chain

PAGE_BYTES = 4096

ODD_TEXTS = (
    *("", "0", "-1", "null", "true", "nan", "a" * 5_000, "../../etc/passwd", "/dev/zero", "%s%n"),
    *("\0", "\n", "\x1b[2J", "\udc80", "\ud800", "\u2028", "naïve ☃", "🦊", "١٢٣", "²"),
    *("2026-01-31T23:59:59.123456Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59"),
    *("2026-13-45T99:99:99Z", "10000-01-01", "1969-12-31T23:59:59.999999Z"),
    *("run.ready", "log.created", "log.continued", "ready", "fetching", "leased", "failed: load"),
)
ODD_NUMBERS = (
    *(0, 1, -1, 2, 64, 65_535, 65_536, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**18),
    *(10**400, 0.0, -0.5, 1e-300, 1e308, 0.1),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [{}], {"a": 1}, [None], [1], ["a"], [[1, 2]], [[2, 1]]),
    *([[1, 65_535]], [[18_000, 10**12]], [[0, 2**62]], [["a", "b"]], [[1]], [[1, 2, 3]]),
    *([18_000] * 3, {"name": "m"}, {"": None}, [[[[]]]]),
)


def odd(chance: Random) -> Any:
    """Return a value that few fields can mean."""
    return chance.choice(chance.choice((ODD_TEXTS, ODD_NUMBERS, ODD_VALUES)))


def bent_bytes(data: bytes, chance: Random) -> bytes:
    """Damage bytes as disks, editors and networks do, in one to three places."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(data)) if data else 0
        span = chance.choice((1, 1, 2, 8, 100, PAGE_BYTES))
        data = chance.choice(BENDS)(data, at, span, chance)
    return data


def _cut(data: bytes, at: int, span: int, chance: Random) -> bytes:
    return data[:at]


def _left_out(data: bytes, at: int, span: int, chance: Random) -> bytes:
    return data[:at] + data[at + span :]


def _overwritten(data: bytes, at: int, span: int, chance: Random) -> bytes:
    return data[:at] + chance.randbytes(span) + data[at + span :]


def _zeroed(data: bytes, at: int, span: int, chance: Random) -> bytes:
    return data[:at] + b"\0" * span + data[at + span :]


def _doubled(data: bytes, at: int, span: int, chance: Random) -> bytes:
    return data[: at + span] + data[at:]


def _page_for_another(data: bytes, at: int, span: int, chance: Random) -> bytes:
    page, other = (chance.randrange(len(data) // PAGE_BYTES + 1) * PAGE_BYTES for _ in range(2))
    return data[:page] + data[other : other + PAGE_BYTES] + data[page + PAGE_BYTES :]


def _head_changed(data: bytes, at: int, span: int, chance: Random) -> bytes:
    """Change the beginning, where formats say how long things are."""
    at = chance.randrange(min(len(data), 120) or 1)
    few = chance.choice((1, 2, 4))
    return data[:at] + chance.randbytes(few) + data[at + few :]


BENDS = (_cut, _left_out, _overwritten, _zeroed, _doubled, _page_for_another, _head_changed)


def bent_json(value: Any, chance: Random) -> Any:
    """Return a JSON value with one thing in it replaced, left out, doubled or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        return _bent_object(value, chance)
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        bent = chance.choice(([], [value[at]] * 2, *[[bent_json(value[at], chance)]] * 3))
        return [*value[:at], *bent, *value[at + 1 :]]
    if isinstance(value, int) and chance.random() < 0.3:
        return value + chance.choice((-1, 1, 10, 1000))
    return odd(chance)


def _bent_object(value: dict[str, Any], chance: Random) -> dict[str, Any]:
    key = chance.choice(sorted(value))
    rest = {k: v for k, v in value.items() if k != key}
    match chance.randrange(8):
        case 0:
            return rest
        case 1:
            return value | {chance.choice(ODD_TEXTS): odd(chance)}
        case 2:
            return rest | {chance.choice(ODD_TEXTS): value[key]}
        case _:
            return value | {key: bent_json(value[key], chance)}


COLUMNS = ("seq", "at", "kind", "version", "model", "run", "port", "pid", "cause", "data", "hash")
ODD_COLUMNS: tuple[Any, ...] = (
    *(None, "", b"", b"\xff\xfe", b"\x00", 1.5, float("inf"), -1, 0, 1, 2, 10**9, 2**63 - 1),
    *(-(2**63), "x", "1", "é" * 3000, "{}", "[]", "null", "{", '{"a":', "[" * 3000, "9" * 5000),
    *('{"a":NaN}', '{"a":1e999}', '{"":""} ', '{"a":1}{"a":1}', "run.nothing", "run.ready"),
)


def open_up(path: Path) -> sqlite3.Connection:
    """Open a log's database without what protects it: triggers, CHECKs and the columns' types."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA ignore_check_constraints = ON")
    database.execute("PRAGMA synchronous = OFF")
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        database.execute(f"DROP TRIGGER {name}")
    database.execute("PRAGMA writable_schema = ON")
    database.execute(
        "UPDATE sqlite_master SET sql = replace(replace(sql, ' STRICT', ''), 'NOT NULL', '')"
        " WHERE type = 'table'"
    )
    database.execute("PRAGMA writable_schema = RESET")
    return database


def bend_rows(path: Path, chance: Random) -> None:
    """Change one to three rows of a log, as nobody may; some logs are hashed again after it."""
    with closing(open_up(path)) as database:
        for _ in range(chance.choice((1, 1, 2, 3))):
            _bend_row(database, chance)
        if chance.random() < 0.7:
            rehash(database)


def _bend_row(database: sqlite3.Connection, chance: Random) -> None:
    rows = database.execute("SELECT seq, kind, data FROM events").fetchall()
    if not rows:  # the change before this one took the last
        return
    # One of each kind is as likely as another: most rows of a log are of few kinds.
    kind = chance.choice(sorted({str(row[1]) for row in rows}))
    seq, _, data = chance.choice([row for row in rows if str(row[1]) == kind])
    match chance.randrange(8):
        case 0:
            column = chance.choice(COLUMNS)
            wanted = [v for v in ODD_COLUMNS if column != "seq" or isinstance(v, int)]
            database.execute(
                f"UPDATE OR IGNORE events SET {column} = ? WHERE seq = ?",
                (chance.choice(wanted), seq),
            )
        case 1:
            database.execute("DELETE FROM events WHERE seq = ?", (seq,))
        case 2:
            database.execute("DELETE FROM events WHERE seq > ?", (seq,))
        case 3:
            column = chance.choice(COLUMNS[1:-1])
            other = chance.choice(rows)[0]
            database.execute(
                f"UPDATE events SET {column} = (SELECT {column} FROM events WHERE seq = ?)"
                " WHERE seq = ?",
                (other, seq),
            )
        case _:
            try:
                value = bent_json(json.loads(data), chance)
            except (TypeError, ValueError):
                return
            database.execute("UPDATE events SET data = ? WHERE seq = ?", (_json(value), seq))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def rehash(database: sqlite3.Connection) -> None:
    """Chain all rows anew, as an owner could who changes his log."""
    (log_id,) = database.execute("SELECT log_id FROM log").fetchone()
    previous = chain.genesis(str(log_id))
    database.execute("BEGIN")
    for row in database.execute("SELECT * FROM events ORDER BY seq").fetchall():
        try:
            digest = chain.link(previous, row[:-1])
        except (TypeError, ValueError):  # of a type that has no hash
            break
        database.execute("UPDATE events SET hash = ? WHERE seq = ?", (digest, row[0]))
        previous = digest
    database.execute("COMMIT")


OTHER_TABLES = (
    *("UPDATE log SET log_id = NULL", "UPDATE log SET log_id = ''", "DELETE FROM log"),
    *("UPDATE log SET log_id = x'ff00'", "UPDATE log SET log_id = 12", "DELETE FROM events"),
    *("UPDATE log SET log_id = '../../x'", "DELETE FROM alembic_version"),
    "UPDATE alembic_version SET version_num = '9999'",
    "UPDATE alembic_version SET version_num = ''",
    "UPDATE alembic_version SET version_num = x'00ff'",
    "UPDATE alembic_version SET version_num = 7.5",
    "UPDATE alembic_version SET version_num = 'head'",
    "UPDATE alembic_version SET version_num = '0001@head'",
    "UPDATE alembic_version SET version_num = 'base'",
    "UPDATE alembic_version SET version_num = '%(here)s'",
    "UPDATE alembic_version SET version_num = '000'",
    *("INSERT INTO alembic_version VALUES ('0000')", "INSERT INTO alembic_version VALUES ('9999')"),
    *("DROP TABLE alembic_version", "DROP TABLE log", "DROP TABLE events", "DROP TABLE snapshots"),
    *("DROP INDEX events_run", "ALTER TABLE events DROP COLUMN hash"),
    "ALTER TABLE events RENAME COLUMN data TO text",
    *("ALTER TABLE events ADD COLUMN more TEXT", "ALTER TABLE log RENAME TO logs"),
    *("PRAGMA application_id = 0", "PRAGMA application_id = 7", "PRAGMA user_version = 99"),
    "INSERT OR REPLACE INTO snapshots SELECT seq, hash, 1, '{' FROM events",
    "INSERT OR REPLACE INTO snapshots SELECT seq, hash, 1, '{}' FROM events",
    "INSERT OR REPLACE INTO snapshots SELECT seq, hash, 1, 7 FROM events",
    "INSERT OR REPLACE INTO snapshots SELECT seq, hash, 1, x'ff' FROM events",
    "INSERT OR REPLACE INTO snapshots SELECT seq, hash, 1, '[[]]' FROM events",
)
"""Changes to what is beside the events: the identity, snapshots, the schema and its revision."""


def change(path: Path, statement: str, *values: Any, rehashed: bool = False) -> None:
    """Change a log's database as nobody may."""
    with closing(open_up(path)) as database:
        database.execute(statement, values)
        if rehashed:
            rehash(database)


def lines(objects: Iterable[Any]) -> str:
    """Return objects as JSON Lines."""
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in objects)
