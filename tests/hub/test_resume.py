"""A transfer that ends early goes on from where it stopped, and only what is right is shown."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hub.making import REPO, WEIGHTS, Fetching
from moorage.hub.cache import PART
from moorage.protocols import FetchCancelledError
from support.hub import Fault

OTHER = Path(__file__).with_name("other.py")
SIZE = len(WEIGHTS)
CUT = 5000


def starts(fetching: Fetching) -> list[int]:
    return [start for _, start in fetching.hub.starts]


def part_of(fetching: Fetching) -> Path:
    """Return where the part file of the model is, or would be."""
    etag = fetching.hub.repos[REPO].etag("model.gguf")
    return fetching.cache / "models--org--model" / "blobs" / f"{etag}{PART}"


def leave_part(fetching: Fetching, content: bytes) -> Path:
    part = part_of(fetching)
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    return part


@pytest.mark.parametrize(
    "fault",
    [
        Fault(short_by=SIZE - CUT, times=1),
        Fault(stall_after=CUT, times=1),
    ],
    ids=["FIN", "stall"],
)
def test_a_broken_connection_goes_on_where_it_stopped_by_itself(
    fetching: Fetching, fault: Fault
) -> None:
    fetching.hub.faults["get"] = fault

    fetched = fetching()

    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert starts(fetching) == [0, CUT]
    assert fetched.fetched_bytes == SIZE
    assert fetching.parts() == []


def test_a_connection_that_is_reset_goes_on_with_what_had_come(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(reset_after=CUT, times=1)

    fetched = fetching()

    first, second = starts(fetching)  # what was on its way at a reset may be lost
    assert first == 0 <= second <= CUT
    assert fetched.fetched_bytes == SIZE
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_a_line_that_only_trickles_is_given_up_for_a_new_one(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(trickle=True, times=1)

    fetched = fetching()

    first, second = starts(fetching)
    assert first == 0 < second < 100
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_what_only_trickles_for_ever_ends_with_the_reason(fetching: Fetching) -> None:
    fetching.set(retries=1, stall_timeout_s=0.1)
    fetching.hub.faults["get"] = Fault(trickle=True)

    failure = fetching.failure()

    assert failure.reason == "too-slow"
    assert "next to nothing" in failure.problem
    assert len(starts(fetching)) == 2


def test_attempts_are_bounded_and_each_goes_on_from_the_last(fetching: Fetching) -> None:
    fetching.set(retries=3)
    fetching.hub.faults["get"] = Fault(stall_after=1000)

    failure = fetching.failure()

    assert failure.reason == "too-slow"
    assert starts(fetching) == [0, 1000, 2000, 3000]
    assert part_of(fetching).read_bytes() == WEIGHTS[:4000]
    assert fetching.shown() == []


def test_a_start_after_a_failed_one_asks_only_for_the_rest(fetching: Fetching) -> None:
    fetching.set(retries=0)
    fetching.hub.faults["get"] = Fault(short_by=SIZE - CUT, times=1)
    assert fetching.failure().reason == "broken-off"
    assert fetching.shown() == []

    fetched = fetching()

    assert starts(fetching) == [0, CUT]
    assert fetched.fetched_bytes == SIZE - CUT
    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert fetching.parts() == []


def test_a_cancelled_start_is_gone_on_with(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(stall_after=CUT, times=1)
    cancelled = threading.Event()
    first = fetching.begin(cancelled=cancelled)
    fetching.wait_part(CUT)
    cancelled.set()
    with pytest.raises(FetchCancelledError):
        first.get()

    fetched = fetching()

    assert starts(fetching) == [0, CUT]
    assert fetched.fetched_bytes == SIZE - CUT
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_progress_goes_on_where_an_earlier_start_stopped(fetching: Fetching) -> None:
    leave_part(fetching, WEIGHTS[:CUT])

    fetching()

    done = [step.done_bytes for step in fetching.progress]
    assert done == sorted(done)
    assert CUT in done
    assert done[-1] == SIZE
    assert {step.total_bytes for step in fetching.progress} == {SIZE}


def test_a_fetch_whose_program_is_killed_is_gone_on_with_by_the_next(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(stall_after=CUT, times=1)
    argv = (sys.executable, OTHER, fetching.cache, fetching.hub.endpoint, "model.gguf")
    with subprocess.Popen(argv) as other:
        fetching.wait_part(CUT)
        other.send_signal(signal.SIGKILL)
    assert fetching.shown() == []

    fetched = fetching()

    assert other.returncode == -signal.SIGKILL
    assert starts(fetching) == [0, CUT]
    assert fetched.fetched_bytes == SIZE - CUT
    assert hashlib.sha256(Path(fetched.path).read_bytes()).hexdigest() == (
        fetching.hub.repos[REPO].etag("model.gguf")
    )


def test_a_killed_program_whose_forked_child_lives_on_holds_nothing_up(
    fetching: Fetching,
) -> None:
    fetching.hub.faults["get"] = Fault(stall_after=CUT, times=1)
    argv = (sys.executable, OTHER, fetching.cache, fetching.hub.endpoint, "model.gguf")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        fetching.wait_part(CUT)
        other.send_signal(signal.SIGUSR1)
        assert other.stdout.readline() == "forked\n"
        other.kill()
        other.wait()

        fetched = fetching.begin().get()

        assert other.stdin.close() is None  # until now the child lived
    assert starts(fetching) == [0, CUT]
    assert Path(fetched.path).read_bytes() == WEIGHTS


@pytest.mark.parametrize("unsized", [False, True])
def test_a_hub_that_knows_no_ranges_costs_nothing_of_what_is_here(
    fetching: Fetching, unsized: bool
) -> None:
    part = leave_part(fetching, WEIGHTS[:CUT])
    whole = Fault(whole=True, unsized=unsized)
    fetching.set(retries=0)
    fetching.hub.faults["get"] = iter(
        [replace(whole, short_by=SIZE - 1000), replace(whole, short_by=1000), whole]
    )
    kept: list[int] = []
    for _ in range(2):
        assert fetching.failure().reason == "broken-off"
        kept.append(part.stat().st_size)

    fetched = fetching()

    assert kept[0] == CUT < kept[1] < SIZE
    assert fetched.fetched_bytes == SIZE - kept[1]
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_a_hub_that_knows_no_ranges_is_asked_again_when_what_is_here_is_wrong(
    fetching: Fetching,
) -> None:
    leave_part(fetching, b"?" * CUT)
    fetching.hub.faults["get"] = Fault(whole=True)

    fetched = fetching()

    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert fetched.fetched_bytes == SIZE - CUT + SIZE


@pytest.mark.parametrize("said", [f"bytes 0-99/{SIZE}", f"bytes */{SIZE}", ""])
def test_another_range_than_was_asked_for_is_not_taken(fetching: Fetching, said: str) -> None:
    part = leave_part(fetching, WEIGHTS[:CUT])
    fetching.set(retries=1)
    fetching.hub.faults["get"] = Fault(status=206, headers={"Content-Range": said})

    failure = fetching.failure()

    assert failure.reason == "broken-off"
    assert "another range came than was asked for" in failure.problem
    assert part.read_bytes() == WEIGHTS[:CUT]


@pytest.mark.parametrize("flip", [0, CUT, SIZE - 1])
def test_wrong_bytes_of_the_right_size_are_refused_and_not_kept(
    fetching: Fetching, flip: int
) -> None:
    fetching.hub.faults["get"] = Fault(flip=flip)

    failure = fetching.failure()

    assert failure.reason == "wrong-hash"
    assert "model.gguf arrived with other content than the hub lists" in failure.problem
    assert fetching.shown() == fetching.parts() == []
    assert starts(fetching) == [0]


def test_wrong_bytes_of_a_small_file_are_refused_too(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = Fault(flip=1)

    assert fetching.failure(file="config.json").reason == "wrong-hash"
    assert fetching.shown() == []


@pytest.mark.parametrize("left", [b"?" * CUT, b"?" * SIZE, b"?" * (SIZE + 1)])
def test_what_an_earlier_start_left_is_checked_and_if_wrong_fetched_anew(
    fetching: Fetching, left: bytes
) -> None:
    leave_part(fetching, left)

    fetched = fetching()

    assert Path(fetched.path).read_bytes() == WEIGHTS
    assert starts(fetching)[-1] == 0
    assert fetching.progress[-1].done_bytes == SIZE


def test_what_an_earlier_start_left_whole_needs_no_transfer(fetching: Fetching) -> None:
    leave_part(fetching, WEIGHTS)

    fetched = fetching()

    assert starts(fetching) == []
    assert fetched.fetched_bytes == 0
    assert Path(fetched.path).read_bytes() == WEIGHTS


@pytest.mark.parametrize("size_off", [-5, 5])
def test_a_file_of_another_size_than_listed_is_refused(fetching: Fetching, size_off: int) -> None:
    fetching.hub.faults["get"] = Fault(size_off=size_off)

    failure = fetching.failure()

    assert failure.reason == "wrong-size"
    assert f"lists {SIZE} bytes" in failure.problem
    assert fetching.shown() == fetching.parts() == []


def test_the_rest_of_a_file_of_another_size_is_refused_too(fetching: Fetching) -> None:
    leave_part(fetching, WEIGHTS[:CUT])
    fetching.hub.faults["get"] = Fault(size_off=7)

    assert fetching.failure().reason == "wrong-size"
    assert fetching.shown() == []
    assert part_of(fetching).read_bytes() == WEIGHTS[:CUT]  # nothing of it was wrong so far


@pytest.mark.parametrize("unsized", [False, True])
@pytest.mark.parametrize("here", [0, CUT])
@pytest.mark.parametrize("pages", [1, 300, 2000], ids=["short", "longer", "longer than all"])
def test_a_login_page_in_the_place_of_a_file_costs_nothing_of_what_had_come(
    fetching: Fetching, pages: int, here: int, unsized: bool
) -> None:
    part = leave_part(fetching, WEIGHTS[:here])
    page = b"<html>log in</html>" * pages
    fetching.hub.faults["get"] = Fault(body=page, whole=True, unsized=unsized, times=1)

    failure = fetching.failure()

    assert failure.reason == "wrong-size"
    assert f"where it lists {SIZE} bytes" in failure.problem
    assert (part.read_bytes() if here else b"") == WEIGHTS[:here]
    assert fetching().fetched_bytes == SIZE - here


def test_a_file_whose_size_is_not_told_goes_on_where_it_stopped(fetching: Fetching) -> None:
    unsized = Fault(unsized=True)
    fetching.hub.faults["get"] = iter([replace(unsized, short_by=SIZE - CUT), unsized])

    fetched = fetching()

    first, second = starts(fetching)
    assert first == 0 < second < SIZE
    assert fetched.fetched_bytes == SIZE
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_a_file_is_asked_for_in_pieces_that_every_store_answers(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.hub.transfer.SEGMENT", CUT)

    fetched = fetching()

    assert starts(fetching) == [0, 5000, 10_000, 15_000]
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_an_empty_file_is_fetched_without_a_transfer(fetching: Fetching) -> None:
    fetching.hub.repos[REPO].files["empty"] = b""

    fetched = fetching(file="empty")

    assert Path(fetched.path).read_bytes() == b""
    assert starts(fetching) == []


def test_of_a_snapshot_nothing_is_shown_before_all_of_it_is_here(fetching: Fetching) -> None:
    fetching.hub.faults["get"] = iter([Fault(), Fault(status=403)])
    assert fetching.failure(file=None).reason == "denied"
    assert fetching.shown() == []
    fetching.hub.faults.clear()

    fetched = fetching(file=None)

    assert fetched.fetched_bytes == 2 + 100  # the first had come
    assert fetching.shown() == ["config.json", "model.gguf", "sub"]
