"""Runs the migrations: on the connection the program hands over, else on a named database."""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import context
from sqlalchemy import event


def migrate(connection: sa.Connection) -> None:
    context.configure(connection=connection, target_metadata=None)
    with context.begin_transaction():
        context.run_migrations()


def named_database() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url")
    url = url or os.environ.get("MOORAGE_DATABASE_URL")
    if not url:
        raise SystemExit("name the database: `-x url=sqlite:///state/moorage.db`")
    return url


def migrate_named_database() -> None:
    engine = sa.create_engine(named_database(), poolclass=sa.NullPool)

    # sqlite3 would begin no transaction before DDL; without one a failed upgrade stays half done.
    @event.listens_for(engine, "connect")
    def _(dbapi_connection: object, _record: object) -> None:
        dbapi_connection.isolation_level = None  # type: ignore[attr-defined]

    @event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.begin() as connection:
        migrate(connection)


if context.is_offline_mode():
    raise SystemExit("SQL scripts are not offered: a log gets its id while it is created")
handed_over = context.config.attributes.get("connection")
if handed_over is None:
    migrate_named_database()
else:
    migrate(handed_over)
