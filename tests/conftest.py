"""What holds for every test: nothing is left behind, and a random failure can be repeated."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator

import hypothesis
import pytest

from support import (
    leaks,
    pools,  # its ports are taken before any test looks at what is held
    seeds,
)

# Two busy cores make a deadline fail by chance; the blob repeats a failure without the database.
hypothesis.settings.register_profile("moorage", deadline=None, print_blob=True)
hypothesis.settings.load_profile("moorage")

# A shell lets what it runs in the background ignore Ctrl-C, and nohup the end of its terminal.
# Every process begun by a test would inherit that: those that test it would wait for ever.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_report_header() -> str:
    return f"seeds: {seeds.TOLD}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tell the seeds also where `-q` leaves out the head of a run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.config.get_verbosity() < 0:
        reporter.write_line(pytest_report_header())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the longest test first, whatever the order of the others."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.fixture(scope="session", autouse=True)
def leak_check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[leaks.LeakCheck]:
    """Watch a TMPDIR of our own, and judge at the end what wider fixtures left behind."""
    temp = tmp_path_factory.mktemp("TMPDIR")
    session = os.environ.get(leaks.SESSION_VARIABLE) or uuid.uuid4().hex
    check = leaks.LeakCheck(temp=temp, session=session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(leaks.SESSION_VARIABLE, session)
        patch.setenv("TMPDIR", str(temp))
        patch.setattr(tempfile, "tempdir", str(temp))
        before = check.look()
        yield check
        _fail_if_any(check.left_behind(before))


@pytest.fixture(autouse=True)
def leaves_nothing_behind(leak_check: leaks.LeakCheck) -> Iterator[None]:
    """Fail a test that leaves an actor, thread, process, port, descriptor or file behind."""
    before = leak_check.look()
    yield
    _fail_if_any(leak_check.left_behind(before))


@pytest.fixture
def default_ports() -> Iterator[None]:
    """Start a program of its own without telling it which ports to use."""
    with pools.default_ports():
        yield


def _fail_if_any(found: tuple[leaks.Leak, ...]) -> None:
    if found:
        leaks.clear(found)
        pytest.fail(leaks.describe(found), pytrace=False)
