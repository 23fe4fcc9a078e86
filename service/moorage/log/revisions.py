"""The schema's revisions, on an open connection."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from moorage.errors import CorruptLogError, NewerSchemaError, NotALogError
from moorage.log.schema import APPLICATION_ID, log

if TYPE_CHECKING:
    from alembic.config import Config

KNOWN = ("0002", "0001")
"""All revisions of this program, newest first.

Written down, since Alembic takes a third of the time that a command needs to start, and only an
upgrade needs it.
"""

_version = sa.table("alembic_version", sa.column("version_num"))

# Alembic keeps the context of the running migration in a global.
_one_at_a_time = threading.Lock()


def revision(connection: sa.Connection, database: Path) -> str | None:
    """Return a database's revision, None for one that holds nothing yet.

    Raises NotALogError for another program's database. Needs a transaction.
    """
    owner = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    if owner == APPLICATION_ID:
        return _current(connection, database)
    if owner or connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first():
        raise NotALogError(str(database), "is a database of another program")
    return None


def _current(connection: sa.Connection, database: Path) -> str | None:
    if not sa.inspect(connection).has_table(_version.name):
        return None
    heads = connection.execute(sa.select(_version.c.version_num)).scalars().all()
    if len(heads) > 1 or not all(isinstance(each, str) and each for each in heads):
        told = ", ".join(map(repr, heads))
        raise CorruptLogError(str(database), 0, f"its schema is said to be {told}")
    return heads[0] if heads else None


def check_known(found: str | None, database: Path) -> None:
    """Raise NewerSchemaError for a revision that this program does not have."""
    if found is not None and found not in KNOWN:
        raise NewerSchemaError(
            str(database),
            f"has schema {found}, this program knows up to {head()}; upgrade the program",
        )


def head() -> str:
    """Return the newest revision this program knows."""
    return KNOWN[0]


def upgrade(connection: sa.Connection, *, log_id: str | None = None) -> None:
    """Bring a database to this program's schema in one transaction, or leave it as it was.

    A new one becomes a segment of the log `log_id`, or by default a log of its own.
    """
    from alembic import command  # noqa: PLC0415  see KNOWN

    with _one_at_a_time, connection.begin():
        config = _config()
        config.attributes["connection"] = connection
        config.attributes["log_id"] = log_id
        command.upgrade(config, "head")


def log_id(connection: sa.Connection, database: Path) -> str:
    """Return the id of the log; its schema must be there. Needs a transaction.

    Raises CorruptLogError when there is none.
    """
    found = connection.execute(sa.select(log.c.log_id)).scalars().all()
    known = found[0] if len(found) == 1 else None
    if not isinstance(known, str) or not known.isascii() or not known.isalnum():
        raise CorruptLogError(str(database), 0, "it does not say which log it is of")
    return known


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415  see KNOWN

    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _scripts() -> Path:
    package = Path(__file__).parents[1]
    shipped = package / "_migrations"
    return shipped if shipped.is_dir() else package.parents[1] / "migrations"
