"""What a seed makes of the world: how large it is, and which faults exist in it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST_PORT = 18_000

RATES: Mapping[str, tuple[int, int]] = {
    # per step
    "crash": (1, 4),
    "creep": (20, 300),
    "exit": (2, 20),
    "interrupt": (2, 20),
    "log_down": (1, 8),
    "stranger": (2, 20),
    "sick": (2, 15),
    # where a thread may be made to wait; out of turn
    "preempt": (5, 100),
    "reorder": (50, 700),
    # per launch
    "refused": (10, 200),
    "early_exit": (10, 200),
    "hang": (5, 100),
    "slow_bind": (20, 300),
    "deaf": (20, 300),
    "stuck": (5, 100),
    "fork": (20, 400),
    "hidden": (5, 50),
    "greedy": (20, 300),
    "late_exit": (10, 200),
    "slow_launch": (5, 60),
    "slow_stop": (5, 60),
    "exit_unseen": (10, 200),
    # per plan, fetch, thread
    "plan_refused": (5, 100),
    "slow_plan": (5, 60),
    "fetch_failed": (20, 200),
    "fetch_slow": (20, 300),
    "no_thread": (2, 20),
    # per append
    "append_fails": (2, 30),
    "append_slow": (10, 200),
    "crash_before": (1, 8),
    "crash_after": (1, 8),
    # per opening
    "reboot": (50, 400),
    "other_ports": (50, 300),
    "other_limits": (50, 400),
    "crash_in_opening": (50, 300),
    "no_snapshot": (100, 900),
}
"""Faults, each with the least and the most of how often it happens, per mille."""

ACTS: Mapping[str, tuple[int, int]] = {
    "lease": (10, 40),
    "release": (8, 25),
    "drop": (0, 4),
    "lease_all": (0, 8),
    "start": (0, 5),
    "stop": (0, 5),
    "remove": (0, 3),
    "define": (0, 4),
    "pin": (0, 3),
    "unpin": (0, 4),
    "reset": (1, 5),
    "set_limits": (0, 4),
    "archive": (0, 1),
    "look": (0, 3),
    "close": (0, 1),
}
"""What callers do, each with the least and the most of its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world."""

    seed: int
    steps: int
    models: tuple[Mapping[str, Any], ...]
    """What each spec has beside its name."""
    ports: int
    max_loaded: int
    memory_limit: int | None
    min_residency_s: float
    callers: int
    on_close: str
    patience: int
    """How long callers hold what they have: 0 shortly, 2 long."""
    snapshot_every: int
    max_waiting: int
    rates: Mapping[str, int]
    acts: tuple[str, ...]
    """Each as often as it weighs; the first is the quietest."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple("abcd"[: len(self.models)])

    def rate(self, fault: str) -> int:
        return self.rates.get(fault, 0)


def plan_of(seed: int, steps: int) -> Plan:
    """Return the world of a seed: every fault exists in half of them."""
    pick = random.Random(f"plan {seed}")
    limited = pick.random() < 0.3
    count = pick.choice((1, 2, 3, 3, 4, 4))
    quiet = pick.random() < 0.05
    share = pick.choice((0.2, 0.5, 0.5, 0.8))
    rates = {
        fault: pick.randint(low, high)
        for fault, (low, high) in RATES.items()
        if pick.random() < share
    }
    weights = {act: pick.randint(low, high) for act, (low, high) in ACTS.items()}
    return Plan(
        seed=seed,
        steps=steps,
        models=tuple(_model(pick, limited) for _ in range(count)),
        ports=pick.randint(2, 6),
        max_loaded=pick.randint(1, min(count, 3)),
        memory_limit=pick.choice((100, 150, 250)) if limited else None,
        min_residency_s=pick.choice((0.0, 0.0, 0.0, 0.5, 5.0)),
        callers=pick.randint(2, 6),
        on_close=pick.choice(("stop", "keep")),
        patience=pick.randrange(3),
        snapshot_every=pick.choice((20, 100, 100_000)),
        max_waiting=pick.choice((2, *[1000] * 6)),
        rates={} if quiet else rates,
        acts=("rest", *(act for act, weight in weights.items() for _ in range(weight))),
    )


def _model(pick: random.Random, limited: bool) -> Mapping[str, Any]:
    spec: dict[str, Any] = {
        "load_timeout_s": pick.choice((2.0, 20.0, 600.0)),
        "stop_timeout_s": pick.choice((0.0, 0.5, 10.0)),
        "crash_budget": pick.choice((1, 3, 50)),
    }
    maybe: dict[str, Any] = {
        "memory": pick.choice((40, 90, 140)) if limited else None,
        "repo": "org/model",
        "ttl_s": pick.choice((0.0, 1.0, 30.0)),
        "restart": "always",
        "pinned": True,
        "ports": 2,
        "health_interval_s": pick.choice((1.0, 10.0)),
        "secrets": {"TOKEN": "open sesame"},
    }
    chances = (0.6, 0.3, 0.25, 0.3, 0.15, 0.15, 0.25, 0.1)
    spec |= {
        name: value
        for (name, value), chance in zip(maybe.items(), chances, strict=True)
        if value is not None and pick.random() < chance
    }
    return spec
