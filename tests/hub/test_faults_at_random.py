"""Many fetches at once of a hub that fails at random: what is shown is right, and all ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hub.making import REPO, Fetching
from moorage.protocols import FetchCancelledError, Fetched, FetchFailedError
from support.hub import Fault, Hub, Repo
from support.services import Outcome

ROUNDS = 3
FETCHES = 5
SIZES = {"a.bin": 300_000, "b.bin": 100_000, "c.json": 2000}


def faults(rng: random.Random) -> Iterator[Fault]:
    while True:
        at = rng.randrange(1, 250_000)
        yield rng.choice(
            (
                Fault(),
                Fault(reset_after=at),
                Fault(short_by=at // 200),
                Fault(flip=at % min(SIZES.values())),
                Fault(whole=True),
                Fault(status=503),
                Fault(status=429, headers={"Retry-After": "0"}),
            )
        )


def outcome(fetching: Fetching, file: str | None, cancel_s: float | None) -> Fetched | str:
    cancelled = threading.Event()
    timer = threading.Timer(cancel_s or 0, cancelled.set)
    if cancel_s is not None:
        timer.start()
    try:
        return fetching(file=file, cancelled=cancelled)
    except FetchFailedError as error:
        return error.reason
    except FetchCancelledError:
        return "cancelled"
    finally:
        timer.cancel()
        if cancel_s is not None:
            timer.join()


def check_shown(cache: Path, files: dict[str, bytes]) -> None:
    for path in cache.rglob("snapshots/*/*"):
        assert path.read_bytes() == files[path.name], path


@pytest.mark.parametrize("seed", range(4))
def test_what_is_shown_is_right_whatever_fails_and_the_last_fetch_succeeds(
    hub: Hub, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    files = {name: rng.randbytes(size) for name, size in SIZES.items()}
    hub.repos[REPO] = Repo(files, large=frozenset({"a.bin", "b.bin"}))
    for number in range(ROUNDS):
        hub.faults["get"] = faults(random.Random(rng.random()))
        fetching = Fetching(
            hub, tmp_path / str(number), retries=2, retry_wait_s=0.002, max_parallel=2
        )
        asked = [
            (rng.choice((*files, None)), rng.choice((None, None, rng.random() * 0.1)))
            for _ in range(FETCHES)
        ]
        ends = [Outcome(partial(outcome, fetching, *each)) for each in asked]
        told = [end.get() for end in ends]
        check_shown(fetching.cache, files)
        hub.faults.clear()

        fetched = fetching(file=None)

        assert "" not in told
        assert {path.name for path in Path(fetched.path).iterdir()} == set(files)
        check_shown(fetching.cache, files)
        assert fetching.parts() == []
