"""What the views say, held against the fold, which is what decides."""

from __future__ import annotations

import ast
import importlib.util
import json
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moorage.core import events as ev
from moorage.core.events import Entry, Event
from moorage.core.fold import replay
from moorage.core.state import State
from moorage.log import views
from moorage.log.files import StateFiles
from moorage.log.rows import to_row
from moorage.log.view import View
from sql.conftest import write
from support import needed
from support.history import BEGAN, History, text

CHECKOUT = Path(__file__).parents[2]


def rows(database: sqlite3.Connection, query: str, *values: object) -> list[dict[str, Any]]:
    return [dict(row) for row in database.execute(query, values)]


def opened(entries: list[Entry]) -> sqlite3.Connection:
    """Return a database in memory with these entries and the views."""
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.execute(
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, at TEXT, kind TEXT, version INTEGER,"
        " model TEXT, run INTEGER, port INTEGER, pid INTEGER, cause INTEGER, data TEXT, hash TEXT)"
    )
    for view in views.ALL:
        database.execute(view.create())
    database.executemany(
        "INSERT INTO events VALUES (?,?,?,?,?,?,?,?,?,?,?)", [to_row(e, "") for e in entries]
    )
    return database


def check_against_fold(database: sqlite3.Connection, state: State) -> None:
    open_runs = {
        row["run"]: (row["model"], row["stage"], tuple(json.loads(row["ports"])), row["pid"])
        for row in rows(database, "SELECT * FROM runs WHERE stage <> 'ended'")
    }
    assert open_runs == {
        run.run: (run.model, str(run.stage), run.ports, run.pid) for run in state.runs.values()
    }
    held = rows(database, "SELECT port, run FROM ports WHERE state = 'held'")
    assert {row["port"]: row["run"] for row in held} == state.held
    free = rows(database, "SELECT port FROM ports WHERE state = 'free' AND in_pool")
    assert {row["port"] for row in free} == set(state.free)
    for row in rows(database, "SELECT * FROM models"):
        model = state.models[row["model"]]
        run = state.runs.get(model.run or 0)
        assert row["status"] == (str(run.stage) if run else model.status)
        assert row["pinned"] == model.pinned
        assert row["last_error"] == (model.last.error if model.last else None)
        if model.status == "backoff" and run is None:
            assert (row["attempts"], row["retry_at"]) == (model.attempts, model.until)
    assert database.execute("SELECT count(*) FROM models").fetchone()[0] == len(state.models)


@pytest.mark.parametrize("seed", range(4))
def test_runs_ports_and_models_say_what_the_fold_says_at_every_point(seed: int) -> None:
    entries = list(History(seed=seed, crashes=0.3).entries(12))
    state = State()
    with closing(opened(entries[:2])) as database:
        replay(entries[:2], state)
        for entry in entries[2:]:
            replay([entry], state)
            insert(database, entry)
            check_against_fold(database, state)


def test_what_is_noted_of_a_fetch_moves_no_run() -> None:
    history = History(seed=1)
    entries = list(history.opening())
    model, repo = history.names[0], "org/model"
    fetching = ev.RunFetching(model=model, run=1, requested_by="lease", repo=repo)
    entries.append(history.entry(fetching))
    noted = ev.FetchNoted(model=model, run=1, done_bytes=5, total_bytes=10, bytes_per_s=1)
    entries.append(history.entry(noted))

    with closing(opened(entries)) as database:
        check_against_fold(database, replay(entries))
        (run,) = rows(database, "SELECT stage, last_seq FROM runs")
    assert run == {"stage": "fetching", "last_seq": entries[-2].seq}


def insert(database: sqlite3.Connection, entry: Entry) -> None:
    database.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?,?,?,?,?)", to_row(entry, ""))


def told(*events: Event) -> list[Entry]:
    """Return the opening of a log and then these events, one a second."""
    history = History()
    entries = list(history.opening())
    for event in events:
        history.wait(1)
        entries.append(history.entry(event))
    return entries


def run_of(model: str, run: int, port: int, until: str = "ready") -> list[Event]:
    """Return the events of a run up to a stage."""
    about: dict[str, Any] = {"model": model, "run": run, "port": port}
    events: dict[str, Event] = {
        "queued": ev.RunQueued(model=model, run=run, requested_by="start()", place=1),
        "reserved": ev.RunReserved(**about, more_ports=(port + 10,)),
        "launching": ev.RunLaunching(**about, argv=(), nonce="n", log_file="logs/x"),
        "launched": ev.RunLaunched(
            **about, pid=9, group=9, session=9, start_ticks=1, boot_id="boot"
        ),
        "ready": ev.RunReady(**about, pid=9, seconds=2.0, load_s=1.0, leases=1, owner_check=True),
    }
    names = list(events)
    return [events[name] for name in names[: names.index(until) + 1]]


RARE: list[list[Event]] = [
    [ev.ModelHeld(model="model-0", reason="stop")],
    [ev.ModelHeld(model="model-0", reason="stop"), ev.ModelReset(model="model-0", reason="start")],
    [ev.ModelPinned(model="model-0")],
    [ev.ModelPinned(model="model-0"), ev.ModelUnpinned(model="model-0")],
    [ev.ModelRemoved(model="model-0", reason="remove")],
    [*run_of("model-0", 1, 18_000, "launching")],
    [
        *run_of("model-0", 1, 18_000, "launching"),
        ev.RunStopping(model="model-0", run=1, reason="cancelled", stop_timeout_s=1.0),
        run_of("model-0", 1, 18_000, "launched")[-1],
    ],
    [
        *run_of("model-0", 1, 18_000),
        ev.RunAdopted(model="model-0", run=1, port=18_000, pid=9, state="ready"),
    ],
    [
        *run_of("model-0", 1, 18_000),
        ev.RunStopping(model="model-0", run=1, reason="operator", stop_timeout_s=1.0),
        ev.RunStopFailed(model="model-0", run=1, pids=(9,), error="alive"),
    ],
    [
        *run_of("model-0", 1, 18_000),
        ev.RunDraining(model="model-0", run=1, reason="reload", leases=2),
        ev.RunQueued(model="model-0", run=2, requested_by="lease()", place=1),
    ],
    [
        ev.RunFetching(model="model-0", run=1, requested_by="start()", repo="a/b"),
        ev.RunFetched(
            model="model-0", run=1, path="/f", commit="c", files=(), fetched_bytes=1, seconds=2.5
        ),
    ],
    [
        ev.RunFetching(model="model-0", run=1, requested_by="start()", repo="a/b"),
        ev.RunAbandoned(model="model-0", run=1, outcome="failed: fetch", error="no such repo"),
        ev.ModelFailed(model="model-0", run=1, attempts=5, stage="fetch", error="no such repo"),
    ],
]


@pytest.mark.parametrize("events", RARE, ids=lambda events: events[-1].kind)
def test_what_a_history_rarely_holds_is_said_right_too(events: list[Event]) -> None:
    entries = told(*events)
    with closing(opened(entries)) as database:
        check_against_fold(database, replay(entries))


# --- one by one ---


def test_a_run_has_every_time_and_duration() -> None:
    about: dict[str, Any] = {"model": "model-0", "run": 1}
    entries = told(
        *run_of("model-0", 1, 18_000),
        ev.RunEvicting(
            **about,
            reason="room",
            for_run=7,
            for_model="model-1",
            leases=0,
            order=(1,),
            skipped=(),
        ),
        ev.RunStopping(**about, reason="room", stop_timeout_s=10.0),
        ev.RunExited(**about, pid=9, code=None, signal=15, wanted=True),
        ev.RunSwept(**about, pids=(), seconds=0.1, peak_bytes=500),
        ev.RunReleased(**about, port=18_000, outcome="ok", peak_bytes=500),
    )
    with closing(opened(entries)) as database:
        (row,) = rows(database, "SELECT * FROM runs")

    started = next(entry for entry in entries if entry.event.kind == "run.queued").seq
    assert list(row) == list(views.RUNS.columns)
    assert row == {
        "run": 1,
        "model": "model-0",
        "stage": "ended",
        "outcome": "ok",
        "error": None,
        "requested_by": "start()",
        "port": 18_000,
        "ports": "[18000,18010]",
        "pid": 9,
        "began_at": at(1),
        "queued_at": at(1),
        "reserved_at": at(2),
        "launched_at": at(4),
        "ready_at": at(5),
        "stopping_at": at(7),
        "exited_at": at(8),
        "ended_at": at(10),
        "fetch_s": None,
        "wait_s": 1.0,
        "load_s": 1.0,
        "ready_s": 2.0,
        "stop_s": 3.0,
        "total_s": 9.0,
        "exit_code": None,
        "exit_signal": 15,
        "exit_wanted": 1,
        "stop_reason": "room",
        "evicted_for_run": 7,
        "evicted_for_model": "model-1",
        "adopted": 0,
        "room_bytes": None,
        "peak_bytes": 500,
        "log_file": "logs/x",
        "first_seq": started,
        "last_seq": started + 9,
    }


def at(second: int) -> str:
    return text(BEGAN.replace(second=second))


def test_an_eviction_that_was_undone_is_not_why_the_run_ended_later() -> None:
    about: dict[str, Any] = {"model": "model-0", "run": 1}
    evicting = ev.RunEvicting(
        **about, reason="room", for_run=7, for_model="m", leases=1, order=(1,), skipped=()
    )
    entries = told(
        *run_of("model-0", 1, 18_000),
        evicting,
        ev.RunReopened(**about, reason="the requester left"),
        ev.RunDraining(**about, reason="operator", leases=0),
    )
    with closing(opened(entries)) as database:
        (row,) = rows(database, "SELECT stage, evicted_for_run FROM runs")
        (eviction,) = rows(database, "SELECT outcome, took_s, ready_s FROM evictions")

    assert row == {"stage": "draining", "evicted_for_run": None}
    assert eviction == {"outcome": "reopened", "took_s": 1.0, "ready_s": 1.0}


def test_evictions_tell_for_whom_in_which_order_and_whom_they_skipped(
    database: sqlite3.Connection,
) -> None:
    written = list(History(seed=1).entries(200, close=None))
    chosen = {e.seq: e for e in written if isinstance(e.event, ev.RunEvicting)}
    found = rows(database, "SELECT * FROM evictions")

    assert [row["seq"] for row in found] == list(chosen)
    for row in found:
        entry = chosen[row["seq"]]
        event: Any = entry.event
        assert (row["at"], row["run"], row["model"]) == (entry.at, event.run, event.model)
        assert (row["for_run"], row["for_model"]) == (event.for_run, event.for_model)
        assert row["requested_by"] == f"lease({event.for_model!r})"
        assert row["cause"] == entry.cause
        assert json.loads(row["lru"]) == list(event.order)
        assert json.loads(row["skipped"]) == [list(pair) for pair in event.skipped]
    assert {row["outcome"] for row in found} == {"ended", "reopened"}


def test_loads_count_and_rank(database: sqlite3.Connection) -> None:
    written = [e.event for e in History(seed=1).entries(200, close=None)]
    ready = [e for e in written if isinstance(e, ev.RunReady)]
    loads = Counter(e.model for e in ready)
    crashes = Counter(e.model for e in written if isinstance(e, ev.RunExited) and not e.wanted)
    failures = Counter(
        e.model for e in written if isinstance(e, ev.RunReleased) and e.outcome != "ok"
    )
    found = rows(database, "SELECT * FROM loads")

    assert {row["model"]: row["loads"] for row in found} == loads
    assert {row["model"]: row["failures"] for row in found if row["failures"]} == failures
    assert {row["model"]: row["crashes"] for row in found if row["crashes"]} == crashes
    for row in found:
        seconds = sorted(e.load_s for e in ready if e.model == row["model"])
        assert row["p50_s"] == seconds[-(-len(seconds) * 50 // 100) - 1]
        assert row["p95_s"] == seconds[-(-len(seconds) * 95 // 100) - 1]
        assert row["max_s"] == seconds[-1]
        assert row["peak_bytes"] > 0


# --- leaks ---


def leaks(entries: list[Entry], alive: int | None = None) -> list[tuple[str, int, int]]:
    with closing(opened(entries)) as database:
        if alive is not None:
            columns = ", ".join(c for c in views.OWNER.columns if c != "alive")
            database.execute("DROP VIEW owner")
            database.execute(views.OWNER.create().replace("VIEW owner", "VIEW told", 1))
            database.execute(f"CREATE VIEW owner AS SELECT {columns}, {alive} AS alive FROM told")
        found = rows(database, "SELECT problem, certain, run FROM leaks")
    return [(row["problem"], row["certain"], row["run"]) for row in found]


def test_a_service_that_closed_well_leaks_nothing() -> None:
    assert leaks(list(History().entries(30))) == []


def test_runs_kept_on_purpose_are_no_leak_but_others_are() -> None:
    entries = told(*run_of("model-0", 1, 18_000), *run_of("model-1", 2, 18_001))
    closed = Entry(len(entries) + 1, at(30), None, ev.ServiceClosed(reason="keep", kept=(1,)))

    assert leaks([*entries, closed]) == [("open in a log that was closed", 1, 2)]


def test_runs_of_an_owner_that_never_closed_depend_on_whether_it_lives() -> None:
    entries = told(*run_of("model-0", 1, 18_000))

    assert leaks(entries) == [("leaked if the owner is gone", 0, 1)]
    assert leaks(entries, alive=1) == []
    assert leaks(entries, alive=0) == [("the owner is gone without closing", 1, 1)]


def test_a_run_that_the_next_owner_did_not_take_over_leaks_and_an_adopted_one_does_not() -> None:
    events = [*run_of("model-0", 1, 18_000), *run_of("model-1", 2, 18_001)]
    again: Any = History().opened().event
    adopted = ev.RunAdopted(model="model-1", run=2, port=18_001, pid=9, state="ready")

    found = leaks(told(*events, again, adopted), alive=1)
    assert found == [("not taken over by the present owner", 1, 1)]


def test_what_cannot_be_stopped_is_told_even_while_the_owner_lives() -> None:
    stopping = ev.RunStopping(model="model-0", run=1, reason="operator", stop_timeout_s=1.0)
    failed = ev.RunStopFailed(model="model-0", run=1, pids=(9,), error="alive")

    found = leaks(told(*run_of("model-0", 1, 18_000), stopping, failed), alive=1)
    assert found == [("could not be stopped", 1, 1)]


def test_a_run_that_holds_no_port_yet_is_told_without_one(tmp_path: Path) -> None:
    entries = told(*run_of("model-0", 1, 18_000, "queued"))
    with closing(opened(entries)) as database:
        (row,) = rows(database, "SELECT stage, ports, held_s, owner_pid FROM leaks")

    assert row == {"stage": "queued", "ports": "[]", "held_s": None, "owner_pid": 77}


# --- the same everywhere ---


def test_the_revision_makes_the_views_of_this_program() -> None:
    path = CHECKOUT / "migrations" / "versions" / "0002_views.py"
    spec = importlib.util.spec_from_file_location("revision_0002", path)
    assert spec is not None
    assert spec.loader is not None
    revision = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(revision)

    assert tuple(view.create() for view in views.ALL) == revision.VIEWS
    imported = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    assert {n.module for n in imported} == {"__future__", "alembic"}


@pytest.mark.parametrize("view", views.ALL, ids=lambda view: view.name)
def test_each_column_is_described_in_its_order(database: sqlite3.Connection, view: View) -> None:
    found = [row["name"] for row in rows(database, f"PRAGMA table_info({view.name})")]

    assert found == list(view.columns)


def test_the_sqlite3_command_answers_from_every_view(
    state: Path, database: sqlite3.Connection
) -> None:
    command = (needed.command("sqlite3", debian="sqlite3"), "-readonly", StateFiles(state).database)
    for view in views.ALL:
        told = subprocess.run(
            [*command, f"SELECT count(*) FROM {view.name}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        (count,) = database.execute(f"SELECT count(*) FROM {view.name}").fetchone()
        assert int(told) == count > 0


def test_a_log_without_any_event_has_empty_views(tmp_path: Path) -> None:
    with closing(sqlite3.connect(write(tmp_path / "empty", []))) as database:
        for view in views.ALL:
            assert database.execute(f"SELECT * FROM {view.name}").fetchall() == []
