"""Subscriptions: one dispatcher, nobody is silenced, and nothing is skipped unsaid."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from moorage.core import events as ev
from moorage.feed import MAX_PENDING, Feed, Skipped

WAIT_S = 20.0


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def entry(seq: int) -> ev.Entry:
    return ev.Entry(seq, "", None, ev.ModelPinned(model="a"))


@pytest.mark.usefixtures("restless")
def test_many_that_subscribe_first_at_once_share_one_dispatcher() -> None:
    seen = [heard_by_eight(Feed()) for _ in range(40)]

    assert all(len(heard) == 16 and len(set(heard)) == 1 for heard in seen)


def heard_by_eight(feed: Feed) -> list[threading.Thread]:
    """Let eight threads subscribe at once and return which thread each of two entries came in."""
    begin = threading.Barrier(8)
    heard: list[threading.Thread] = []

    def subscribe() -> None:
        begin.wait(WAIT_S)
        feed.subscribe(lambda _: heard.append(threading.current_thread()))

    threads = [threading.Thread(target=subscribe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    feed.publish([entry(1)])
    feed.publish([entry(2)])
    feed.close(WAIT_S)
    return heard


def test_who_cannot_be_given_a_dispatcher_is_not_subscribed_and_the_next_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    feed = Feed()
    refused: list[object] = []
    heard: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            feed.subscribe(refused.append)
    feed.subscribe(heard.append)
    feed.publish([entry(1)])
    feed.close(WAIT_S)

    assert (refused, heard) == ([], [entry(1)])


def test_a_subscriber_that_wants_to_exit_does_not_silence_the_others() -> None:
    feed = Feed()
    heard: list[object] = []
    feed.subscribe(lambda _: sys.exit(1))
    feed.subscribe(heard.append)
    feed.publish([entry(1)])
    feed.publish([entry(2)])
    feed.close(WAIT_S)

    assert heard == [entry(1), entry(2)]


def test_what_was_skipped_last_is_said_though_nothing_follows() -> None:
    feed = Feed()
    go, told = threading.Event(), threading.Event()
    heard: list[object] = []

    def slow(item: object) -> None:
        go.wait(WAIT_S)
        heard.append(item)
        if isinstance(item, Skipped):
            told.set()

    feed.subscribe(slow)
    feed.publish([entry(seq) for seq in range(1, MAX_PENDING + 1)])
    feed.publish([entry(MAX_PENDING + 1)])
    feed.publish([entry(MAX_PENDING + 2)])
    go.set()

    assert told.wait(WAIT_S)
    assert heard[-1] == Skipped(MAX_PENDING + 1, MAX_PENDING + 2)
    assert len(heard) == MAX_PENDING + 1
    feed.close(WAIT_S)


def test_who_is_interrupted_at_the_first_subscription_leaves_it_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    feed = Feed()
    heard: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            feed.subscribe(heard.append)
    feed.subscribe(heard.append)
    feed.publish([entry(1)])
    feed.close(WAIT_S)

    assert heard == [entry(1)]
