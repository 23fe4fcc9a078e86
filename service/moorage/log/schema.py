"""The tables as the queries see them. What is in the file is decided by the migrations alone."""

from __future__ import annotations

import sqlalchemy as sa

APPLICATION_ID = 0x4D4F4F52  # "MOOR": how `file` and we tell a log from any other database

metadata = sa.MetaData()

log = sa.Table(
    "log",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("log_id", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("model", sa.Text),
    sa.Column("run", sa.Integer),
    sa.Column("port", sa.Integer),
    sa.Column("pid", sa.Integer),
    sa.Column("cause", sa.Integer),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("fold_version", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)

state_bytes = sa.cast(snapshots.c.state, sa.LargeBinary)
"""The state of a snapshot for `rows.to_snapshots`: damaged text would end the whole query."""
