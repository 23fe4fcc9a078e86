"""The event log: its identity, the events, which nothing can change, and snapshots."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPLICATION_ID = 0x4D4F4F52

# INSERT OR REPLACE runs no DELETE trigger by default: hence a guard on INSERT as well.
TRIGGERS = (
    """CREATE TRIGGER events_no_update BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only: no UPDATE'); END""",
    """CREATE TRIGGER events_no_delete BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only: no DELETE'); END""",
    """CREATE TRIGGER events_in_order BEFORE INSERT ON events
    WHEN NEW.seq <> (SELECT max(seq) + 1 FROM events)
    BEGIN SELECT RAISE(ABORT, 'events are append-only: not the next seq'); END""",
    """CREATE TRIGGER log_no_update BEFORE UPDATE ON log
    BEGIN SELECT RAISE(ABORT, 'the identity of a log never changes: no UPDATE'); END""",
    """CREATE TRIGGER log_no_delete BEFORE DELETE ON log
    BEGIN SELECT RAISE(ABORT, 'the identity of a log never changes: no DELETE'); END""",
    """CREATE TRIGGER log_only_one BEFORE INSERT ON log
    WHEN EXISTS (SELECT 1 FROM log)
    BEGIN SELECT RAISE(ABORT, 'a log has one identity'); END""",
)


def upgrade() -> None:
    op.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    create_log()
    create_events()
    create_snapshots()
    for trigger in TRIGGERS:
        op.execute(trigger)
    identify()


def create_log() -> None:
    op.create_table(
        "log",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1"), primary_key=True),
        sa.Column("log_id", sa.Text, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sqlite_strict=True,
    )


def create_events() -> None:
    op.create_table(
        "events",
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
        sqlite_strict=True,
    )
    # Ends in the rowid, which is seq, so it gives the order too. Only what picks few of many rows
    # is worth an index: each one costs every commit a page, and a scan for a kind or a model reads
    # a large part of the rows anyway.
    op.create_index("events_run", "events", ["run"], sqlite_where=sa.text("run IS NOT NULL"))


def create_snapshots() -> None:
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("fold_version", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sqlite_strict=True,
    )


def identify() -> None:
    # A later segment of a log has the id of the first.
    log_id = context.config.attributes.get("log_id") or secrets.token_hex(8)
    op.execute(
        sa.text(
            "INSERT INTO log (id, log_id, created)"
            " VALUES (1, :log_id, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))"
        ).bindparams(log_id=log_id)
    )
