"""Servers that misbehave on purpose, and how tests start and hear them."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path

_SCRIPT = Path(__file__).with_name("misbehave.py")


def misbehave(port: int, *flags: str) -> tuple[str, ...]:
    """Return the command line of a server on a port; for the flags see `misbehave.Options`."""
    return (sys.executable, "-S", "-E", str(_SCRIPT), "--port", str(port), *flags)


class HeldPort:
    """A port of 127.0.0.1 kept from strangers: bound, never listening.

    A server that sets SO_REUSEADDR can still bind it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Ear:
    """Hears through a FIFO what a server says (`--tell`); waits are bounded."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writer = os.open(path, os.O_WRONLY)  # else a server that ends looks like the end
        self._heard = ""

    def hear(self, text: str, *, times: int = 1, timeout_s: float = 10.0) -> str:
        """Wait until as many lines start with the text; return the last."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            lines = [line for line in self._heard.splitlines() if line.startswith(text)]
            if len(lines) >= times:
                return lines[-1]
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise AssertionError(f"not heard within {timeout_s} s: {text!r}; {self._heard!r}")
            self._heard += os.read(self._fd, 65536).decode()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._writer)
