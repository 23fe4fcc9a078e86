"""What the benchmarks share: arguments, output, and servers that cost next to nothing."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moorage import ModelService, ModelSpec
from moorage.gguf import write_tiny
from moorage.protocols import LOOPBACK

# The load and the choice of servers are the soak's.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

ANSWER_S = 30.0

Results = Mapping[str, Any]

# Answers every request with 200 and dies of SIGTERM. With a third argument, holds a lock on that
# file while it lives, and adds a line to the file when somebody else holds it already.
_SCRIPT = """
import os, socket, sys
if len(sys.argv) > 2:
    import fcntl
    fd = os.open(sys.argv[2], os.O_RDWR | os.O_APPEND)
    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: os.write(fd, b"overlap\\n")
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
while True:
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    c.close()
"""


def arguments(doc: str, **options: tuple[float, str]) -> argparse.Namespace:
    """Parse `--NAME NUMBER` for each option (default and help), and `--json`.

    From here on SIGTERM ends a benchmark as Ctrl-C does: with what it started.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, (default, text) in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def report(results: Results, *, as_json: bool) -> None:
    """Print what was measured, one line each, or all of it as one JSON object."""
    if as_json:
        print(json.dumps(results))
        return
    width = max(map(len, results))
    for name, value in results.items():
        text = f"{value:,.3f}" if isinstance(value, float) else str(value)
        print(f"{name:<{width}}  {text}")


def spread(values: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Return the least, the median and the 90th percentile."""
    ordered = sorted(values)
    tenth = ordered[int(len(ordered) * 0.9)]
    return {
        "min": ordered[0] * scale,
        "median": statistics.median(ordered) * scale,
        "p90": tenth * scale,
    }


def trivial(name: str, *arguments_: str, **fields: Any) -> ModelSpec:
    """Return a model whose server is ready as soon as a Python can be."""
    argv = ("-I", "-S", "-c", _SCRIPT, "{port}", *arguments_)
    return ModelSpec(
        name=name,
        backend="command",
        executable=sys.executable,
        args=argv,
        health_path="/",
        **fields,
    )


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def healthy(port: int, path: str) -> bool:
    """Tell whether a server answers with 200 now. Cheap, as it takes time from that server."""
    with socket.socket() as asking:
        asking.settimeout(ANSWER_S)
        if asking.connect_ex((LOOPBACK, port)):
            return False
        request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n"
        try:
            asking.sendall(request.encode())
            return asking.recv(256).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder of its own that holds `tiny.gguf`."""
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as name:
        write_tiny(Path(name) / "tiny.gguf")
        yield Path(name)


@contextmanager
def service(
    specs: Callable[[Path], Sequence[ModelSpec]], *, max_loaded: int = 2
) -> Iterator[tuple[ModelService, Path]]:
    """Open a service in a folder of its own; `specs` gets that folder."""
    with folder() as made:
        models = specs(made)
        with ModelService.open(made / "state", max_loaded=max_loaded, models=models) as opened:
            yield opened, made
