from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.making import Filler, Run, Steps
from moorage.cli.outputfile import OutputFile


def test_the_last_lines_of_the_latest_run_are_shown(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1, b"old\n")
    filler.end("owl", 1)
    filler.launch("owl", 2, b"one\ntwo\nthree")

    found = run("logs", "night", "--state", filler.folder, "--lines", "2")

    assert (found.status, found.lines) == (0, ["two", "three"])


def test_the_lines_of_an_earlier_run_are_shown_by_its_number(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1, b"old\n")
    filler.end("owl", 1)
    filler.launch("owl", 2, b"new\n")

    found = run("logs", "owl", "--run", "1", "--state", filler.folder, "--json")

    assert json.loads(found.out) == {"model": "owl", "run": 1, "line": "old"}


def test_a_name_that_is_no_utf_8_names_no_model(run: Run, filler: Filler) -> None:
    found = run("logs", "\udcff\udcfe", "--state", filler.folder)

    assert found.status == 2
    assert "no model is called" in found.err


def test_lines_cannot_drive_the_terminal(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1, b"\x1b[31mred\x1b[0m\n 1%\r 50%\r100%\n\x1b]0;t\x07\xff\x9b\tx\n")

    found = run("logs", "owl", "--state", filler.folder)

    assert found.lines[:2] == ["red", "100%"]
    assert all(c.isprintable() or c == "\n" for c in found.out)


def test_a_copied_state_shows_its_own_output_files(
    run: Run, filler: Filler, tmp_path: Path
) -> None:
    original = filler.launch("owl", 1, b"as it was\n")
    shutil.copytree(filler.folder, tmp_path / "copy")
    original.write_bytes(b"later\n")

    found = run("logs", "owl", "--state", tmp_path / "copy")

    assert found.lines == ["as it was"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["owl"], "no run of 'owl' got as far as a launch"),
        (["owl", "-f", "--run", "7"], "no run 7 of 'owl'"),
        (["owk"], "did you mean owl"),
    ],
)
def test_without_output_it_says_why(
    run: Run, filler: Filler, arguments: list[str], said: str
) -> None:
    found = run("logs", *arguments, "--state", filler.folder)

    assert found.status == 2
    assert said in found.err


def test_an_output_file_that_was_pruned_is_said_to_be_gone(run: Run, filler: Filler) -> None:
    filler.launch("owl", 1, None)

    found = run("logs", "owl", "--state", filler.folder)

    assert found.status == 2
    assert "only the newest" in found.err


def test_following_a_model_goes_on_with_its_next_run(run: Run, filler: Filler) -> None:
    file = filler.launch("owl", 1, b"one\ntw")

    def finish_and_start_again() -> None:
        append(file, b"last words")
        filler.end("owl", 1)
        filler.launch("owl", 2, b"hello\n")

    stop = Steps(lambda: append(file, b"o\n"), finish_and_start_again)

    found = run("logs", "owl", "-f", "--state", filler.folder, stop=stop)

    assert found.status == 0
    assert found.lines == ["one", "two", "last words", "==> owl run 2 <==", "hello"]


def test_following_one_run_ends_with_it(run: Run, filler: Filler) -> None:
    file = filler.launch("owl", 1, b"one\n")

    def finish() -> None:
        append(file, b"bye")
        filler.end("owl", 1)

    stop = Steps(finish)

    found = run("logs", "owl", "-f", "--run", "1", "--state", filler.folder, stop=stop)

    assert found.lines == ["one", "bye"]
    assert not stop.is_set()


def test_following_a_model_that_never_ran_waits_for_its_first_run(run: Run, filler: Filler) -> None:
    stop = Steps(lambda: filler.launch("owl", 1, b"first\n"))

    found = run("logs", "owl", "-f", "--state", filler.folder, stop=stop)

    assert found.lines == ["==> owl run 1 <==", "first"]


def test_a_rotation_loses_no_line_for_who_follows(tmp_path: Path) -> None:
    path = tmp_path / "000001.log"
    path.write_bytes(b"one\n")
    output = OutputFile(path)
    shown = output.last(10, unfinished=False)
    append(path, b"two\n")
    shutil.copy(path, tmp_path / "000001.log.1")
    path.write_bytes(b"3\n")

    shown += output.more(to_the_end=False)

    assert shown == ["one", "two", "3"]


def test_a_rotation_just_before_does_not_shorten_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "000001.log.1").write_bytes(b"one\ntwo\n")
    (tmp_path / "000001.log").write_bytes(b"three\n")

    assert OutputFile(tmp_path / "000001.log").last(2, unfinished=True) == ["two", "three"]


@pytest.mark.parametrize("lines", [0, 1, 2, 70_000, 200_000])
def test_the_last_lines_of_a_long_file_are_found_from_its_end(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "long.log"
    wanted = [f"line {n}" for n in range(100_000)]
    path.write_text("\n".join(wanted) + "\n", encoding="ascii")

    found = OutputFile(path).last(lines, unfinished=True)

    assert found == (wanted[-lines:] if lines else [])


def test_a_line_without_an_end_is_shown_in_parts_and_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "endless.log"
    path.write_bytes(b"")
    output = OutputFile(path)
    output.last(1, unfinished=False)
    append(path, b"x" * (3 << 20))

    shown = list(output.more(to_the_end=False))

    assert "".join(shown) == "x" * (3 << 20)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
