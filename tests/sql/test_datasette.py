"""The real Datasette opens a log with the configuration that `moorage sql --datasette` prints."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moorage.log import canned, questions, views
from moorage.log.files import StateFiles
from sql.conftest import Run
from support.services import settle

Get = Callable[[str], Any]


class OverUnixSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def listens(place: Path) -> bool:
    """Tell whether a connection is taken: the socket is there a moment before."""
    with closing(OverUnixSocket(place)) as connection:
        try:
            connection.connect()
        except OSError:
            return False
    return True


@pytest.fixture
def place() -> Iterator[Path]:
    """The path of a socket, which must not be long."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="moorage-test-") as name:
        yield Path(name) / "datasette.sock"


@pytest.fixture
def get(run: Run, state: Path, tmp_path: Path, place: Path) -> Iterator[Get]:
    """Read a page of a Datasette that serves the log."""
    metadata = tmp_path / "metadata.json"
    metadata.write_text(run("sql", "--datasette", "--state", state).out)
    command = [sys.executable, "-m", "datasette", "serve", str(StateFiles(state).database)]
    command += ["--metadata", str(metadata), "--setting", "sql_time_limit_ms", "10000"]
    with subprocess.Popen(
        [*command, "--uds", str(place)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            settle(lambda: listens(place) or server.poll() is not None, limit_s=30)
            assert server.poll() is None, server.communicate()[0]
            yield lambda path: page(place, path)
        finally:
            server.terminate()
            server.communicate(timeout=30)


def page(place: Path, path: str) -> Any:
    connection = OverUnixSocket(place)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body) if ".json" in path else body.decode()
    finally:
        connection.close()


def test_datasette_shows_every_view_and_answers_every_statement(get: Get, state: Path) -> None:
    described = get("/moorage.json")
    assert {view["name"] for view in described["views"]} == {view.name for view in views.ALL}
    assert {query["name"] for query in described["queries"]} == {one.name for one in canned.ALL}
    for one in canned.ALL:
        shown = get(f"/moorage/{one.name}.json?_shape=arrays")
        answer = questions.ask(state, one.query, timeout_s=20, limit=None)

        assert shown["columns"] == list(answer.columns)
        assert len(shown["rows"]) == len(answer.rows) > 0
    for view in views.ALL:
        assert get(f"/moorage/{view.name}.json?_shape=array&_size=5")
    assert "Leaked ports" in get("/moorage/leaked-ports")
