"""Two real llama-servers survive the SIGKILL of their owner and are lent again at once."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from moorage import ModelService
from moorage.gguf import write_tiny
from recovery.leaving import alive, left_behind
from recovery.owner import answered_by
from support import needed
from support.services import check_log, server

AGAIN_S = 0.1
ROUNDS = 5

TWO_LLAMAS = """
service = open_(max_loaded=2)
service.define(*(ModelSpec(name=name, backend="llama.cpp", path=arguments[0],
                           settings={"ctx_size": 256, "threads": 1}) for name in "ab"))
for name in "ab":
    print(service.start(name).pid)
"""


def completed_by(port: int) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/completion", json.dumps({"prompt": "a", "n_predict": 1}))
        return str(json.loads(connection.getresponse().read())["content"])


def leased_after_open(reopen: Callable[..., ModelService], pids: list[int]) -> list[float]:
    """Take over and lease both; return the seconds since `open` returned, and leave them."""
    with reopen(max_loaded=2, on_close="keep") as service:
        opened = time.perf_counter()
        seconds: list[float] = []
        for name, pid in zip("ab", pids, strict=True):
            with service.lease(name) as lease:
                seconds.append(time.perf_counter() - opened)
                assert service.model(name).pid == pid
                assert completed_by(lease.port)
    return seconds


@pytest.mark.real
def test_two_llama_servers_survive_and_are_lent_again_within_a_tenth_of_a_second(
    reopen: Callable[..., ModelService],
    folder: Path,
    pool: range,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    needed.package("xllamacpp")
    model = tmp_path / "tiny.gguf"
    write_tiny(model)
    pids = [int(pid) for pid in left_behind(folder, pool, TWO_LLAMAS, model).split()]
    assert all(map(alive, pids))
    seconds: list[float] = []
    for _ in range(ROUNDS):
        seconds += leased_after_open(reopen, pids)
        left_behind(folder, pool, "service = open_(max_loaded=2)\nservice.lease('a')")
    median = statistics.median(seconds)
    record_property("median_s", median)
    print(f"leased after open: median {median * 1000:.1f} ms, most {max(seconds) * 1000:.1f} ms")
    reopen(max_loaded=2).close()

    assert median <= AGAIN_S
    assert not any(map(alive, pids))
    check_log(folder)


def test_a_server_that_binds_late_never_answers_for_another_model(
    reopen: Callable[..., ModelService], folder: Path, pool: range
) -> None:
    """It was given a port, its owner died before it bound, and others are started meanwhile."""
    late = left_behind(
        folder,
        pool,
        """
        service = open_()
        service.define(server("late", "--name", "late", "--bind-after", "0.5"))
        seen = Seen(service)
        threading.Thread(target=lambda: service.start("late"), daemon=True).start()
        print(seen.wait("run.launched").event.pid, flush=True)
        """,
    )
    service = reopen(ports=pool[:3])
    service.define(server("a", "--name", "a"), server("b", "--name", "b"))
    answers: list[tuple[str, str]] = []
    for name in ("a", "b", "late", "a", "late", "b"):
        with service.lease(name) as lease:
            answers.append((name, answered_by(lease.port)))

    assert all(asked == answered for asked, answered in answers), answers
    assert service.model("late").pid == int(late)


def test_a_server_that_binds_late_and_was_forgotten_by_its_log_answers_nobody(
    reopen: Callable[..., ModelService], folder: Path, pool: range
) -> None:
    """Its owner died in the spawn: it is swept before its port is given to another model."""
    left_behind(
        folder,
        pool,
        """
        from moorage.world.processes import LocalProcesses
        class Dying(LocalProcesses):
            def launch(self, order):
                super().launch(order)
                die()
        service = open_(ports=range(first, first + 1), parts=Parts(processes=Dying()))
        service.define(server("late", "--name", "late", "--bind-after", "0.3"))
        service.start("late")
        """,
    )
    service = reopen(ports=pool[:1])
    service.define(server("a", "--name", "a"))
    with service.lease("a") as lease:
        assert lease.port == pool[0]
        for _ in range(20):
            assert answered_by(lease.port) == "a"
