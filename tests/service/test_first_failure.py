"""A start that fails between reserve and spawn, or right after, leaks nothing; a thousand neither.

Permissions do not stop every user, so a file stands where a folder is wanted, and a folder where
a log file is.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage import HubAccess, LoadError, ModelService, ModelSpec
from moorage.actors.threads import MAX_IDLE
from support.hub import Fault, Hub, Repo, serving
from support.pools import BIG_POOL
from support.services import check_log, server, settle, state_of

STARTS = 1001
WARM_UP = 300
QUICK_S = 0.05  # 3 to 20 ms, when nobody else uses the processors
RSS_LIMIT = 4 << 20  # SQLite fills its cache of pages, 2 MB; from then on nothing is added
ENDS = ("run.released", "run.abandoned")
BLOCKS_LIMIT = 2 * (STARTS - WARM_UP)  # whatever a start keeps is more than two objects
IDLE = "moorage-idle"
OF_A_RUN = ("moorage-model", "moorage-worker")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@dataclass
class Window:
    """One way to fail: how it is set up, how it is cured, and what the error says."""

    stage: str
    problem: str
    spec: ModelSpec
    arrange: Callable[[Path], None] = lambda _folder: None
    cure: Callable[[Path], None] = lambda _folder: None
    access: HubAccess | None = None


def _download_error(hub: Hub, cache: Path) -> Window:
    """A hub that fails in another way each time, also in mid-transfer."""
    content = b"weights" * 1000
    hub.repos["org/model"] = Repo({"model.bin": content}, large=frozenset({"model.bin"}))
    faults = (
        Fault(reset_after=1000),
        Fault(short_by=len(content) - 1000),
        Fault(flip=len(content) - 1),
        Fault(status=403),
        Fault(status=404, error_code="EntryNotFound"),
        Fault(status=500),
    )
    hub.faults["get"] = itertools.cycle(faults)

    def cure(_folder: Path) -> None:
        hub.faults.clear()

    access = HubAccess(endpoint=hub.endpoint, token=False, cache_dir=str(cache), retries=0)
    spec = server("m", repo="org/model", file="model.bin")
    return Window("fetch", "failed at fetch", spec, cure=cure, access=access)


def _log_folder(_hub: Hub, _cache: Path) -> Window:
    def arrange(folder: Path) -> None:
        (folder / "logs").write_text("not a folder")

    def cure(folder: Path) -> None:
        (folder / "logs").unlink()

    return Window("launch", "log file", server("m"), arrange, cure)


def _log_file(_hub: Hub, _cache: Path) -> Window:
    def arrange(folder: Path) -> None:
        for run in range(1, STARTS + 1):
            (folder / "logs" / "m" / f"{run:06d}.log").mkdir(parents=True)

    return Window("launch", "log file", server("m"), arrange)


def _missing_executable(_hub: Hub, _cache: Path) -> Window:
    def cure(folder: Path) -> None:
        (folder / "server").symlink_to(sys.executable)

    good = server("m")
    return Window("prepare", "server", good, cure=cure)


def _immediate_exit(_hub: Hub, _cache: Path) -> Window:
    script = 'test -e "$0/works" && exec "$@"; echo "cannot open the weights"; exit 7'

    def cure(folder: Path) -> None:
        (folder / "works").touch()

    good = server("m")
    spec = ModelSpec(name="m", backend="command", args=("sh", "-c", script, "FOLDER", *good.args))
    return Window("load", "exited with status 7", spec, cure=cure)


WINDOWS = {
    "download error": _download_error,
    "log folder cannot be made": _log_folder,
    "log file not writable": _log_file,
    "missing executable": _missing_executable,
    "immediate exit": _immediate_exit,
}


def _placed(window: Window, folder: Path) -> ModelSpec:
    """Return the spec with the state folder written into it."""
    args = tuple(str(folder) if part == "FOLDER" else part for part in window.spec.args)
    data: dict[str, Any] = {"name": "m", "backend": "command", "args": args}
    if window.stage == "prepare":
        data |= {"executable": str(folder / "server"), "args": args[1:]}
    return ModelSpec(**data, repo=window.spec.repo, file=window.spec.file)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@dataclass(frozen=True)
class Held:
    """What this process has of what could grow."""

    threads: int
    descriptors: int
    rss: int
    blocks: int

    @classmethod
    def settled(cls, hub: Hub) -> Held:
        """Look once the actor of the run that just failed has ended."""
        hub.starts.clear()  # what the test's own hub keeps
        gc.collect()
        settle(lambda: not any(t.name.startswith(OF_A_RUN) for t in threading.enumerate()))
        names = [thread.name for thread in threading.enumerate()]
        assert names.count(IDLE) <= MAX_IDLE  # kept for later, as many as were ever busy at once
        return cls(
            len(names) - names.count(IDLE),
            descriptors(),
            psutil.Process().memory_info().rss,
            sys.getallocatedblocks(),
        )


def _fail(service: ModelService, window: Window) -> float:
    began = time.perf_counter()
    with pytest.raises(LoadError) as caught:
        service.start("m")
    seconds = time.perf_counter() - began

    assert caught.value.stage == window.stage
    assert window.problem in str(caught.value)
    return seconds


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_thousand_and_one_failed_starts_leak_nothing_and_the_next_succeeds(
    kind: str, opened: Callable[..., ModelService], folder: Path, hub: Hub, tmp_path: Path
) -> None:
    window = WINDOWS[kind](hub, tmp_path / "cache")
    service = opened(
        _placed(window, folder),
        ports=BIG_POOL,
        hub=window.access,
    )
    window.arrange(folder)

    took = array("d", bytes(8 * STARTS))  # has its memory before anything is measured
    for start in range(STARTS):
        if start == WARM_UP:
            before = Held.settled(hub)
        took[start] = _fail(service, window)
    after = Held.settled(hub)

    status = service.status()
    assert (status.ports_held, status.ports_free, status.loaded) == ({}, len(BIG_POOL), 0)
    assert psutil.Process().children(recursive=True) == []
    assert after.threads <= before.threads
    settle(lambda: descriptors() <= before.descriptors)  # a look at a log file has one for a moment
    assert after.blocks - before.blocks < BLOCKS_LIMIT
    assert after.rss - before.rss < RSS_LIMIT
    assert statistics.quantiles(took, n=4)[0] < QUICK_S  # whoever else is busy meanwhile
    print(f"{kind}: {statistics.median(took) * 1000:.2f} ms; {before} {after}")
    entries = check_log(folder, state_of(service))
    ends = Counter(e.event.outcome for e in entries if e.event.kind in ENDS)
    assert ends == {f"failed: {window.stage}": STARTS}

    window.cure(folder)
    assert service.start("m").state == "ready"


def test_downloads_that_fail_on_the_wire_leak_nothing(
    opened: Callable[..., ModelService], folder: Path, hub: Hub, tmp_path: Path
) -> None:
    hub.repos["org/model"] = Repo({"model.bin": b"weights" * 1000})
    access = HubAccess(endpoint=hub.endpoint, token=False, cache_dir=str(tmp_path / "cache"))
    service = opened(server("m", repo="org/model", file="model.bin"), hub=access)
    for fault, reason in (
        (Fault(status=404, error_code="RepoNotFound"), "unknown-repo"),
        (Fault(status=401, error_code="GatedRepo"), "gated"),
        (Fault(status=404, error_code="RevisionNotFound"), "unknown-revision"),
    ):
        for asked in ("list", "get"):
            hub.faults = {asked: fault}
            for _ in range(5):
                with pytest.raises(LoadError) as caught:
                    service.start("m")

                assert (caught.value.stage, caught.value.reason) == ("fetch", reason)
    hub.faults = {}

    assert service.start("m").state == "ready"
    assert service.status().ports_free == len(range(*_pool(service))) - 1


def _pool(service: ModelService) -> tuple[int, int]:
    ((first, last),) = state_of(service).pool
    return first, last + 1


def test_the_error_of_a_server_that_dies_at_once_has_its_exit_and_last_lines(
    opened: Callable[..., ModelService], folder: Path
) -> None:
    service = opened(server("m", "--print", "loading|no such tensor", "--exit", "7"))

    with pytest.raises(LoadError) as caught:
        service.start("m")

    assert (caught.value.stage, caught.value.code, caught.value.signal) == ("load", 7, None)
    assert caught.value.log_tail == ("loading", "no such tensor")
    assert "no such tensor" in str(caught.value)
    assert service.model("m").log_tail == ("loading", "no such tensor")


def test_the_error_of_a_server_that_a_signal_ends_names_it(
    opened: Callable[..., ModelService],
) -> None:
    service = opened(server("m", "--print", "out of memory", "--kill-self", "9"))

    with pytest.raises(LoadError) as caught:
        service.start("m")

    assert (caught.value.code, caught.value.signal) == (None, 9)
    assert caught.value.log_tail == ("out of memory",)
