"""`moorage archive`, and what the other commands say of a log of several segments."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cli.making import Run
from moorage.core.fold import replay
from moorage.log import questions, segments
from moorage.log.files import StateFiles
from moorage.log.reader import LogReader
from moorage.log.sqlite import SqliteLog
from segments.making import Growing


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# --- archive ---


def test_archive_tells_what_is_where_and_the_log_goes_on(run: Run, growing: Growing) -> None:
    growing.grow()
    count = len(growing.written)
    ran = run("archive", "--state", growing.folder)

    assert (ran.status, ran.err) == (0, "")
    place = growing.archived[0]
    assert f"events 1 to {count} (" in ran.out
    assert str(place) in ran.out
    assert f"goes on with event {count + 1} in {growing.folder / 'moorage.db'}" in ran.out
    with LogReader(growing.folder) as reader:
        entries = list(reader.read())
    assert entries[:-1] == growing.written
    assert replay(entries[:-1]).models == replay(entries).models


def test_archive_prints_one_object(run: Run, growing: Growing) -> None:
    growing.segmented(2, 2)
    ran = run("archive", "--json", "--state", growing.folder)

    (told,) = objects(ran.out)
    assert told["archived"] is True
    assert told["first"] == int(growing.archived[0].stem.split("-")[2]) + 1
    assert told["last"] == len(growing.written)
    assert told["bytes"] == Path(told["path"]).stat().st_size


def test_there_is_nothing_to_archive_right_after_archiving(run: Run, growing: Growing) -> None:
    growing.grow()
    run("archive", "--state", growing.folder)
    ran = run("archive", "--state", growing.folder)

    assert ran.status == 0
    assert ran.out.startswith("nothing to archive")
    assert len(growing.archived) == 1


def test_archive_is_refused_beside_an_owner(run: Run, growing: Growing) -> None:
    growing.grow()
    with closing(SqliteLog.open(growing.folder, owner_note="the test")):
        ran = run("archive", "--state", growing.folder)

    assert ran.status == 2
    assert f"owned by process {os.getpid()}" in ran.err
    assert not (growing.folder / "archive").exists()


@pytest.mark.parametrize("what", ["older", "copy", "nothing"])
def test_archive_is_refused_for_what_is_no_live_log(
    run: Run, growing: Growing, tmp_path: Path, what: str
) -> None:
    growing.segmented(1, 1)
    copy = tmp_path / "copy.db"
    shutil.copy(growing.folder / "moorage.db", copy)
    place = {"older": growing.archived[0], "copy": copy, "nothing": tmp_path / "none"}[what]
    ran = run("archive", "--state", place)

    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "none").exists()


# --- the others ---


def test_every_event_can_be_listed_and_explained(run: Run, growing: Growing) -> None:
    growing.segmented(3, 3, 3)
    listed = objects(run("events", "--json", "--state", growing.folder).out)
    assert [each["seq"] for each in listed] == [entry.seq for entry in growing.written]

    first_run = next(entry for entry in growing.written if entry.event.kind == "run.reserved")
    told = objects(run("why", first_run.seq, "--json", "--state", growing.folder).out)
    assert first_run.seq in {each.get("seq") for each in told}
    boundary = int(growing.archived[0].stem.split("-")[2]) + 1
    told = objects(run("why", boundary, "--json", "--state", growing.folder).out)
    assert any("segment 2" in each.get("says", "") for each in told)


def test_a_story_that_began_in_an_older_segment_is_told_whole(run: Run, growing: Growing) -> None:
    growing.grow(3)
    model, number, _ = growing.history.ready[-1]
    growing.archive()
    stopping = list(growing.history.stopped(*growing.history.ready[-1], "operator"))
    growing.append(stopping)
    own = [e.seq for e in growing.written if getattr(e.event, "run", None) == number]
    told = objects(run("why", stopping[-1].seq, "--json", "--state", growing.folder).out)

    assert min(own) < int(growing.archived[0].stem.split("-")[2])
    assert {each["seq"] for each in told if "seq" in each} >= {min(own), max(own)}
    assert model in {each.get("model") for each in told}


def test_replay_shows_any_point_of_any_segment(run: Run, growing: Growing) -> None:
    growing.segmented(3, 2, 3)
    for seq in range(1, len(growing.written) + 1, 7):
        service, *models = objects(
            run("replay", "--at", seq, "--json", "--state", growing.folder).out
        )
        state = replay(growing.written[:seq])

        assert service["seq"] == seq
        assert {model["name"]: model["run"] for model in models} == {
            model.name: model.run for model in state.models.values()
        }


def test_replay_tells_from_where_on_it_can_when_older_segments_are_missing(
    run: Run, growing: Growing
) -> None:
    growing.segmented(2, 2)
    first = int(growing.archived[0].stem.split("-")[2]) + 1
    shutil.rmtree(growing.folder / "archive")

    for at in ("3", "2026-03-02T08:00:00Z", str(first - 1)):
        ran = run("replay", "--at", at, "--state", growing.folder)
        assert ran.status == 2
        assert f"begins with event {first}" in ran.err
    assert run("replay", "--at", first, "--state", growing.folder).status == 0
    assert run("ps", "--state", growing.folder).status == 0


def test_verify_reports_a_missing_segment_as_a_gap(run: Run, growing: Growing) -> None:
    growing.segmented(2, 2)
    assert run("verify", "--state", growing.folder).status == 0
    shutil.rmtree(growing.folder / "archive")
    ran = run("verify", "--state", growing.folder)

    assert ran.status == 1
    assert "row 1 is missing, and all up to row" in ran.out
    assert ran.out.count("row 1 ") == 1


# --- sql ---


def answers(folder: Path, query: str) -> tuple[tuple[questions.Value, ...], ...]:
    return questions.ask(folder, query, timeout_s=60, limit=None).rows


@pytest.mark.parametrize("parts", [2, 12])
def test_sql_answers_as_if_the_log_were_one(growing: Growing, tmp_path: Path, parts: int) -> None:
    growing.segmented(*([30 // parts] * parts))
    whole = Growing(tmp_path / "whole")
    whole.append(growing.written)

    for table in ("runs", "models", "ports", "leaks", "evictions", "loads", "owner"):
        query = f"SELECT * FROM {table}"
        assert answers(growing.folder, query) == answers(whole.folder, query), table
    rows = answers(growing.folder, "SELECT seq, kind FROM events ORDER BY seq")
    assert rows == tuple((entry.seq, entry.event.kind) for entry in growing.written)
    compared = "SELECT count(*) FROM events WHERE run = '1'"
    assert answers(growing.folder, compared) == answers(whole.folder, compared) != ((0,),)


def test_sql_leaves_the_segments_as_they_are(growing: Growing) -> None:
    growing.segmented(2, 2)
    before = [(path, path.read_bytes()) for path in growing.archived]
    answers(growing.folder, "SELECT 1")

    assert [(path, path.read_bytes()) for path in growing.archived] == before


def test_sql_of_a_folder_whose_name_has_quotes(tmp_path: Path) -> None:
    growing = Growing(tmp_path / 'it\'s a %41 "state"? #1')
    growing.segmented(1, 1)

    assert answers(growing.folder, "SELECT count(*) FROM events") == ((len(growing.written),),)


def test_sql_says_when_older_segments_are_missing(run: Run, growing: Growing) -> None:
    growing.segmented(2, 2)
    first = int(growing.archived[0].stem.split("-")[2]) + 1
    query = ("sql", "SELECT min(seq) FROM events", "--json", "--state", growing.folder)
    assert (objects(run(*query).out), run(*query).err) == ([{"min(seq)": 1}], "")
    shutil.rmtree(growing.folder / "archive")
    ran = run(*query)

    assert objects(ran.out) == [{"min(seq)": first}]
    assert f"older segments are missing: the answer is of what event {first} and later" in ran.err
    assert "older segments, which say" in run("audit", "--state", growing.folder).out


# --- size ---


def test_ps_suggests_to_archive_a_large_log(
    run: Run, growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.grow()
    assert "archive" not in run("ps", "--state", growing.folder).out
    size = StateFiles(growing.folder).database.stat().st_size
    monkeypatch.setattr(segments, "LARGE_BYTES", size)
    said = run("ps", "--state", growing.folder).out
    (service, *_) = objects(run("ps", "--json", "--state", growing.folder).out)

    assert "moorage.db has grown to 0 MB: `moorage archive`" in said
    assert "begins a new one and keeps this one" in service["note"]
