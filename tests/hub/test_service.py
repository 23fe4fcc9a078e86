"""A service that fetches: what its callers are told, and what a fetch that is given up leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hub.making import REPO
from moorage import (
    HubAccess,
    LoadCancelledError,
    LoadError,
    ModelService,
    ModelUnavailableError,
    Parts,
)
from moorage.testing import FakeFetcher
from support.hub import Fault, Hub, Repo
from support.services import Outcome, check_log, ports, server, settle, state_of

AT_ONCE_S = 4.0  # on processors that others use as well; what is waited for in vain takes 20
Opened = Callable[..., ModelService]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def opened(folder: Path, hub: Hub, tmp_path: Path) -> Iterator[Opened]:
    services: list[ModelService] = []

    def open_(**options: Any) -> ModelService:
        access = HubAccess(
            endpoint=hub.endpoint,
            token=False,
            cache_dir=str(tmp_path / "cache"),
            max_parallel=options.pop("max_parallel", 3),
        )
        services.append(
            ModelService.open(
                folder, **({"ports": ports(), "hub": access, "max_loaded": 3} | options)
            )
        )
        return services[-1]

    yield open_
    for service in services:
        service.close(drain_s=0)
        check_log(folder, state_of(service))


def lines(*command: str) -> list[dict[str, Any]]:
    argv = (sys.executable, "-m", "moorage", *command)
    return [json.loads(line) for line in subprocess.check_output(argv, text=True).splitlines()]


def test_why_a_fetch_failed_reaches_every_caller_the_log_and_the_command_line(
    opened: Opened, hub: Hub, folder: Path
) -> None:
    hub.faults["get"] = Fault(status=403, error_code="GatedRepo")
    service = opened()
    service.define(server("m", repo=REPO, file="model.gguf"))
    errors: list[Any] = []
    for _ in range(2):
        with pytest.raises(LoadError) as caught:
            service.start("m")
        errors.append(caught.value)
    with pytest.raises(ModelUnavailableError) as refused:
        service.lease("m")

    events = lines("events", "--state", str(folder), "--json")
    shown = lines("ps", "--state", str(folder), "--json")
    reasons = {
        event["kind"]: event["data"]["reason"] for event in events if "reason" in event["data"]
    }
    assert [(error.stage, error.reason) for error in errors] == [("fetch", "gated")] * 2
    assert (refused.value.stage, refused.value.reason) == ("fetch", "gated")
    assert service.model("m").error_reason == "gated"
    assert [line["error_reason"] for line in shown if "error_reason" in line] == ["gated"]
    assert reasons["run.abandoned"] == reasons["model.backoff"] == "gated"
    assert f"accept its terms at {hub.endpoint}/{REPO}" in service.model("m").error


def test_a_stop_gives_a_stalled_fetch_up_at_once_and_the_next_start_goes_on(
    opened: Opened, hub: Hub
) -> None:
    hub.faults["get"] = Fault(stall_after=5000, times=1)
    service = opened()
    service.define(server("m", repo=REPO, file="model.gguf"))
    start = Outcome(lambda: service.start("m"))
    hub.wait_stalled()
    settle(lambda: service.model("m").fetched_bytes == 5000)
    began = time.monotonic()
    service.stop("m")
    answered = time.monotonic() - began
    with pytest.raises(LoadCancelledError):
        start.get()
    hub.wait_moving()
    left = time.monotonic() - began

    assert answered < AT_ONCE_S
    assert left < 2 * AT_ONCE_S
    assert service.status().ports_held == {}
    assert service.start("m").state == "ready"
    assert [start for _, start in hub.starts] == [0, 5000]


def test_the_status_of_a_stalled_fetch_has_all_that_has_come(opened: Opened, hub: Hub) -> None:
    hub.faults["get"] = Fault(stall_after=5000, times=1)
    service = opened()
    service.define(server("m", repo=REPO, file="model.gguf"))
    start = Outcome(lambda: service.start("m"))
    hub.wait_stalled()

    settle(lambda: service.model("m").fetched_bytes == 5000, limit_s=10.0)
    hub.go.set()
    assert start.get().state == "ready"


def test_a_close_gives_a_stalled_fetch_up(opened: Opened, hub: Hub) -> None:
    hub.faults["get"] = Fault(stall_after=5000)
    service = opened()
    service.define(server("m", repo=REPO, file="model.gguf"))
    start = Outcome(lambda: service.start("m"))
    hub.wait_stalled()
    began = time.monotonic()
    service.close(drain_s=0)

    assert time.monotonic() - began < 2 * AT_ONCE_S
    hub.wait_moving()
    with pytest.raises(Exception, match=r"closed|cancelled"):
        start.get()


def test_a_model_that_waits_for_its_turn_says_so_and_can_be_stopped_at_once(
    opened: Opened, hub: Hub
) -> None:
    hub.repos["org/b"] = Repo({"model.bin": b"b" * 1000})
    hub.faults["get"] = Fault(stall_after=5000, times=1)
    service = opened(max_parallel=1)
    service.define(server("a", repo=REPO, file="model.gguf"), server("b", repo="org/b"))
    first = Outcome(lambda: service.start("a"))
    hub.wait_stalled()
    second = Outcome(lambda: service.start("b"))
    settle(lambda: "waits for its turn" in service.model("b").reason)
    began = time.monotonic()
    service.stop("b")
    with pytest.raises(LoadCancelledError):
        second.get()
    answered = time.monotonic() - began
    hub.go.set()

    assert answered < AT_ONCE_S
    assert first.get().state == "ready"
    assert len(hub.starts) == 1
    assert service.start("b").state == "ready"


def test_models_that_share_a_file_fetch_it_once_and_are_both_served(
    opened: Opened, hub: Hub
) -> None:
    hub.faults["get"] = Fault(stall_after=5000, times=1)
    service = opened()
    service.define(*(server(name, repo=REPO, file="model.gguf") for name in "ab"))
    starts = [Outcome(lambda name=name: service.start(name)) for name in "ab"]  # type: ignore[misc]
    settle(lambda: any("another fetch" in service.model(name).reason for name in "ab"))
    hub.go.set()

    assert [start.get().state for start in starts] == ["ready", "ready"]
    assert len(hub.starts) == 1


def test_a_secret_in_what_a_fetch_ends_with_is_masked(opened: Opened, folder: Path) -> None:
    fetcher = FakeFetcher()
    fetcher.will_fail("m", "the hub does not know hf_secret_value")
    service = opened(parts=Parts(fetcher=fetcher))
    service.define(server("m", repo=REPO, secrets={"HF_TOKEN": "hf_secret_value"}))

    with pytest.raises(LoadError, match=r"does not know \*\*\*"):
        service.start("m")
    written = b"".join(path.read_bytes() for path in folder.glob("moorage.db*"))
    assert b"does not know ***" in written
    assert b"hf_secret_value" not in written
