from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moorage.cli import timelinepage
from moorage.core.events import Entry
from moorage.core.fold import apply
from moorage.core.timeline import build
from moorage.log.sqlite import SqliteLog
from support import chromium, needed
from support.history import History

Draw = Callable[[Iterable[Entry]], Path]


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """Write the page of a log."""

    def write(entries: Iterable[Entry]) -> Path:
        target = tmp_path / "timeline.html"
        target.write_text(timelinepage.page(build(entries, apply)), encoding="utf-8")
        return target

    return write


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    if chromium.found() is None:
        needed.missing("Chromium is not installed (Debian: apt-get install chromium)")
    with chromium.Chromium(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state with 30 runs in its log."""
    with closing(SqliteLog.open(tmp_path / "state")) as log:
        log.append(list(History(seed=2).entries(30)))
    return tmp_path / "state"
