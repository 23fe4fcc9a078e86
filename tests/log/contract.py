"""What every EventLog does. A subclass gives `log` and `reopen`."""

from __future__ import annotations

import pytest

from log.making import entries, pinned, released, some
from moorage.core.events import Entry, LogContinued, ModelDefined
from moorage.protocols import EventLog, Snapshot


class LogContract:
    """Inherited by one test class for each kind of log."""

    def reopen(self, log: EventLog) -> EventLog:
        """Close a log and open what it left."""
        raise NotImplementedError

    def test_a_new_log_is_empty_and_has_an_id(self, log: EventLog) -> None:
        assert log.head == 0
        assert list(log.read()) == []
        assert len(log.log_id) == 16
        assert set(log.log_id) <= set("0123456789abcdef")
        assert log.path

    def test_what_was_appended_is_read_back_equal_and_in_order(self, log: EventLog) -> None:
        written = some(3)
        log.append(written[:1])
        log.append(written[1:])

        assert list(log.read()) == written
        assert log.head == 3

    def test_reading_starts_after_a_seq_and_ends_at_the_limit(self, log: EventLog) -> None:
        written = some(5)
        log.append(written)

        assert list(log.read(2)) == written[2:]
        assert list(log.read(1, limit=2)) == written[1:3]
        assert list(log.read(5)) == []
        assert list(log.read(9)) == []
        assert list(log.read(limit=0)) == []

    def test_an_append_of_nothing_changes_nothing(self, log: EventLog) -> None:
        log.append([])

        assert log.head == 0

    @pytest.mark.parametrize("seqs", [[2], [0], [1, 3], [1, 1]])
    def test_a_wrong_position_is_refused_whole(self, log: EventLog, seqs: list[int]) -> None:
        wrong = [some(1, after=seq - 1)[0] for seq in seqs]

        with pytest.raises(RuntimeError):
            log.append(wrong)

        assert log.head == 0
        log.append(some(1))
        assert log.head == 1

    def test_text_that_utf8_cannot_hold_comes_back_as_it_was(self, log: EventLog) -> None:
        torn = "a \udce9 b \ud83d \x00 \ufffd é 漢 \u2028"
        written = entries([released(1, error=torn)])
        log.append(written)

        assert list(log.read()) == written

    def test_nested_data_comes_back_as_it_was(self, log: EventLog) -> None:
        spec = {"settings": {"b": [1, 2.5, "x"], "a": True}, "args": [], "ttl_s": None}
        written = entries([ModelDefined(model="m", spec=spec, spec_hash="h")])
        log.append(written)

        assert list(log.read()) == written

    def test_a_number_that_json_has_no_word_for_is_refused(self, log: EventLog) -> None:
        wrong = entries([ModelDefined(model="m", spec={"x": float("nan")}, spec_hash="h")])

        with pytest.raises(ValueError, match="JSON"):
            log.append(wrong)

        assert log.head == 0

    def test_it_is_the_same_log_after_reopening(self, log: EventLog) -> None:
        written = some(3)
        log.append(written)
        again = self.reopen(log)

        assert again.log_id == log.log_id
        assert again.head == 3
        assert list(again.read()) == written
        again.append(some(1, after=3))
        assert again.head == 4
        again.close()

    def test_a_closed_log_refuses_use_and_closes_again(self, log: EventLog) -> None:
        log.append(some(1))
        log.close()
        log.close()

        with pytest.raises(RuntimeError, match="closed"):
            log.append(some(1, after=1))
        with pytest.raises(RuntimeError, match="closed"):
            list(log.read())
        with pytest.raises(RuntimeError, match="closed"):
            log.snapshot(1)

    def test_reading_sees_what_is_appended_between_pages(self, log: EventLog) -> None:
        written = some(1500)
        log.append(written)
        reading = log.read()
        first = next(reading)
        log.append(some(1, after=1500))

        assert first == written[0]
        assert sum(1 for _ in reading) == 1500

    # --- segments ---

    def continuation(self, log: EventLog) -> Entry:
        event = LogContinued(
            log_id=log.log_id,
            program="0",
            segment=log.segment + 1,
            base={},
            base_hash=log.head_hash,
            next_run=1,
        )
        return entries([event], after=log.head)[0]

    def test_a_log_goes_on_in_a_new_segment(self, log: EventLog) -> None:
        log.append(some(3), snapshot=Snapshot(3, 1, {}))
        ended = log.head_hash
        entry = self.continuation(log)
        place = log.archive(entry)
        more = some(2, after=4)
        log.append(more, snapshot=Snapshot(5, 1, {"new": True}))

        assert place
        assert (log.segment, log.head) == (2, 6)
        assert list(log.read(3)) == [entry, *more]
        assert list(log.read(4, limit=1)) == more[:1]
        assert log.snapshot(1) == Snapshot(5, 1, {"new": True})
        assert log.head_hash != ended

    def test_it_is_in_the_same_segment_after_reopening(self, log: EventLog) -> None:
        log.append(some(3))
        log.archive(self.continuation(log))
        log.append(some(1, after=4))
        log.archive(self.continuation(log))
        expected = (3, 6, log.head_hash, log.log_id)
        again = self.reopen(log)

        assert (again.segment, again.head, again.head_hash, again.log_id) == expected
        again.append(some(1, after=6))
        assert [entry.seq for entry in again.read(5)] == [6, 7]
        again.close()

    def test_a_segment_at_a_wrong_position_is_refused(self, log: EventLog) -> None:
        log.append(some(3))
        wrong = entries([self.continuation(log).event], after=4)[0]

        with pytest.raises(RuntimeError):
            log.archive(wrong)
        assert (log.segment, log.head) == (1, 3)
        log.append(some(1, after=3))

    def test_a_closed_log_is_not_archived(self, log: EventLog) -> None:
        log.append(some(1))
        entry = self.continuation(log)
        log.close()

        with pytest.raises(RuntimeError, match="closed"):
            log.archive(entry)

    # --- snapshots ---

    def test_there_is_no_snapshot_at_first(self, log: EventLog) -> None:
        assert log.snapshot(1) is None

    def test_a_snapshot_comes_back_also_after_reopening(self, log: EventLog) -> None:
        snapshot = Snapshot(2, 1, {"models": {"é\udce9": [1, None]}})
        log.append(some(2), snapshot=snapshot)

        assert log.snapshot(1) == snapshot
        again = self.reopen(log)
        assert again.snapshot(1) == snapshot
        again.close()

    def test_the_newest_snapshot_is_given(self, log: EventLog) -> None:
        for seq in range(1, 5):
            log.append(some(1, after=seq - 1), snapshot=Snapshot(seq, 1, {"seq": seq}))

        assert log.snapshot(1) == Snapshot(4, 1, {"seq": 4})

    def test_a_snapshot_can_be_added_to_what_is_there(self, log: EventLog) -> None:
        log.append(some(3))
        log.append([], snapshot=Snapshot(2, 1, {}))

        assert log.snapshot(1) == Snapshot(2, 1, {})
        assert log.head == 3

    def test_a_snapshot_of_another_fold_version_is_not_given_and_then_dropped(
        self, log: EventLog
    ) -> None:
        log.append(some(1), snapshot=Snapshot(1, 1, {}))

        assert log.snapshot(2) is None
        log.append(some(1, after=1), snapshot=Snapshot(2, 2, {}))
        assert log.snapshot(2) == Snapshot(2, 2, {})
        assert log.snapshot(1) is None

    @pytest.mark.parametrize("seq", [0, 2])
    def test_a_snapshot_of_a_row_that_is_not_there_is_refused(
        self, log: EventLog, seq: int
    ) -> None:
        with pytest.raises(RuntimeError, match="snapshot"):
            log.append(some(1), snapshot=Snapshot(seq, 1, {}))

        assert log.head == 0
        assert list(log.read()) == []

    def test_events_of_one_append_may_differ_in_kind(self, log: EventLog) -> None:
        written = entries([pinned(), released(1), pinned("n")])
        log.append(written)

        assert [entry.event.kind for entry in log.read()] == [
            "model.pinned",
            "run.released",
            "model.pinned",
        ]
