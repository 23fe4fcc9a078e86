"""`moorage timeline`: a log as one HTML file that needs nothing but a browser."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from moorage.cli import past, source, timelinepage, values
from moorage.cli.console import Console
from moorage.core import timeline
from moorage.core.events import Entry
from moorage.core.invariants import fold
from moorage.core.state import State
from moorage.errors import ConfigurationError, StateError

_PROGRESS_EVENTS = 20_000


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the picture and say what is in it."""
    begin = past.log_time(options.begin, "--from") if options.begin else ""
    end = past.log_time(options.end, "--to") if options.end else ""
    if begin and end and begin > end:
        raise ConfigurationError("--from", f"{options.begin!r} is after --to {options.end!r}")
    with source.reading(options.state) as reader:

        def folding(state: State, entry: Entry) -> None:
            if entry.seq % _PROGRESS_EVENTS == 0:
                console.progress(f"{entry.seq} events read")
            fold(state, entry, reader.path)

        picture = timeline.build(reader.read(), folding, begin=begin, end=end)
        page = timelinepage.page(picture)
    console.progress("")
    target = Path(options.output)
    written = _write(target, page)
    _tell(console, target, picture, written)
    return 0


def _tell(console: Console, target: Path, picture: timeline.Timeline, written: int) -> None:
    console.object(
        {
            "file": str(target),
            "bytes": written,
            "from": picture.start,
            "to": picture.end,
            "runs": len(picture.bars),
            "marks": len(picture.marks),
            "left_out": picture.left_out,
        }
    )
    outside = f" ({picture.left_out} lie outside)" if picture.left_out else ""
    console.line(
        f"{target}: {len(picture.bars)} runs{outside} of {len(picture.models)} models on"
        f" {len(picture.ports)} ports, {values.size(written)}; open it in a browser"
    )


def _write(target: Path, text: str) -> int:
    """Write a file whole or not at all, a pipe or a device as it is; return the bytes written.

    Raises StateError.
    """
    data = text.encode()
    try:
        if target.is_dir():
            raise StateError(str(target), "cannot be written: it is a folder; name a file in it")
        if target.exists() and not target.is_file():  # such as /dev/stdout
            target.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except OSError as error:
        raise StateError(str(target), f"cannot be written: {error.strerror}") from error
    return len(data)


def _replace(target: Path, data: bytes) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
