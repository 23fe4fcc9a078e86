"""A hub on loopback that speaks what huggingface_hub asks of one, with faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do instead of a full answer, for so many `times`, or as long as it stands.

    `status` answers with it and `error_code`. `silent` takes the request and never answers.
    After the headers: `reset_after` sends that many bytes of what was asked for and then resets
    the connection; `short_by` closes it that many bytes too early; `stall_after` sends that many
    and then nothing until `Hub.go`; `trickle` sends one byte every ten milliseconds. `size_off`
    tells another size than the file has; `body` is sent instead of the right one, `flip` changes
    the byte at that place of the file; `whole` ignores that only a range was asked for, and
    `unsized` does not tell how much it sends.
    """

    status: int | None = None
    error_code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    silent: bool = False
    reset_after: int | None = None
    short_by: int = 0
    stall_after: int | None = None
    trickle: bool = False
    size_off: int = 0
    body: bytes | None = None
    flip: int | None = None
    whole: bool = False
    unsized: bool = False
    times: int | None = None


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
    """Serves `repos`; `faults` by what is asked: `list`, `head` or `get`, or one for each time.

    `asked` counts the requests of each kind, `starts` has the first byte that each transfer asked
    for, and `most_at_once` how many of them there ever were at once. Where `store` is given,
    files are to be had there, by a signed address, as they are from the real one.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: dict[str, Fault | Iterator[Fault]] = {}
        self.asked: Counter[str] = Counter()
        self.starts: list[tuple[str, int]] = []
        self.tokens: set[str | None] = set()
        self.store: Hub | None = None
        self.go = threading.Event()
        self.most_at_once = 0
        self._at_once = 0
        self._waiting = 0
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._scheme = "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="hub", daemon=True
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def wait_stalled(self, count: int = 1) -> None:
        """Wait until so many answers stand still."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= count, LIMIT_S)

    def wait_moving(self) -> None:
        """Wait until no answer stands still any more, as whoever it was for has gone."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting == 0, LIMIT_S)

    def let_go(self) -> None:
        """Let the answers go on that stand still now; those to come stand still all the same."""
        go, self.go = self.go, threading.Event()
        go.set()

    def close(self) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take_fault(self, kind: str) -> Fault:
        with self._changed:
            fault = self.faults.get(kind, Fault())
            if not isinstance(fault, Fault):
                return next(fault)
            if fault.times is not None:
                left = fault.times - 1
                self.faults[kind] = replace(fault, times=left)
                if left <= 0:
                    del self.faults[kind]
            return fault

    @contextlib.contextmanager
    def stalling(self) -> Iterator[None]:
        self._count(waiting=1)
        try:
            yield
        finally:
            self._count(waiting=-1)

    @contextlib.contextmanager
    def transferring(self, name: str, start: int) -> Iterator[None]:
        self.starts.append((name, start))
        self._count(at_once=1)
        try:
            yield
        finally:
            self._count(at_once=-1)

    def _count(self, *, waiting: int = 0, at_once: int = 0) -> None:
        with self._changed:
            self._waiting += waiting
            self._at_once += at_once
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    hub = Hub(tls)
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    hub: Hub
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Whoever asked has left: that is all.
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for its head to be confirmed

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
        fault = self.hub.take_fault(kind)
        if fault.silent:
            self._stall()
            self.close_connection = True
        elif fault.status is not None:
            self._refuse(fault.status, fault.error_code, fault.headers)
        elif kind == "get" and self.hub.store is not None:
            location = f"{self.hub.store.endpoint}{self.path}?Signature=signed"
            self._refuse(HTTPStatus.FOUND, None, {"Location": location})
        elif kind == "list":
            at = parts[5] if len(parts) > 5 else "main"
            self._list("/".join(parts[2:4]), at, fault, tree=parts[4:5] == ["tree"])
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), fault)

    def _list(self, name: str, revision: str, fault: Fault, *, tree: bool) -> None:
        repo = self._find(name, revision)
        if repo is None:
            return
        siblings = [self._sibling(repo, file) for file in repo.files]
        listed: Any = {"id": name, "sha": repo.commit, "siblings": siblings}
        if tree:
            listed = [
                {"type": "file", "path": each["rfilename"], "size": each["size"]}
                | {"oid": each["blobId"]}
                | ({"lfs": each["lfs"] | {"oid": each["lfs"]["sha256"]}} if "lfs" in each else {})
                for each in siblings
            ]
        self._send("", json.dumps(listed).encode(), {"Content-Type": "application/json"}, fault)

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
        self._send(file, repo.files[file], {**headers, "X-Linked-Size": str(size)}, fault)

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

    def _send(self, name: str, content: bytes, headers: Mapping[str, str], fault: Fault) -> None:
        content = content if fault.body is None else fault.body
        start, end = self._range(len(content), fault)
        total = len(content) + fault.size_off
        if (start, end) == (0, len(content)):
            self.send_response(HTTPStatus.OK)
        else:
            self.send_response(HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
            total = end - start
        if fault.unsized:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(total))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if not name:
            self._body(content, fault)
            return
        with self.hub.transferring(name, start):
            sent = _flipped(content, fault.flip)[start:end]
            self._body(_chunked(sent) if fault.unsized else sent, fault)

    def _range(self, size: int, fault: Fault) -> tuple[int, int]:
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if not asked or fault.whole:
            return 0, size
        start, _, last = asked.partition("-")
        return int(start), int(last) + 1 if last else size

    def _body(self, content: bytes, fault: Fault) -> None:
        if fault.reset_after is not None:
            self.wfile.write(content[: fault.reset_after])
            self._reset()
        elif fault.trickle:
            self._trickle(content)
        elif fault.stall_after is not None:
            self.wfile.write(content[: fault.stall_after])
            self._stall()
            self.wfile.write(content[fault.stall_after :])
        else:
            self.wfile.write(content[: len(content) - fault.short_by])
            self.close_connection |= bool(fault.short_by)

    def _stall(self) -> None:
        go = self.hub.go
        with self.hub.stalling():
            while not (go.wait(0.01) or self._is_alone()):
                pass

    def _trickle(self, content: bytes) -> None:
        with self.hub.stalling():
            rest = iter(content)
            while not self.hub.go.wait(0.01) and (byte := next(rest, None)) is not None:
                self.wfile.write(bytes([byte]))

    def _is_alone(self) -> bool:
        """Tell whether the other side has hung up."""
        try:
            # Not the one of TLS, which cannot look without reading.
            peek = socket.MSG_PEEK | socket.MSG_DONTWAIT
            return socket.socket.recv(self.connection, 1, peek) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _reset(self) -> None:
        """Close with RST instead of FIN; what was sent may not have arrived."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())  # the server's own way to close sends a FIN first
        self.close_connection = True


def _flipped(content: bytes, at: int | None) -> bytes:
    if at is None:
        return content
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def _chunked(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
