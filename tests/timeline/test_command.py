"""`moorage timeline` as its users type it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from moorage.cli import main
from support.services import Outcome


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["timeline", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_it_writes_one_file_that_needs_nothing_else(
    capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "picture.html"
    status, out, err = run(capsys, "--state", state, "-o", target)
    page = target.read_text(encoding="utf-8")

    assert (status, err) == (0, "")
    assert re.fullmatch(
        rf"{target}: 30 runs of 6 models on \d+ ports, [\d.]+ kB; open it in a browser\n", out
    )
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://|fetch\(""", page)
    assert not re.search(r"@[A-Z_]+@", page)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["picture.html", "state"]


def test_a_pipe_or_a_device_is_written_to_and_never_replaced(
    capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "picture.html"
    os.mkfifo(target)
    reader = Outcome(target.read_bytes)
    status, out, err = run(capsys, "--state", state, "-o", target, "--json")

    assert (status, err) == (0, "")
    assert target.is_fifo()
    assert len(reader.get()) == json.loads(out)["bytes"]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_written_and_the_link_stays(
    capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path, there: bool
) -> None:
    target, link = tmp_path / "picture.html", tmp_path / "link.html"
    link.symlink_to(target)
    if there:
        target.write_text("an older one")
    status, out, _ = run(capsys, "--state", state, "-o", link, "--json")

    assert status == 0
    assert link.is_symlink()
    assert target.stat().st_size == json.loads(out)["bytes"]


def test_its_default_is_a_file_here(
    capsys: pytest.CaptureFixture[str],
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "--state", state, "--json")
    told = json.loads(out)

    assert status == 0
    assert told["file"] == "moorage-timeline.html"
    assert told["bytes"] == (tmp_path / "moorage-timeline.html").stat().st_size
    assert (told["runs"], told["left_out"]) == (30, 0)


def test_a_window_leaves_runs_out_and_says_how_many(
    capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "picture.html"
    window = ("--from", "2026-03-02T08:03", "--to", "2026-03-02T08:06:00+00:00")
    _, out, _ = run(capsys, "--state", state, "-o", target, *window)

    assert re.search(r": \d+ runs \(\d+ lie outside\) of ", out)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--from", "yesterday"], "--from: 'yesterday' is neither"),
        (["--to", "0001-01-01T00:00:00+14:00"], "--to: '0001-01-01T00:00:00+14:00' is neither"),
        (["--to", "9999-12-31T23:59:59-14:00"], "--to: '9999-12-31T23:59:59-14:00' is neither"),
        (["--from", "2026-03-03", "--to", "2026-03-02"], "is after --to"),
    ],
)
def test_times_that_cannot_be_meant_are_told(
    capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path, flags: list[str], says: str
) -> None:
    target = tmp_path / "picture.html"
    status, out, err = run(capsys, "--state", state, "-o", target, *flags)

    assert (status, out) == (2, "")
    assert says in err
    assert not target.exists()


def test_a_place_that_cannot_be_written_is_told(
    capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "none" / "x.html", tmp_path / "folder", Path()):
        status, out, err = run(capsys, "--state", state, "-o", target)

        assert (status, out) == (2, "")
        assert f"{target}: cannot be written" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "state"]
