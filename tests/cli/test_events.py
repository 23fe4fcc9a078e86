from __future__ import annotations

import json
import shutil

import pytest

from cli.making import Filler, Run, Steps, seqs
from moorage.core import events as ev


def test_each_event_is_one_line_with_seq_time_kind_and_what_tells(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1)

    found = run("events", "--state", filler.folder)

    assert found.status == 0
    assert seqs(found.lines) == [1, 2, 3, 4, 5, 6]
    assert found.lines[4].split() == [
        "5",
        "2026-01-31T23:59:59.123Z",
        "run.reserved",
        "owl#1",
        ":18001",
    ]
    assert "requested_by=lease place=1" in found.lines[3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--after", "4"], [5, 6]),
        (["--limit", "2"], [1, 2]),
        (["--model", "owl"], [3, 4, 5, 6]),
        (["--model", "night", "--limit", "1"], [3]),
        (["--run", "1"], [4, 5, 6]),
        (["--kind", "run."], [4, 5, 6]),
        (["--kind", "run.launching"], [6]),
        (["--kind", "service", "--model", "owl"], []),
        (["--after", "99"], []),
    ],
)
def test_only_the_events_asked_for_are_shown(
    run: Run, filler: Filler, options: list[str], expected: list[int]
) -> None:
    filler.launch("owl", 1)

    found = run("events", "--state", filler.folder, *options)

    assert found.status == 0
    assert seqs(found.lines) == expected


def test_an_event_is_json_as_the_log_has_it(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1)

    found = run("events", "--state", filler.folder, "--json")

    events = [json.loads(line) for line in found.lines]
    assert [event["seq"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert events[5]["kind"] == "run.launching"
    assert (events[5]["model"], events[5]["run"], events[5]["port"]) == ("owl", 1, 18001)
    assert events[5]["data"]["argv"] == ["server"]


def test_following_shows_what_is_appended_until_it_is_ended(run: Run, filler: Filler) -> None:
    stop = Steps(lambda: filler.define("wren"), lambda: filler.launch("owl", 1))

    found = run("events", "-f", "--after", "2", "--state", filler.folder, stop=stop)

    assert found.status == 0
    assert seqs(found.lines) == [3, 4, 5, 6, 7]


def test_following_ends_with_its_limit(run: Run, filler: Filler) -> None:
    stop = Steps(lambda: filler.launch("owl", 1))

    found = run("events", "-f", "--limit", "4", "--state", filler.folder, stop=stop)

    assert found.status == 0
    assert seqs(found.lines) == [1, 2, 3, 4]
    assert not stop.is_set()


def test_following_a_log_that_is_deleted_ends_with_an_error(run: Run, filler: Filler) -> None:
    stop = Steps(lambda: shutil.rmtree(filler.folder))

    found = run("events", "-f", "--state", filler.folder, stop=stop)

    assert found.status == 2
    assert "deleted" in found.err


def test_a_mistyped_kind_is_refused_with_what_was_meant(run: Run, filler: Filler) -> None:
    found = run("events", "--state", filler.folder, "--kind", "run.redy")

    assert found.status == 2
    assert "did you mean run.ready" in found.err


def test_a_mistyped_model_is_refused_and_a_removed_one_is_known(run: Run, filler: Filler) -> None:
    filler.append(ev.ModelRemoved(model="owl", reason="operator"))
    filler.define("wren")

    removed = run("events", "--state", filler.folder, "--model", "owl")
    mistyped = run("events", "--state", filler.folder, "--model", "wrem")

    assert seqs(removed.lines) == [3, 4]
    assert mistyped.status == 2
    assert "did you mean wren" in mistyped.err


def test_text_that_would_break_the_line_is_quoted(run: Run, filler: Filler) -> None:
    filler.append(ev.PortBlocked(port=18_003, pid=7, command='a "b"\n c\x1b[2J'))

    found = run("events", "--state", filler.folder, "--kind", "port")

    assert found.lines[0].endswith(r'pid=7 command="a \"b\"\n c\u001b[2J"')
