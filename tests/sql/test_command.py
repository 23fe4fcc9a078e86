"""`moorage sql` as its users type it."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from moorage.errors import QueryError
from moorage.log import canned, questions, views
from moorage.log.files import StateFiles
from moorage.log.sqlite import SqliteLog
from sql.conftest import Run, write
from support.history import History
from support.others import require_code_for_others

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# --- answers ---


def test_an_answer_is_a_table(run: Run, state: Path) -> None:
    query = "SELECT run, model, error FROM runs WHERE run <= 2"

    assert run("sql", query, "--state", state) == (
        0,
        "run  model    error\n1    model-1  -\n2    model-4  killed by SIGSEGV\n",
        "",
    )


def test_an_answer_is_one_object_a_line_in_json(run: Run, state: Path) -> None:
    query = "SELECT 1 AS a, NULL AS a, x'00ff' AS b, 9e999 AS c, 'ü' AS d"
    ran = run("sql", query, "--json", "--state", state)

    assert objects(ran.out) == [{"a": 1, "a_2": None, "b": "00ff", "c": "inf", "d": "ü"}]


def test_what_a_cell_holds_cannot_drive_the_terminal(run: Run, state: Path) -> None:
    ran = run("sql", "SELECT char(27) || '[2J' || char(10) AS x", "--state", state)

    assert ran.out == "x\n\\x1b[2J\\n\n"


def test_a_table_ends_at_the_limit_and_says_so(run: Run, state: Path) -> None:
    ran = run("sql", "SELECT seq FROM events", "--state", state)
    assert len(ran.out.splitlines()) == 1001
    assert ran.err == "there are more than these 1000 rows: --limit 0 shows all\n"

    ran = run("sql", "SELECT run FROM runs", "--limit", 200, "--state", state)
    assert (len(ran.out.splitlines()), ran.err) == (201, "")


@pytest.mark.parametrize("flags", [["--json"], ["--limit", "0"]])
def test_json_and_limit_0_hold_all_rows(run: Run, state: Path, flags: list[str]) -> None:
    ran = run("sql", "SELECT seq FROM events", "--state", state, *flags)

    assert len(ran.out.splitlines()) >= 2000
    assert ran.err == ""


def test_no_row_is_said_so(run: Run, state: Path) -> None:
    query = "SELECT * FROM runs WHERE run = 0"

    assert run("sql", query, "--state", state).out == "no row\n"
    assert run("sql", query, "--json", "--state", state).out == ""


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_query_comes_from_standard_input(
    run: Run, state: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT count(*) AS runs\nFROM runs\n"))

    assert run("sql", *arguments, "--state", state).out == "runs\n200\n"


@pytest.mark.parametrize("one", canned.ALL, ids=lambda one: one.name)
def test_each_statement_at_hand_answers(run: Run, state: Path, one: canned.Canned) -> None:
    ran = run("sql", f"@{one.name}", "--json", "--state", state)

    assert ran.status == 0
    assert objects(ran.out)


def test_without_a_query_it_says_what_there_is_to_ask(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ran = run("sql")
    assert ran.status == 0
    for view in views.ALL:
        assert f"\n{view.name}\n  {view.says}\n" in f"\n{ran.out}"
        for column, says in view.columns.items():
            assert f"\n  {column} " in ran.out
            assert says in ran.out
    for one in canned.ALL:
        assert f"@{one.name}" in ran.out

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    told = objects(run("sql", "--json").out)
    assert [item["column"] for item in told if item["view"] == "runs"] == list(views.RUNS.columns)


def test_a_person_at_a_terminal_gets_help_or_records_that_fit(state: Path) -> None:
    import pty  # noqa: PLC0415

    def typed(*arguments: object) -> str:
        master, slave = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "60"}
        command = [sys.executable, "-m", "moorage", "sql", *map(str, arguments)]
        with subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment
        ) as process:
            os.close(slave)
            told = b""
            try:
                while part := os.read(master, 1 << 16):
                    told += part
            except OSError:  # its end
                pass
            os.close(master)
        assert process.returncode == 0, told
        return told.decode().replace("\r", "")

    assert typed().startswith("owner\n")
    assert typed("SELECT 1 AS a", "--state", state) == "a\n1\n"
    record = typed("SELECT run, model, spec FROM models LIMIT 1", "--state", state).splitlines()
    assert record[0] == "row 1"
    assert [line.split()[0] for line in record[1:]] == ["run", "model", "spec"]


# --- mistakes ---


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 1 FROM run", "no such table: run; did you mean runs?"),
        ("SELECT modle FROM runs", "no such column: modle; did you mean model?"),
        ("SELECT r.xyzzy FROM runs AS r", "; `moorage sql` alone lists the views"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT ?", "bindings"),
        ("-- nothing", "there is no statement in it"),
        ("", "there is no statement in it"),
        ("SELECT zeroblob(1000000000)", "too big"),
        ("@leaked-prots", "no statement called @leaked-prots is at hand; there is leaked-ports"),
    ],
)
def test_a_mistake_is_told_in_one_line(run: Run, state: Path, query: str, says: str) -> None:
    ran = run("sql", query, "--state", state)

    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("moorage: the query cannot be answered: ")


@pytest.mark.parametrize("flags", [["--timeout", "0"], ["--timeout", "x"], ["--limit", "-1"]])
def test_a_limit_that_is_none_is_refused(run: Run, state: Path, flags: list[str]) -> None:
    ran = run("sql", "SELECT 1", "--state", state, *flags)

    assert ran.status == 2
    assert flags[0] in ran.err


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO log VALUES (2, 'x', 'y')",
        "UPDATE snapshots SET seq = 1",
        "DELETE FROM events",
        "REPLACE INTO log VALUES (1, 'x', 'y')",
        "DROP VIEW runs",
        "DROP VIEW main.runs",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
        "ATTACH '{other}' AS other",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '{other}'",
        "REINDEX",
        "ANALYZE",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "SAVEPOINT x",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version = 7",
        "PRAGMA writable_schema = ON",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "SELECT load_extension('{other}')",
        "EXPLAIN DELETE FROM events",
    ],
)
def test_nothing_but_reading_is_possible(run: Run, state: Path, tmp_path: Path, query: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    before = StateFiles(state).database.read_bytes()
    ran = run("sql", query.format(other=other / "x.db"), "--state", state)

    assert (ran.status, ran.out) == (2, "")
    assert "only read" in ran.err or "VACUUM" in ran.err
    assert StateFiles(state).database.read_bytes() == before
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("query", ["PRAGMA table_info(runs)", "EXPLAIN QUERY PLAN SELECT 1"])
def test_the_schema_and_the_plan_of_a_query_can_be_looked_at(
    run: Run, state: Path, query: str
) -> None:
    assert run("sql", query, "--state", state).status == 0


# --- limits ---


def test_a_query_without_end_is_given_up(run: Run, state: Path) -> None:
    ran = run("sql", ENDLESS, "--timeout", 0.1, "--state", state)

    assert ran.status == 2
    assert "took longer than 0.1 s; narrow it, or allow more with --timeout" in ran.err


def test_rows_without_end_are_given_up_too(state: Path) -> None:
    endless = ENDLESS.replace("sum(x)", "x")

    with pytest.raises(QueryError, match="took longer"):
        questions.ask(state, endless, timeout_s=0.1, limit=None)
    answer = questions.ask(state, endless, timeout_s=20, limit=3)
    assert (answer.rows, answer.more) == (((1,), (2,), (3,)), True)


def test_ctrl_c_ends_a_query(state: Path) -> None:
    """The signal finds SQLite at work, where an exception of a handler would get lost."""
    command = [sys.executable, "-c", INTERRUPTED, str(state), ENDLESS]
    done = subprocess.run(command, timeout=40, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED = """
import os, signal, sys, threading
from moorage.cli import main
from moorage.log import questions
looks = 0
class Watch(questions._Watch):
    def __call__(self):
        global looks
        looks += 1
        if looks == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return super().__call__()
questions._Watch = Watch
sys.exit(main(["sql", sys.argv[2], "--timeout", "30", "--state", sys.argv[1]]))
"""


# --- where the log is ---


def test_it_answers_beside_a_live_owner_who_is_alive_and_leaks_nothing(
    run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with closing(SqliteLog.open(state)) as log:
        log.append(list(History(seed=1).entries(20, close=None)))
        query = "SELECT alive, (SELECT count(*) FROM leaks) AS leaks FROM owner"

        assert objects(run("sql", query, "--json", "--state", state).out) == [
            {"alive": 1, "leaks": 0}
        ]
        log.append([History(seed=2, seq=log.head).opened()])
        ran = run(
            "sql", "SELECT count(*) AS n FROM leaks WHERE certain", "--json", "--state", state
        )
        assert objects(ran.out) == [{"n": 3}]


def test_it_tells_a_dead_owner_from_one_it_cannot_see(
    run: Run, state: Path, tmp_path: Path
) -> None:
    copy = shutil.copy(StateFiles(state).database, tmp_path / "incident.db")
    query = "SELECT DISTINCT alive, problem FROM leaks, owner"

    assert objects(run("sql", query, "--json", "--state", state).out) == [
        {"alive": 0, "problem": "the owner is gone without closing"}
    ]
    assert objects(run("sql", query, "--json", "--state", copy).out) == [
        {"alive": None, "problem": "leaked if the owner is gone"}
    ]


@pytest.mark.parametrize("golden", ["0001.db", "0002.db"])
def test_a_log_of_an_older_version_answers_the_same_and_stays_as_it_is(
    run: Run, golden: str, tmp_path: Path
) -> None:
    folder = Path(__file__).parents[1] / "log" / "golden"
    copy = Path(shutil.copy(folder / golden, tmp_path / "old.db"))
    before = copy.read_bytes()
    newest = write(tmp_path / "new", History(seed=3).entries(40, close=None))
    for view in views.ALL:
        query = f"SELECT * FROM {view.name}"
        old, new = (run("sql", query, "--json", "--state", db) for db in (copy, newest))
        if view.name not in ("owner", "leaks"):  # what is seen of the owner differs
            assert old == new
        assert (old.status, bool(old.out)) == (0, True)

    assert copy.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old.db"]


def test_the_views_of_the_file_are_hidden_by_those_of_the_program(run: Run, state: Path) -> None:
    with closing(sqlite3.connect(StateFiles(state).database)) as database:
        database.execute("DROP VIEW runs")
        database.execute("CREATE VIEW runs AS SELECT 'old' AS run")

    query = "SELECT count(*) AS n FROM runs"
    assert objects(run("sql", query, "--json", "--state", state).out) == [{"n": 200}]


def test_what_is_no_log_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"")
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE x (a)")

    assert "is empty" in run("sql", "SELECT 1", "--state", tmp_path / "other.db").err
    assert "another program" in run("sql", "SELECT 1", "--state", foreign).err
    assert "no event log" in run("sql", "SELECT 1", "--state", tmp_path / "none").err


def test_a_terminated_query_leaves_the_writer_alone(state: Path) -> None:
    command = [sys.executable, "-m", "moorage", "sql", ENDLESS, "--state", str(state)]
    with closing(SqliteLog.open(state)) as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
            log.append([History(seed=2, seq=log.head).opened()])
            reader.send_signal(signal.SIGTERM)
            reader.communicate(timeout=30)
        head = log.head

    assert questions.ask(state, "SELECT max(seq) FROM events", timeout_s=9, limit=1).rows == (
        (head,),
    )


def test_a_copy_is_asked_with_its_wal(run: Run, state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(SqliteLog.open(state)) as log:
        log.append([History(seed=2, seq=log.head).opened()])
        head = log.head
        for name in ("moorage.db", "moorage.db-wal"):
            shutil.copy(state / name, copy)

    ran = run("sql", "SELECT opened_seq FROM owner", "--json", "--state", copy)
    assert objects(ran.out) == [{"opened_seq": head}]


AS_NOBODY = """
import os, sys, tempfile
import encodings.ascii, moorage.log.questions
from moorage.cli import main, parser, sql
from moorage.log import revisions
import moorage.cli.running
revisions.head(), parser.build()  # the last imports: the other user cannot read the interpreter
tempfile.tempdir = sys.argv[2]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["sql", "SELECT count(*) AS n FROM leaks", "--json", "--state", sys.argv[1]]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_cannot_be_written_is_asked_with_and_without_a_wal(
    state: Path, tmp_path: Path
) -> None:
    require_code_for_others()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="moorage-test-") as name:
        public = Path(name)
        public.chmod(0o755)
        quiet, crashed, scratch = public / "quiet", public / "crashed", public / "scratch"
        shutil.copytree(state, quiet)
        crashed.mkdir()
        scratch.mkdir()
        scratch.chmod(0o777)
        with closing(SqliteLog.open(state)) as log:
            log.append([History(seed=2, seq=log.head).opened()])
            for file in ("moorage.db", "moorage.db-wal"):
                shutil.copy(state / file, crashed)
        for folder in (quiet, crashed):
            for file in folder.iterdir():
                file.chmod(0o644)
            folder.chmod(0o755)
            before = sorted(file.name for file in folder.iterdir())
            command = [sys.executable, "-c", AS_NOBODY, str(folder), str(scratch)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)

            assert (done.returncode, done.stderr) == (0, "")
            assert objects(done.stdout) == [{"n": 3}]
            assert sorted(file.name for file in folder.iterdir()) == before
        assert list(scratch.iterdir()) == []
