"""A hub behind TLS, as the real one is."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from hub.making import REPO, WEIGHTS, Fetching
from moorage.protocols import FetchCancelledError
from support.hub import Fault, Hub, Repo, serving
from support.services import settle


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Nobody trusts it who is not told to."""
    return trustme.CA()


@pytest.fixture
def hub(authority: trustme.CA) -> Iterator[Hub]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with serving(tls) as hub:
        hub.repos[REPO] = Repo({"model.gguf": WEIGHTS}, large=frozenset({"model.gguf"}))
        yield hub


@pytest.fixture
def certificate(authority: trustme.CA, tmp_path: Path) -> Path:
    """What proves who the hub is."""
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return path


@pytest.mark.parametrize("by_session", [False, True])
def test_a_fetch_goes_on_and_is_left_at_once_behind_tls(
    fetching: Fetching, certificate: Path, monkeypatch: pytest.MonkeyPatch, by_session: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    fetching.set(stall_timeout_s=30.0, proxy_loopback=by_session)
    fetching.hub.faults["get"] = Fault(stall_after=5000, times=1)
    fetch = fetching.begin()
    fetching.wait_part(5000)
    began = time.monotonic()
    fetching.cancelled.set()
    with pytest.raises(FetchCancelledError):
        fetch.get()
    took = time.monotonic() - began
    fetching.hub.wait_moving()
    settle(lambda: not any(thread.name == "moorage-hub" for thread in threading.enumerate()))

    fetched = fetching(cancelled=threading.Event())

    assert took < 10  # in vain, 30
    assert [start for _, start in fetching.hub.starts] == [0, 5000]
    assert Path(fetched.path).read_bytes() == WEIGHTS


def test_a_hub_that_does_not_prove_who_it_is_is_refused_at_once(fetching: Fetching) -> None:
    began = time.monotonic()

    failure = fetching.failure()

    assert time.monotonic() - began < 5
    assert failure.reason == "untrusted"
    assert "SSL_CERT_FILE" in failure.problem
    assert fetching.hub.asked.total() == 0
