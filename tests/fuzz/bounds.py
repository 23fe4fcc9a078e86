"""What a command may do with input that cannot be meant: refuse it in one line, soon."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from moorage.cli import main

LONGEST_S = 20
"""No command may take longer on a busy machine; on a quiet one each answers within a second."""
_STATUSES = (0, 1, 2)
_ONE_LINE = 2


class HangError(BaseException):
    """Passes every handler for what may go wrong: this may not."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raise HangError when the block takes too long. Main thread."""

    def over(number: int, frame: FrameType | None) -> None:
        raise HangError(f"not over within {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Over:
    """A flag for `-f` that is set once it was waited for."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        self._set = True
        return True


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    status: int
    out: str
    err: str


def run(*arguments: object, stdin: bytes = b"") -> Answer:
    """Run a command in this process, on streams as strict as real ones.

    Fails for an exception that leaves it, for a status that is none, and when a refusal is not one
    harmless line.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    before, sys.stdin = sys.stdin, given
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), in_time():
            status = main([str(argument) for argument in arguments], stop=Over())
    finally:
        sys.stdin = before
    answer = Answer(status, *(_written(stream) for stream in (out, err)))
    _check(answer, arguments)
    return answer


def _written(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def _check(answer: Answer, arguments: tuple[object, ...]) -> None:
    lines = answer.err.splitlines()
    assert answer.status in _STATUSES, (arguments, answer)
    if answer.status == _ONE_LINE:
        assert len(lines) == 1, (arguments, answer)
        assert lines[0].startswith("moorage"), (arguments, answer)
    assert all(line.isprintable() for line in lines), (arguments, answer)
    assert len(answer.err) < 4_000, (arguments, answer.err[:4_000])
