"""Export, import and backup: the same log elsewhere, or none."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from moorage import ModelService
from moorage.core.events import Entry, PortBlocked
from moorage.errors import StateError
from moorage.log import transfer
from moorage.log.reader import LogReader
from moorage.log.transfer import imported
from offline.acting import Acting
from offline.conftest import Ask, written
from support.history import History


def rows(state: Path) -> list[object]:
    with LogReader(state) as reader:
        return [reader.log_id, *reader.rows()]


@pytest.fixture
def export(state: Path, ask: Ask) -> str:
    written(state, list(History(seed=6).entries(6))[:60])
    return ask("export", "--state", state).out


def test_a_log_comes_back_row_for_row(tmp_path: Path, state: Path, export: str, ask: Ask) -> None:
    (tmp_path / "log.jsonl").write_text(export)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 0
    assert "60 events" in answer.out
    assert rows(back) == rows(state)
    assert ask("verify", "--state", back).status == 0
    assert ask("export", "--state", back).out == export


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_rows_that_come_in_several_batches_are_all_there(
    tmp_path: Path,
    state: Path,
    export: str,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    *,
    batch: int,
) -> None:
    monkeypatch.setattr(transfer, "_BATCH_ROWS", batch)
    (tmp_path / "log.jsonl").write_text(export)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 0
    assert rows(back) == rows(state)


@pytest.mark.parametrize(
    "text", ["", "naïve ☃ 🦊", "\udc80\ud800", "line\nbreak\x00\x1b\u2028", '"\\/', "x" * 100_000]
)
def test_any_text_comes_back(tmp_path: Path, state: Path, ask: Ask, text: str) -> None:
    acting = Acting()
    entries = [
        *acting.entries,
        Entry(3, acting.state.at, None, PortBlocked(port=18_000, pid=None, command=text)),
    ]
    written(state, entries)
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)

    imported_ = ask("import", tmp_path / "log.jsonl", "--state", tmp_path / "back")

    assert imported_.status == 0
    assert rows(tmp_path / "back") == rows(state)


def test_a_service_goes_on_with_an_imported_log(tmp_path: Path, state: Path, ask: Ask) -> None:
    ModelService.open(state, ports=range(27_900, 27_903)).close()
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)
    back = tmp_path / "back"
    ask("import", tmp_path / "log.jsonl", "--state", back)

    ModelService.open(back, ports=range(27_900, 27_903)).close()

    assert rows(back)[: len(rows(state))] == rows(state)
    assert ask("verify", "--state", back).status == 0


def test_a_log_of_several_segments_comes_back_as_one(tmp_path: Path, state: Path, ask: Ask) -> None:
    ModelService.open(state, ports=range(27_900, 27_903)).close()
    ask("archive", "--state", state)
    ModelService.open(state, ports=range(27_900, 27_903)).close()
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 0
    assert rows(back) == rows(state)
    assert ask("verify", "--state", back).status == 0
    assert ask("replay", "--state", back).out == ask("replay", "--state", state).out
    ModelService.open(back, ports=range(27_900, 27_903)).close()


def test_a_segment_whose_elders_are_missing_comes_back_with_its_gap(
    tmp_path: Path, state: Path, ask: Ask
) -> None:
    written(state, list(History(seed=6).entries(6))[:60])
    ask("archive", "--state", state)
    shutil.rmtree(state / "archive")
    (tmp_path / "log.jsonl").write_text(ask("export", "--state", state).out)
    back = tmp_path / "back"

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    verified = ask("verify", "--state", back, "--json")
    assert answer.status == 0
    assert rows(back) == rows(state)
    assert [flaw["seq"] for flaw in verified.of("flaw")] == [1]
    assert ask("replay", "--state", back).out == ask("replay", "--state", state).out


def damaged(lines: list[str], chance: random.Random) -> list[str]:
    """Damage an export in one place, as disks, editors and networks do."""
    lines = list(lines)
    at = chance.randrange(len(lines))
    line = lines[at]
    cut = chance.randrange(len(line)) if line else 0
    match chance.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, line)
        case 2:
            lines = lines[:at]
        case 3:
            lines[at] = line[:cut]
        case 4:
            lines[at] = line[:cut] + chr(chance.randrange(32, 127)) + line[cut + 1 :]
        case 5:
            lines[at] = chance.choice(
                ["", "null", "[]", "{}", '{"end": 1}', "[" * 5000, "9" * 5000]
            )
        case 6:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = line.replace(chance.choice(list('"0123456789:,{}ae')), "\udc80", 1)
    return lines


@pytest.mark.parametrize("seed", range(150))
def test_a_damaged_export_is_refused_and_leaves_nothing(
    tmp_path: Path, export: str, seed: int
) -> None:
    lines = export.splitlines()
    worse = damaged(lines, random.Random(seed))
    if worse == lines:
        return

    with pytest.raises(StateError) as refused:
        imported(iter(worse), "the export", tmp_path / "back")

    assert "the export: " in str(refused.value)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{}\n", b"SQLite format 3\x00"])
def test_a_file_that_is_no_export_is_refused_in_one_line(
    tmp_path: Path, ask: Ask, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)

    answer = ask("import", tmp_path / "file", "--state", tmp_path / "back")

    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert not (tmp_path / "back").exists()


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, ask: Ask) -> None:
    for file in (tmp_path / "none", tmp_path):
        answer = ask("import", file, "--state", tmp_path / "back")

        assert (answer.status, answer.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", ["moorage.db", "moorage.db-wal", "moorage.head"])
def test_a_folder_that_holds_anything_of_a_log_is_left_as_it_is(
    tmp_path: Path, export: str, ask: Ask, name: str
) -> None:
    (tmp_path / "log.jsonl").write_text(export)
    back = tmp_path / "back"
    back.mkdir(mode=0o700)
    (back / name).write_bytes(b"kept")

    answer = ask("import", tmp_path / "log.jsonl", "--state", back)

    assert answer.status == 2
    assert [path.name for path in back.iterdir()] == [name]
    assert (back / name).read_bytes() == b"kept"


def test_the_log_of_a_live_service_is_exported_and_backed_up_without_holding_it_up(
    tmp_path: Path, state: Path, ask: Ask
) -> None:
    with ModelService.open(state, ports=range(27_900, 27_903)) as service:
        backup = ask("backup", tmp_path / "copy.db", "--state", state, "--json")
        export = ask("export", "--state", state)
        seq = service.status().seq

    assert (backup.status, backup.of("backup")[0]["head"]) == (0, seq)
    assert export.objects[-1]["end"] == seq
    assert rows(tmp_path / "copy.db") == rows(state)[: seq + 1]
    assert ask("verify", "--state", tmp_path / "copy.db").status == 0


def test_a_backup_writes_over_nothing(tmp_path: Path, state: Path, export: str, ask: Ask) -> None:
    target = tmp_path / "copy.db"
    target.write_text("kept")

    answer = ask("backup", target, "--state", state)

    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert target.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["copy.db"]
