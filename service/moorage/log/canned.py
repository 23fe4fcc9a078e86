"""Questions that admins ask often, for `moorage sql @NAME` and for Datasette."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Canned:
    """A question with its answer's query, which uses the views only."""

    name: str
    title: str
    says: str
    query: str


LEAKED_PORTS: Final = Canned(
    name="leaked-ports",
    title="Leaked ports",
    says="Ports that are held by runs nobody looks after, or that cannot be ended.",
    query="""\
SELECT held.value AS port, leaks.model, leaks.run, leaks.stage, leaks.problem, leaks.certain,
    leaks.pid, leaks.since
FROM leaks, json_each(leaks.ports) AS held
ORDER BY port""",
)

SLOWEST_LOADS: Final = Canned(
    name="slowest-loads",
    title="Slowest loads",
    says="The 50 runs that took longest from the spawn until they were ready.",
    query="""\
SELECT model, run, load_s, wait_s, peak_bytes, requested_by, ready_at, log_file
FROM runs
WHERE load_s IS NOT NULL
ORDER BY load_s DESC
LIMIT 50""",
)

MOST_EVICTED: Final = Canned(
    name="most-evicted",
    title="Most evicted models",
    says="How often each model had to make room, and how long it had been ready then.",
    query="""\
SELECT model, count(*) AS evictions, sum(outcome IS 'reopened') AS undone,
    round(avg(ready_s), 1) AS mean_ready_s, round(min(ready_s), 1) AS min_ready_s,
    max(at) AS last_at
FROM evictions
GROUP BY model
ORDER BY evictions DESC, model""",
)

EVICTIONS_BY_CAUSE: Final = Canned(
    name="evictions-by-cause",
    title="Evictions by cause",
    says="Why models had to go: the reason, the model that needed the room, and who asked for it.",
    query="""\
SELECT reason, for_model, requested_by, count(*) AS evictions,
    count(DISTINCT model) AS models_evicted, max(at) AS last_at, max(cause) AS last_cause
FROM evictions
GROUP BY reason, for_model, requested_by
ORDER BY evictions DESC, for_model, requested_by""",
)

CRASHES_BY_MODEL: Final = Canned(
    name="crashes-by-model",
    title="Crashes by model",
    says="Servers that exited though nobody had asked them to.",
    query="""\
SELECT model, exit_signal, exit_code, count(*) AS crashes, sum(ready_at IS NOT NULL) AS once_ready,
    max(exited_at) AS last_at, max(run) AS last_run
FROM runs
WHERE exit_wanted = 0
GROUP BY model, exit_signal, exit_code
ORDER BY crashes DESC, model""",
)

PORT_OCCUPANCY: Final = Canned(
    name="port-occupancy",
    title="Port occupancy over time",
    says="How many ports were held after each reservation and each release.",
    query="""\
WITH
held AS MATERIALIZED (
    SELECT reserved_at, ended_at, json_array_length(ports) AS ports
    FROM runs
    WHERE reserved_at IS NOT NULL
),
changes (at, ports) AS (
    SELECT reserved_at, ports FROM held
    UNION ALL
    SELECT ended_at, -ports FROM held WHERE ended_at IS NOT NULL
)
SELECT at, sum(sum(ports)) OVER (ORDER BY at) AS ports_held
FROM changes
GROUP BY at
ORDER BY at""",
)

FAILED_STARTS: Final = Canned(
    name="failed-starts",
    title="Failed starts",
    says="What went wrong before a run was ready, most often first.",
    query="""\
SELECT model, outcome, error, count(*) AS runs, max(ended_at) AS last_at, max(run) AS last_run
FROM runs
WHERE outcome LIKE 'failed%' AND ready_at IS NULL
GROUP BY model, outcome, error
ORDER BY runs DESC, model""",
)

ALL: Final = (
    LEAKED_PORTS,
    SLOWEST_LOADS,
    MOST_EVICTED,
    EVICTIONS_BY_CAUSE,
    CRASHES_BY_MODEL,
    PORT_OCCUPANCY,
    FAILED_STARTS,
)


def datasette(database: str) -> dict[str, Any]:
    """Return Datasette's metadata for a database file of this stem."""
    queries = {
        canned.name: {"title": canned.title, "description": canned.says, "sql": canned.query}
        for canned in ALL
    }
    about = {
        "description": "Event log of a Moorage service; its views are described in docs/sql.md.",
        "queries": queries,
    }
    return {"title": "Moorage", "databases": {database: about}}
