"""The questions beside a service at work, and while a person watches."""

from __future__ import annotations

import threading
from pathlib import Path

from moorage import ModelService
from offline.conftest import Ask
from support.services import join, ports, server, start_thread


def test_an_audit_beside_a_service_that_loads_and_evicts_all_the_time_finds_nothing(
    state: Path, ask: Ask
) -> None:
    models = [server(name) for name in "abc"]
    with ModelService.open(state, ports=ports(), max_loaded=2, models=models) as service:
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                for name in "abc":
                    with service.lease(name):
                        pass

        churning = start_thread(churn)
        answers = [ask("audit", "--state", state, "--json") for _ in range(4)]
        told = [ask(*what, "--state", state) for what in (["ps"], ["replay"], ["why", "a"])]
        verified = ask("verify", "--state", state)
        stop.set()
        join(churning)

    assert [answer.of("finding") for answer in answers] == [[], [], [], []]
    assert [answer.status for answer in told] == [0, 0, 0]
    assert (verified.status, verified.out[:5]) == (0, "whole")
