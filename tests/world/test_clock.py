from __future__ import annotations

import re
import threading
import time

import pytest

from moorage.world.clock import SystemClock, ThreadAlarm
from moorage.world.platform import has_pidfd, refuse_unsupported


def test_wall_time_is_utc_text_to_the_microsecond() -> None:
    now = SystemClock().now()

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", now)
    assert now[:4] == time.strftime("%Y", time.gmtime())


def test_wall_time_goes_slower_until_a_clock_that_was_set_back_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    seconds = 1_000_000_000
    walls = iter([5 * seconds, 3 * seconds, 4 * seconds, 7 * seconds, 8 * seconds])
    passed = iter([0, 0, 1 * seconds, 4 * seconds, 5 * seconds])
    monkeypatch.setattr(time, "time_ns", lambda: next(walls))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(passed))

    assert [clock.now()[17:] for _ in range(5)] == [
        "05.000000Z",
        "05.000000Z",
        "05.500000Z",
        "07.000000Z",
        "08.000000Z",
    ]


def test_monotonic_time_grows() -> None:
    clock = SystemClock()
    first = clock.monotonic()

    assert clock.monotonic() >= first


class Woken:
    def __init__(self) -> None:
        self.at: list[float] = []
        self._event = threading.Semaphore(0)

    def __call__(self) -> None:
        self.at.append(time.monotonic())
        self._event.release()

    def wait(self, timeout: float = 10) -> bool:
        return self._event.acquire(timeout=timeout)


def test_an_alarm_wakes_once_and_not_early() -> None:
    woken = Woken()
    alarm = ThreadAlarm(woken)
    at = time.monotonic() + 0.03
    alarm.set(at)

    assert woken.wait()
    assert woken.at[0] >= at
    assert not woken.wait(0.05)
    alarm.close()


def test_an_earlier_time_replaces_a_later_one_and_back() -> None:
    woken = Woken()
    alarm = ThreadAlarm(woken)
    now = time.monotonic()
    alarm.set(now + 3600)
    alarm.set(now + 0.01)
    assert woken.wait()
    alarm.set(time.monotonic() + 0.02)
    later = time.monotonic() + 0.06
    alarm.set(later)

    assert woken.wait()
    assert woken.at[1] >= later
    alarm.close()


def test_a_time_in_the_past_wakes_at_once_and_none_never() -> None:
    woken = Woken()
    alarm = ThreadAlarm(woken)
    alarm.set(0.0)
    assert woken.wait()
    alarm.set(time.monotonic() + 0.02)
    alarm.set(None)

    assert not woken.wait(0.06)
    alarm.close()


def test_an_alarm_set_while_waking_is_not_lost() -> None:
    woken = Woken()
    alarms: list[ThreadAlarm] = []

    def wake() -> None:
        woken()
        if len(woken.at) < 3:
            alarms[0].set(time.monotonic())

    alarms.append(ThreadAlarm(wake))
    alarms[0].set(0.0)

    assert woken.wait()
    assert woken.wait()
    assert woken.wait()
    alarms[0].close()


def test_a_callback_that_raises_does_not_end_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    woken = Woken()

    def wake() -> None:
        woken()
        raise RuntimeError("on purpose")

    alarm = ThreadAlarm(wake)
    alarm.set(0.0)
    assert woken.wait()
    alarm.set(0.0)

    assert woken.wait()
    alarm.close()
    assert "on purpose" in caplog.text


def test_an_alarm_closes_twice_and_from_its_own_callback() -> None:
    closed = threading.Event()
    alarms: list[ThreadAlarm] = []

    def wake() -> None:
        alarms[0].close()
        closed.set()

    alarms.append(ThreadAlarm(wake))
    alarms[0].set(0.0)

    assert closed.wait(10)
    alarms[0].close()
    alarms[0].close()


def test_windows_is_refused_with_the_way_out() -> None:
    with pytest.raises(ImportError, match="WSL 2"):
        refuse_unsupported("win32")

    refuse_unsupported("linux")
    refuse_unsupported("darwin")


def test_this_kernel_has_pidfds() -> None:
    assert has_pidfd()
