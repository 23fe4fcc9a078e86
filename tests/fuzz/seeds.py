"""Valid logs to begin from."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moorage import LoadError, ModelService, ModelSpec
from moorage.testing import FakeClock, FakePorts, FakeProcesses, Script, fake_parts

GOLDEN = Path(__file__).parents[1] / "log" / "golden"
PORTS = range(18_000, 18_008)


@dataclass(frozen=True)
class Seed:
    """A state folder as files with what they hold."""

    files: dict[str, bytes]

    @property
    def database(self) -> bytes:
        return self.files["moorage.db"]

    def put(self, folder: Path) -> Path:
        """Write it as a new state folder."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder


@cache
def seeds() -> tuple[Seed, ...]:
    """Return a log of every revision, one that has met a bit of everything, and one in segments."""
    golden = [Seed({"moorage.db": path.read_bytes()}) for path in sorted(GOLDEN.glob("*.db"))]
    return (*golden, _made(_live), _made(lambda folder: _live(folder, archive=True)))


def _made(make: Callable[[Path], None]) -> Seed:
    folder = Path(tempfile.mkdtemp())
    try:
        make(folder)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return Seed({str(path.relative_to(folder)): path.read_bytes() for path in paths})
    finally:
        shutil.rmtree(folder)


def _live(folder: Path, *, archive: bool = False) -> None:
    """Let a service on fakes meet what a log can tell of."""
    clock, processes = FakeClock(), FakeProcesses()
    ports = FakePorts(processes)
    parts = fake_parts(clock=clock, processes=processes, ports=ports)
    processes.will("b", Script(refuse="no executable"))
    ports.occupy(PORTS[1])
    with ModelService.open(folder, ports=PORTS, max_loaded=2, parts=parts) as service:
        service.define(
            ModelSpec(name="a", backend="fake", aliases=("aa",), ttl_s=60.0, settings={"x": [1]}),
            ModelSpec(name="b", backend="fake", repo="o/n", file="f", env={"A": "1"}),
            *(ModelSpec(name=name, backend="fake", ports=2) for name in "cde"),
        )
        service.lease("a").release()
        with contextlib.suppress(LoadError):
            service.lease("b")
        service.reset("b")
        service.lease("b").release()
        service.pin("a")
        service.lease("c").release()
        if archive:
            service.archive()
        clock.advance(1.5)
        service.lease("d").release()
        service.unpin("a")
        service.stop("a", hold=True)
        _end(service, processes)
    with ModelService.open(folder, ports=PORTS, max_loaded=2, parts=parts) as service:
        service.lease("a").release()


def _end(service: ModelService, processes: FakeProcesses) -> None:
    service.set_limits(max_loaded=3, memory_limit=1 << 40)
    service.remove("e")
    service.define(ModelSpec(name="d", backend="fake", args=("--other",)))
    service.lease("d").release()
    processes.server("d").exit(signal=9)
    service.set_limits(max_loaded=2)
    service.start("a")
    service.close("keep")
