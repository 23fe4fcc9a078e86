from __future__ import annotations

import pytest

from log.contract import LogContract
from log.making import some
from moorage.errors import LogUnavailableError
from moorage.protocols import EventLog
from moorage.testing.log import MemoryLog


class CrashedError(Exception):
    pass


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog()

    def reopen(self, log: EventLog) -> EventLog:
        assert isinstance(log, MemoryLog)
        return log.reopened()

    def test_while_unavailable_nothing_is_written(self, log: MemoryLog) -> None:
        log.unavailable = "the disk is full"
        for _ in range(2):
            with pytest.raises(LogUnavailableError, match="disk is full"):
                log.append(some(1))
        assert log.head == 0

        log.unavailable = None
        log.append(some(1))
        assert log.head == 1

    def test_one_append_can_be_made_to_fail(self, log: MemoryLog) -> None:
        log.fail_next()
        with pytest.raises(LogUnavailableError):
            log.append(some(1))
        assert log.head == 0

        log.append(some(1))
        assert log.head == 1

    @pytest.mark.parametrize(("committed", "head"), [(False, 1), (True, 2)])
    def test_a_crash_keeps_what_was_committed(
        self, log: MemoryLog, committed: bool, head: int
    ) -> None:
        log.append(some(1))
        log.crash_next(CrashedError(), committed=committed)
        with pytest.raises(CrashedError):
            log.append(some(1, after=1))
        with pytest.raises(RuntimeError, match="closed"):
            log.append(some(1, after=1))

        assert log.reopened().head == head
