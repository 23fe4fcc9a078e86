"""SIGKILL of the owner with real servers: at every boundary, and at seeded random moments.

A life is killed before and after its first act of a kind, its second, and so on until it reaches
its end, and so is its heir while it recovers: no boundary is counted beforehand.
`pytest -m soak tests/recovery --timeout=0` does all of them, and kills at 300 random moments.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest

from moorage.core.lifecycle import TABLE, Stage
from moorage.hub import HubAccess
from recovery import lives
from recovery.dying import KINDS, Point, Told
from recovery.judging import Place, recovers, steps, take_over
from recovery.lives import LIVES
from recovery.owner import work_on
from support.hub import Hub, Repo, serving
from support.services import ports

NewPlace = Callable[[], Place]

EVERY = 3
"""Of so many appends, one is followed by kills of the recovery."""
NOT_TAKEN = {(Stage.STOP_FAILED, "run.exited")}
"""An exit that is told after its failed stop comes here by chance only; fakes tell it so."""
SOME = [
    ("leases_evicts_and_stops", Point("append", 1, "before")),
    ("leases_evicts_and_stops", Point("head", 9)),
    ("fetches", Point("progress", 3)),
    ("stops_a_launch", Point("launch", 1, "after")),
    ("loses_a_leader_with_facts_that_wait", Point("stop", 1, "before")),
    ("finds_a_server_unhealthy", Point("append", 1, "after")),
    ("reloads_a_leased_run", Point("append", 3, "after")),
    ("removes_a_leased_model", Point("stop", 1, "after")),
    ("undoes_a_drain", Point("append", 1, "after")),
    ("quarantines_what_cannot_be_proved", Point("append", 3, "after")),
    ("keeps_its_servers_for_another_owner", Point("watch", 2, "before")),
    ("archives", Point("archive", 4)),
]


@pytest.fixture(autouse=True)
def stranger() -> Iterator[None]:
    """A process of nobody's, which has to outlive everything."""
    stranger = subprocess.Popen(["/bin/sleep", "3600"])
    yield
    alive = stranger.poll() is None
    stranger.kill()
    stranger.wait()
    assert alive, "a stranger was signalled"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as hub:
        weights = bytes(range(256)) * 48
        hub.repos[lives.REPO] = Repo({"model.gguf": weights}, large=frozenset({"model.gguf"}))
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def new_place(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> NewPlace:
    """Return places that nobody has lived at."""
    lives.impatient(monkeypatch)
    numbers = itertools.count()

    def new() -> Place:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        access = HubAccess(endpoint=hub.endpoint, token=False, cache_dir=str(folder / "cache"))
        return Place(folder / "state", ports()[:20], access)

    return new


def acts(told: Told) -> Iterator[tuple[str, str]]:
    """Yield the kinds of acts there were, each with before and after."""
    assert told.finished is not None
    for kind, number in told.finished.items():
        yield from ((kind, when) for when in KINDS[kind] if number)


def kills(new_place: NewPlace, name: str, kind: str, when: str) -> int:
    """Kill a life at every act of a kind; return how often."""
    life = LIVES[name]
    for number in itertools.count(1):
        place, point = new_place(), Point(kind, number, when)
        print(name, point)
        told = place.live(life, point)
        take_over(place, told, usable=life.usable)
        if told.finished is not None:
            return number - 1
    raise AssertionError("a life without an end")


def second_kills(new_place: NewPlace, name: str, first: Point, kind: str, when: str) -> int:
    """Kill a life at a point and its recovery at every act of a kind; return how often."""
    life = LIVES[name]
    for number in itertools.count(1):
        place, second = new_place(), Point(kind, number, when)
        print(name, first, second)
        told = place.live(life, first)
        again = place.live(recovers, second)
        take_over(place, told, usable=life.usable, limits=False)
        if again.finished is not None:
            return number - 1
    raise AssertionError("a recovery without an end")


@pytest.mark.parametrize(("name", "point"), SOME, ids=str)
def test_a_kill_at_a_boundary(new_place: NewPlace, name: str, point: Point) -> None:
    place, life = new_place(), LIVES[name]
    told = place.live(life, point)
    assert told.finished is None, "the point was not reached"

    take_over(place, told, usable=life.usable)


@pytest.mark.soak
@pytest.mark.parametrize("name", LIVES)
def test_a_kill_at_every_boundary_of_a_life(
    new_place: NewPlace, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = new_place()
    whole = place.live(LIVES[name])
    take_over(place, whole, usable=LIVES[name].usable)
    found = sum(kills(new_place, name, kind, when) for kind, when in acts(whole))
    with capsys.disabled():
        print(f" {name}: {found} kills", flush=True)

    assert found >= 3 * len(whole.appends)


@pytest.mark.soak
@pytest.mark.parametrize("name", LIVES)
def test_a_second_kill_at_every_boundary_of_the_recovery(
    new_place: NewPlace, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = 0
    for number, when in zip(itertools.count(1, EVERY), itertools.cycle(KINDS["append"])):
        place, first = new_place(), Point("append", number, when)
        told = place.live(LIVES[name], first)
        whole = place.live(recovers)
        take_over(place, told, usable=LIVES[name].usable, limits=False)
        if told.finished is not None:
            break
        found += sum(second_kills(new_place, name, first, *each) for each in acts(whole))
    with capsys.disabled():
        print(f" {name}: {found} second kills", flush=True)

    assert found >= 3


@pytest.mark.soak
def test_the_lives_take_every_step_of_the_lifecycle(new_place: NewPlace) -> None:
    taken: set[tuple[Stage | None, str]] = set()
    for life in LIVES.values():
        place = new_place()
        told = place.live(life)
        taken |= steps(place, told)
        take_over(place, told, usable=life.usable)

    assert set(TABLE) - taken <= NOT_TAKEN


def kill_twice(place: Place, seed: int) -> None:
    """Kill one owner under load and the next one while it recovers or works."""
    chance = random.Random(seed)
    told = place.live(work_on, after_s=0.05 + chance.random())
    if chance.random() < 0.5:
        told.add(place.live(work_on, after_s=0.02 + chance.random() / 2))
    take_over(place, told, limits=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_a_random_moment(new_place: NewPlace, seed: int) -> None:
    kill_twice(new_place(), seed)


@pytest.mark.soak
def test_three_hundred_kills_at_random_moments(new_place: NewPlace) -> None:
    for seed in range(1000, 1300):
        print(f"seed {seed}")
        kill_twice(new_place(), seed)
