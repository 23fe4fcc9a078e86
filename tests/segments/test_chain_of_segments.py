"""A log goes on from segment to segment as if it were one."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moorage.actors.ledger import Ledger
from moorage.core import decide
from moorage.core.continuing import continued
from moorage.core.events import Entry
from moorage.core.fold import FOLD_VERSION, FoldError, replay
from moorage.core.snapshot import state_from_data
from moorage.errors import StateError
from moorage.log.files import StateFiles
from moorage.log.reader import Filter, LogReader
from moorage.log.sqlite import SqliteLog
from moorage.log.verify import Flaw, flaws
from moorage.spec import ModelSpec
from moorage.testing import FakeClock
from segments.making import Growing, ledger, read


def found(folder: Path) -> list[Flaw]:
    with LogReader(folder) as reader:
        return list(flaws(reader, refold=True))


def tamper(database: Path, *statements: str) -> None:
    database.chmod(0o600)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for trigger in ("events_no_update", "events_no_delete", "events_in_order"):
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)


# --- archiving ---


def test_an_older_segment_is_named_after_its_seqs_and_is_one_plain_file(growing: Growing) -> None:
    growing.grow()
    last = len(growing.written)
    place = growing.archive()

    assert place.name == f"moorage-{1:012d}-{last:012d}.db"
    assert place.parent == growing.folder / "archive"
    assert growing.archived == [place]
    assert place.stat().st_mode & 0o777 == 0o400
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert StateFiles(growing.folder).database.stat().st_mode & 0o777 == 0o600
    assert place.read_bytes()[18] == 1  # rollback journal: needs no -wal, ever
    assert {path.name for path in growing.folder.iterdir()} == {
        "archive",
        "moorage.db",
        "moorage.head",
        "moorage.lock",
    }


def test_seqs_hashes_id_and_numbers_go_on(growing: Growing) -> None:
    growing.segmented(4, 3, 2)

    with closing(SqliteLog.open(growing.folder)) as log:
        assert log.segment == 3
        assert log.head == len(growing.written)
        ids = {log.log_id}
    for path in growing.archived:
        with LogReader(path) as reader:
            ids.add(reader.log_id)
    assert len(ids) == 1
    assert found(growing.folder) == []


def test_an_owner_goes_on_from_the_base_state_alone(growing: Growing) -> None:
    growing.segmented(6, 3)
    shutil.rmtree(growing.folder / "archive")

    with closing(SqliteLog.open(growing.folder)) as log:
        owner = ledger(log)
        assert owner.state == replay(growing.written)
        assert list(log.read(3, limit=2)) == list(log.read(limit=2))


def test_a_ledger_archives_what_it_stands_at(growing: Growing) -> None:
    growing.grow()
    with closing(SqliteLog.open(growing.folder)) as log:
        owner = ledger(log)
        before = owner.state
        place = owner.archive("1.2")
        assert owner.state.seq == before.seq + 1
        assert Path(place).is_file()
        growing.written += list(log.read(before.seq))
        assert ledger(log).state == owner.state

    assert growing.written[-1].event.kind == "log.continued"
    assert read(growing.folder) == growing.written


def test_snapshots_are_made_and_used_in_later_segments(growing: Growing) -> None:
    growing.segmented(3, 3)
    state = replay(growing.written)
    with LogReader(growing.folder) as reader:
        base = reader.snapshot(FOLD_VERSION)

    assert base is not None
    assert base.seq < state.seq
    assert state_from_data(base.state) == replay(growing.written[: base.seq])


def test_while_another_program_has_the_log_open_archiving_is_refused_and_changes_nothing(
    growing: Growing,
) -> None:
    growing.grow()
    with closing(SqliteLog.open(growing.folder, busy_timeout_s=0)) as log:
        entry = growing.continuation(log)
        with closing(sqlite3.connect(log.path)) as other:
            other.execute("SELECT count(*) FROM events").fetchone()
            with pytest.raises(StateError, match="another program has it open"):
                log.archive(entry)
            growing.history.seq = log.head
            more = list(growing.history.one_run())
            log.append(more)
        growing.written += more
        assert (log.segment, log.head) == (1, len(growing.written))
        log.archive(growing.continuation(log))
        assert log.segment == 2


# --- reading ---


def test_all_of_it_is_read_in_order_from_anywhere(growing: Growing) -> None:
    growing.segmented(4, 1, 3)
    written = growing.written

    assert read(growing.folder) == written
    with LogReader(growing.folder) as reader:
        assert reader.first == 1
        assert reader.head == len(written)
        for after in range(len(written) + 1):
            assert list(reader.read(after, limit=3)) == written[after : after + 3]
        for entry in written:
            assert reader.entry(entry.seq) == entry
            assert reader.seq_at(entry.at) == max(e.seq for e in written if e.at <= entry.at)
        assert list(reader.read(2, until=5)) == written[2:5]
        assert reader.entry(len(written) + 1) is None


def test_filters_and_last_ones_are_found_in_any_segment(growing: Growing) -> None:
    growing.segmented(4, 1, 3)
    runs = {getattr(entry.event, "run", None) for entry in growing.written} - {None}

    with LogReader(growing.folder) as reader:
        for run in runs:
            own = [entry for entry in growing.written if getattr(entry.event, "run", None) == run]
            assert list(reader.read(only=Filter(run=run))) == own
            assert reader.last(Filter(run=run)) == own[-1]
        assert reader.last(Filter(kind="log.created")) == growing.written[0]
        assert reader.last(Filter(kind="nothing")) is None


def test_one_segment_can_be_read_alone(growing: Growing) -> None:
    growing.segmented(4, 3)
    with LogReader(growing.folder, alone=True) as reader:
        entries = list(reader.read())

        assert entries[0].event.kind == "log.continued"
        assert entries == growing.written[reader.first - 1 :]
        assert replay(entries) == replay(growing.written)


def test_an_older_segment_is_read_with_its_elders(growing: Growing) -> None:
    growing.segmented(2, 2, 2)
    oldest, middle = growing.archived

    assert read(oldest) == growing.written[: len(read(oldest))]
    assert read(middle) == growing.written[: len(read(middle))]
    with LogReader(middle, alone=True) as reader:
        assert reader.first > 1


def test_segments_of_an_older_schema_are_read(growing: Growing) -> None:
    growing.segmented(2, 2)
    oldest = growing.archived[0]
    tamper(oldest, "UPDATE alembic_version SET version_num = '0001'")

    assert read(growing.folder) == growing.written


def test_a_reader_goes_on_when_the_log_is_archived_meanwhile(growing: Growing) -> None:
    growing.grow(3)
    with LogReader(growing.folder) as reader:
        assert reader.head == len(growing.written)
        growing.archive()
        growing.grow(2)

        assert reader.head == len(growing.written)
        assert list(reader.read()) == growing.written


def test_who_follows_goes_on_when_the_log_is_archived_meanwhile(growing: Growing) -> None:
    growing.grow(3)
    steps = [growing.archive, lambda: growing.grow(2), growing.archive]

    class Acting:
        over = False

        def is_set(self) -> bool:
            return self.over

        def wait(self, timeout: float | None = None) -> bool:
            if steps:
                steps.pop(0)()
            else:
                self.over = True
            return self.over

    with LogReader(growing.folder) as reader:
        assert list(reader.follow(0, Acting())) == growing.written


def test_a_database_put_in_the_place_of_the_live_one_is_not_taken_for_the_next_segment(
    growing: Growing, tmp_path: Path
) -> None:
    growing.grow()
    other = Growing(tmp_path / "other")
    other.segmented(1, 1)
    with LogReader(growing.folder) as reader:
        shutil.copy(other.folder / "moorage.db", tmp_path / "x")
        (tmp_path / "x").replace(growing.folder / "moorage.db")

        with pytest.raises(StateError, match="moved, replaced or deleted"):
            list(reader.read())


# --- what is missing or wrong ---


@pytest.mark.parametrize("gone", [0, 1])
def test_a_missing_segment_is_told_and_the_rest_is_read(growing: Growing, gone: int) -> None:
    growing.segmented(2, 2, 2)
    paths = growing.archived
    first, last = (int(part) for part in paths[gone].stem.split("-")[1:])
    paths[gone].unlink()

    assert found(growing.folder) == [
        Flaw(
            first,
            f"is missing, and all up to row {last}: no segment in {paths[0].parent} holds it",
        )
    ]
    with LogReader(growing.folder) as reader:
        assert reader.first == last + 1
        left = list(reader.read())
    assert left == growing.written[last:]
    assert replay(left) == replay(growing.written)


def test_a_segment_of_another_log_is_no_part_of_it(growing: Growing, tmp_path: Path) -> None:
    growing.segmented(2, 2)
    other = Growing(tmp_path / "other")
    other.segmented(2, 2)
    shutil.move(other.archived[0], growing.archived[0])

    assert [flaw.seq for flaw in found(growing.folder)] == [1]
    assert read(growing.folder)[0].event.kind == "log.continued"


def test_a_row_changed_in_an_older_segment_is_named(growing: Growing) -> None:
    growing.segmented(2, 2)
    tamper(growing.archived[0], "UPDATE events SET at = '2026-01-01' WHERE seq = 3")

    assert [flaw.seq for flaw in found(growing.folder)] == [3]


def test_rows_cut_from_an_older_segment_are_named(growing: Growing) -> None:
    growing.segmented(2, 2)
    last = int(growing.archived[0].stem.split("-")[2])
    tamper(growing.archived[0], f"DELETE FROM events WHERE seq > {last - 2}")

    flaw = next(iter(found(growing.folder)))
    assert flaw == Flaw(last - 1, f"is missing; row {last + 1} follows row {last - 2}")
    with pytest.raises(StateError, match=f"row {last - 1}: is missing"):
        read(growing.folder)


def test_a_base_state_that_was_changed_is_named(growing: Growing) -> None:
    growing.segmented(2, 2)
    seq = int(growing.archived[0].stem.split("-")[2]) + 1
    change = "json_set(data, '$.base.max_loaded', 9)"
    tamper(
        StateFiles(growing.folder).database,
        f"UPDATE events SET data = {change} WHERE seq = {seq}",
    )

    assert {flaw.seq for flaw in found(growing.folder)} >= {seq}
    with pytest.raises(FoldError, match="another base state"):
        replay(read(growing.folder))


def test_the_base_state_of_another_fold_version_is_gone_on_from_whatever_the_rest_adds_up_to(
    growing: Growing,
) -> None:
    """Its owner went on from it: a state of it is in what followed."""
    growing.grow()
    state = replay(growing.written)
    state.max_loaded = 9  # as if the other fold had made it so
    with closing(SqliteLog.open(growing.folder)) as log:
        event = continued(state, program="0", segment=2, base_hash=log.head_hash)
        old = dataclasses.replace(event, fold_version=FOLD_VERSION - 1)
        log.archive(Entry(log.head + 1, state.at, None, old))
    with closing(SqliteLog.open(growing.folder)) as log:
        owner = Ledger(log, FakeClock(), lambda _: None, snapshot_every=1)
        draft = owner.draft()
        decide.define(draft, ModelSpec(name="late", backend="fake"), "")
        owner.commit(draft)
        owner.archive("0")

    assert owner.state.max_loaded == 9
    assert replay(read(growing.folder)) == owner.state
    assert found(growing.folder) == []


def test_a_head_file_left_behind_by_archiving_is_no_cut(growing: Growing) -> None:
    growing.grow()
    head = StateFiles(growing.folder).head.read_bytes()
    growing.archive()
    growing.grow()
    StateFiles(growing.folder).head.write_bytes(head)

    assert found(growing.folder) == []
    SqliteLog.open(growing.folder).close()
    assert not StateFiles(growing.folder).cuts.exists()
