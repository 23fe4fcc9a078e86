"""A hub on loopback that speaks what huggingface_hub asks of one, with faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do instead of a full answer, once or as long as it stands in `Hub.faults`.

    `status` answers with it and `error_code`; `reset_after` sends that many bytes of the body and
    then resets the connection; `short_by` closes it that many bytes before the body's end;
    `size_off` tells another size than the file has; `body` is sent instead of the right one.
    """

    status: int | None = None
    error_code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    reset_after: int | None = None
    short_by: int = 0
    size_off: int = 0
    body: bytes | None = None


@dataclass(slots=True)
class Repo:
    """Files of one repo at one commit, under each of its revisions."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    large: frozenset[str] = frozenset()
    """Names that are stored by their sha256, as weights are."""

    @property
    def commit(self) -> str:
        listed = [(name, _sha1(content)) for name, content in sorted(self.files.items())]
        return hashlib.sha1(repr(listed).encode()).hexdigest()

    def etag(self, name: str) -> str:
        content = self.files[name]
        return hashlib.sha256(content).hexdigest() if name in self.large else _sha1(content)

    def has(self, revision: str) -> bool:
        return revision in (*self.revisions, self.commit)


class Hub:
    """Serves `repos`; `faults` by what is asked: `list`, `head` or `get`. `asked` counts them."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: dict[str, Fault] = {}
        self.asked: Counter[str] = Counter()
        self.tokens: set[str | None] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="hub", daemon=True
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


class _Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited
        pass

    def _answer(self, *, body: bool) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        kind = "list" if parts[0] == "api" else "get" if body else "head"
        self.hub.asked[kind] += 1
        self.hub.tokens.add(self.headers.get("Authorization"))
        fault = self.hub.faults.get(kind, Fault())
        if fault.status is not None:
            self._refuse(fault.status, fault.error_code, fault.headers)
        elif kind == "list":
            self._list("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main", fault)
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), fault)

    def _list(self, name: str, revision: str, fault: Fault) -> None:
        repo = self._find(name, revision)
        if repo is None:
            return
        siblings = [self._sibling(repo, file) for file in repo.files]
        text = json.dumps({"id": name, "sha": repo.commit, "siblings": siblings}).encode()
        self._send(text, {"Content-Type": "application/json"}, fault)

    def _sibling(self, repo: Repo, name: str) -> dict[str, Any]:
        size = len(repo.files[name])
        about: dict[str, Any] = {"rfilename": name, "size": size, "blobId": _sha1(name.encode())}
        if name in repo.large:
            about["lfs"] = {"size": size, "sha256": repo.etag(name), "pointerSize": 130}
        else:
            about["blobId"] = repo.etag(name)
        return about

    def _file(self, name: str, revision: str, file: str, fault: Fault) -> None:
        repo = self._find(name, revision)
        if repo is None:
            return
        if file not in repo.files:
            self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound", {})
            return
        linked = {"X-Linked-ETag": repo.etag(file)} if file in repo.large else {}
        size = len(repo.files[file]) + fault.size_off
        headers = {"ETag": repo.etag(file), "X-Repo-Commit": repo.commit, **linked}
        self._send(repo.files[file], {**headers, "X-Linked-Size": str(size)}, fault)

    def _find(self, name: str, revision: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None:
            self._refuse(HTTPStatus.NOT_FOUND, "RepoNotFound", {})
        elif not repo.has(revision):
            self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound", {})
        else:
            return repo
        return None

    def _refuse(self, status: int, code: str | None, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, **({"X-Error-Code": code} if code else {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes, headers: Mapping[str, str], fault: Fault) -> None:
        start, content = self._range(content if fault.body is None else fault.body)
        self.send_response(HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.reset_after is not None:
            self.wfile.write(content[: fault.reset_after])
            self._reset()
        else:
            self.wfile.write(content[: len(content) - fault.short_by])

    def _range(self, content: bytes) -> tuple[int, bytes]:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0) if asked else 0
        return start, content[start:]

    def _reset(self) -> None:
        """Close with RST instead of FIN; what was sent may not have arrived."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())  # the server's own way to close sends a FIN first
        self.close_connection = True


def _sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
