"""One HTTP GET that gives up at once when told, and asks for no more than the status."""

from __future__ import annotations

import errno
import re
import select
import socket
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from moorage.protocols import LOOPBACK, Flag

NOBODY = "nobody listens"
_LOOK_S = 0.02  # a Flag cannot be polled with a socket, so it is looked at this often
_ANSWER_BYTES = 64 * 1024
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? (\d{3})\b")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
# Time a server gets to finish a body whose end it did not announce, so that it is not cut off.
_BODY_S = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` is None without an HTTP answer; `connected`: somebody listens."""

    connected: bool
    status: int | None
    seen: str


def get(
    port: int, path: str, *, timeout_s: float, cancelled: Flag, go_on: Callable[[], bool]
) -> Answer:
    """Ask 127.0.0.1:port once. No proxy, no redirect. Never raises for what a server does.

    `go_on` is asked when somebody has accepted the connection; on False nothing is sent.
    """
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as s:
        s.setblocking(False)
        exchange = _Exchange(s, deadline, cancelled)
        try:
            refused = exchange.connect(port)
            if refused is not None:
                return Answer(connected=False, status=None, seen=refused)
            if not go_on():
                return Answer(connected=True, status=None, seen="somebody else listens")
            return exchange.ask(port, path)
        except OSError as error:
            return Answer(connected=True, status=None, seen=f"connection lost ({error.strerror})")


@dataclass(frozen=True, slots=True)
class _Exchange:
    s: socket.socket
    deadline: float
    cancelled: Flag

    def connect(self, port: int) -> str | None:
        code = self.s.connect_ex((LOOPBACK, port))
        if code == errno.EINPROGRESS:
            if not self._ready(select.POLLOUT, self.deadline):
                return "connecting took too long"
            code = self.s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and self.s.getsockname() == self.s.getpeername():
            # A port of the ephemeral range without a listener may be connected to itself.
            return NOBODY
        if code == errno.ECONNREFUSED:
            return NOBODY
        return None if code == 0 else f"cannot connect ({errno.errorcode.get(code, code)})"

    def ask(self, port: int, path: str) -> Answer:
        target = urllib.parse.quote(path, safe="/?&=%:@!$'()*+,;~-._")
        self.s.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        answer, end = b"", self.deadline
        while len(answer) < _ANSWER_BYTES and self._ready(select.POLLIN, end):
            data = self.s.recv(_ANSWER_BYTES)
            answer += data
            if not data or _complete(answer):
                break
            if b"\r\n\r\n" in answer:
                end = min(self.deadline, time.monotonic() + _BODY_S)
        found = _STATUS.match(answer)
        if found is None:
            seen = "an answer that is no HTTP" if answer else "no answer to the health request"
            return Answer(connected=True, status=None, seen=seen)
        return Answer(connected=True, status=int(found[1]), seen=f"HTTP {int(found[1])}")

    def _ready(self, event: int, end: float) -> bool:
        """Wait for the socket; False when time is up or the caller has lost interest."""
        poll = select.poll()
        poll.register(self.s, event)
        while not self.cancelled.is_set():
            left = end - time.monotonic()
            if poll.poll(min(_LOOK_S, max(0.0, left)) * 1000):
                return True
            if left <= 0:
                return False
        return False


def _complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(found) and length is not None and len(body) >= int(length[1])
