"""A service that archives its log while it works."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from moorage import ModelService
from moorage.actors.ledger import Ledger
from moorage.core.fold import replay
from moorage.errors import ServiceClosedError, StateError
from moorage.log import segments
from moorage.log.reader import LogReader
from moorage.log.rows import PAGE_ROWS
from moorage.log.sqlite import SqliteLog
from moorage.log.verify import flaws
from moorage.testing import FakeClock, MemoryLog
from segments.making import Growing
from support.history import History
from support.services import check_log, ports, server, state_of


def test_a_service_goes_on_in_a_new_segment_with_its_servers(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with ModelService.open(folder, ports=ports(), max_loaded=2) as service:
        service.define(server("a"), server("b"))
        with service.lease("a") as lease:
            first = service.archive()
            assert not lease.lost
            with service.lease("b"):
                second = service.archive()
            state = state_of(service)
            check_log(folder, state)
            seen = [entry.event.kind for entry in service.events()]
        run = lease.run

    assert [first, second] == sorted((folder / "archive").iterdir())
    assert seen.count("log.continued") == 2
    with LogReader(folder) as reader:
        assert list(flaws(reader, refold=True)) == []
        assert len(reader.chain()) == 3
    with ModelService.open(folder, ports=ports(), max_loaded=2) as service:
        with service.lease("a") as lease:
            assert lease.run > run
        assert service.audit() == ()


def test_servers_that_were_kept_are_adopted_from_the_base_state(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    pool = ports()
    with ModelService.open(folder, ports=pool, on_close="keep") as service:
        service.define(server("a"))
        with service.lease("a") as lease:
            pid = service.model("a").pid
            run = lease.run
        service.archive()
    for path in (folder / "archive").iterdir():
        path.unlink()

    with ModelService.open(folder, ports=pool) as service, service.lease("a") as lease:
        assert (lease.run, service.model("a").pid) == (run, pid)


def test_subscribers_are_told_and_asyncio_can_archive(tmp_path: Path) -> None:
    told: list[str] = []

    async def work() -> Path:
        async with await ModelService.aopen(tmp_path / "state", ports=ports()) as service:
            service.subscribe(lambda item: told.append(getattr(item, "event", item).kind))
            return await service.aarchive()

    place = asyncio.run(work())
    assert place.is_file()
    assert "log.continued" in told


def test_it_is_refused_while_the_log_is_being_read_and_the_service_goes_on(tmp_path: Path) -> None:
    with ModelService.open(tmp_path / "state", ports=ports()) as service:
        service.define(server("a"))
        with LogReader(tmp_path / "state") as reader:
            next(reader.read())
            with pytest.raises(StateError, match="another program has it open"):
                service.archive()
        service.pin("a")
        assert service.archive().is_file()
    with pytest.raises(ServiceClosedError):
        service.archive()


def test_events_that_are_read_in_part_hold_no_archiving_up_and_go_on_behind_it(
    tmp_path: Path,
) -> None:
    with ModelService.open(tmp_path / "state", ports=ports()) as service:
        service.define(server("a"))
        for _ in range(PAGE_ROWS):
            service.pin("a")
            service.unpin("a")
        reading = service.events()
        read = [next(reading)]
        service.archive()
        service.pin("a")
        read += reading

        assert [entry.seq for entry in read] == list(range(1, service.status().seq + 1))
        assert read[-1].event.kind == "model.pinned"


def test_an_owner_notices_that_its_log_is_large(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.grow()
    with closing(SqliteLog.open(growing.folder)) as log:
        assert log.tidy() == ""
        monkeypatch.setattr(segments, "LARGE_BYTES", Path(log.path).stat().st_size)
        assert "has grown to 0 MB: `moorage archive`, or `archive()`" in log.tidy()


def test_a_log_in_memory_is_archived_alike() -> None:
    log = MemoryLog()
    log.append(list(History(seed=3).entries(3, close=None)))
    ledger = Ledger(log, FakeClock(), lambda _: None)
    before = ledger.state

    assert ledger.archive("0") == log.path
    assert log.segment == 2
    assert Ledger(log.reopened(), FakeClock(), lambda _: None).state == ledger.state
    assert replay(log.reopened().read()).models == before.models
