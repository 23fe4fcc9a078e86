"""Every command with arguments that nobody means: an answer or one line, and the log as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz import bending, bounds
from fuzz.seeds import seeds
from fuzz.test_databases import digest, folder, opened
from support.examples import NAMES, SHARES, Share

COMMANDS = (
    *("ps", "logs", "events", "replay", "why", "audit", "verify", "sql", "timeline", "export"),
    *("import", "backup", "archive", "db", "demo", "fetch", "no-such-command"),
)
OPTIONS = (
    *("--at", "--limit", "--after", "--run", "--kind", "--model", "--lines", "--timeout", "--from"),
    *("--to", "-o", "--json", "--fix", "-f", "--datasette", "--help", "--version", "--", "-", "-x"),
)
TIMES = ("2026-01-01", "2026-01-01T00:00:01Z", "2026-W01-1", "00:00", "20260101T00", "now")
SQL = (
    *("SELECT", "*", "FROM", "events", "runs", "WHERE", "=", "(", ")", ",", "'", '"', ";", "--"),
    *("PRAGMA", "ATTACH 'x' AS y", "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t)"),
    *("DELETE FROM events", "CREATE TABLE t(a)", "VACUUM INTO 'x'", "EXPLAIN", "VALUES", "1e999"),
    *(
        "zeroblob(1000000000)",
        "randomblob(99)",
        "load_extension('x')",
        "x'ff'",
        "CAST(x'ff' AS TEXT)",
    ),
    *(
        "SELECT 1",
        "LIMIT -1",
        "printf('%.*c', 100000000, 'x')",
        "?",
        ":a",
        "@leaked-ports",
        "\udc80",
    ),
    *("json_extract(data, '$')", "data ->> 'x'", "BEGIN", "COMMIT", "application_id = 1"),
)


def as_argument(text: str) -> str:
    """Return what a program is given: any bytes but NUL, those that are no UTF-8 escaped."""
    return os.fsdecode(text.encode(errors="surrogatepass").replace(b"\0", b""))


odd = st.one_of(
    st.sampled_from(bending.ODD_TEXTS),
    st.sampled_from(TIMES),
    st.sampled_from(("a", "aa", "b", "model-1", "7", "run.ready", "²", "٣", "1" * 30, "-1", "1e3")),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(str),
).map(as_argument)


def asked(command: str, arguments: list[str]) -> list[str]:
    """Return a command line that begins no servers, downloads and repairs."""
    begins = command in ("demo", "fetch") or "--fix" in arguments
    return [command, *arguments, *(["--no-such-option"] if begins else [])]


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_whatever_is_asked_is_answered_or_refused_in_one_line(
    share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = seeds()[2].put(tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    before = digest(state)

    @share.of(60)
    @given(
        command=st.sampled_from(COMMANDS),
        arguments=st.lists(st.one_of(st.sampled_from(OPTIONS), odd), max_size=5),
    )
    @example(command="why", arguments=["²"])
    @example(command="replay", arguments=["--at", "٣"])
    @example(command="replay", arguments=["--at", "9" * 18])
    @example(command="replay", arguments=["--at", "²"])
    @example(command="sql", arguments=["SELECT 1", "--limit", "²"])
    @example(command="sql", arguments=["SELECT 1", "--limit", "9" * 5000])
    @example(command="events", arguments=["--after", "9" * 5000])
    @example(command="logs", arguments=["a", "--lines", str(2**63 - 1)])
    @example(command="timeline", arguments=["-o", "a" * 5000])
    @example(command="backup", arguments=["\udc80"])
    @example(command="import", arguments=["/dev/zero"])
    def check(command: str, arguments: list[str]) -> None:
        if command not in ("archive", "import"):
            bounds.run(*asked(command, arguments), "--state", state)
            assert digest(state) == before
        else:
            with folder() as other:
                bounds.run(*asked(command, arguments), "--state", other)

    assert digest(state) == before


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_whatever_is_asked_in_sql_changes_nothing_and_ends(share: Share, tmp_path: Path) -> None:
    state = seeds()[2].put(tmp_path / "state")
    before = digest(state)

    @share.of(30)
    @given(
        words=st.lists(st.one_of(st.sampled_from(SQL), odd), max_size=8).map(" ".join),
        more=st.sampled_from(((), ("--json",), ("--limit", "3"))),
    )
    @example(words="SELECT zeroblob(1000000000)", more=())
    @example(words="SELECT printf('%.*c', 100000000, 'x')", more=())
    @example(
        words="WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t) SELECT * FROM t", more=()
    )
    @example(words="SELECT x'ff', CAST(x'ff' AS TEXT), 1e999", more=("--json",))
    def check(words: str, more: tuple[str, ...]) -> None:
        bounds.run("sql", "--timeout", "0.5", *more, "--state", state, "--", words)
        piped = f"\0{words}".encode(errors="surrogateescape")
        bounds.run("sql", "--timeout", "0.5", *more, "--state", state, "-", stdin=piped)
        assert digest(state) == before


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_whatever_is_named_as_a_state_is_refused_if_it_is_none(
    share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @share.of(40)
    @given(name=odd, command=st.sampled_from(("ps", "verify", "audit", "events", "export")))
    def check(name: str, command: str) -> None:
        assert bounds.run(command, f"--state={name}").status == 2
        monkeypatch.setenv("MOORAGE_STATE", name)
        assert bounds.run(command).status == 2

    assert list(tmp_path.iterdir()) == []


def test_a_state_whose_name_is_no_utf8_is_as_good_as_any(tmp_path: Path) -> None:
    state = seeds()[3].put(tmp_path / "caf\udce9")

    for command in (("ps",), ("verify",), ("events", "--json"), ("sql", "SELECT 1 FROM events")):
        assert bounds.run(*command, "--state", state).status == 0, command
    opened(state)
    assert bounds.run("archive", "--state", state).status == 0
