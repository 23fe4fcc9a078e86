"""The views for SQL, with what each column says: one text for migrations, TEMP views and docs.

Written for SQLite 3.40, the oldest that is tested.
"""

from __future__ import annotations

from typing import Final

from moorage.log.runviews import EVICTIONS, LOADS, RUNS
from moorage.log.view import View

_SAID_ALIVE: Final = "CASE WHEN c.seq IS NOT NULL THEN 0 END AS alive"

OWNER: Final = View(
    name="owner",
    says="One row: who opened the log last, and whether that service is still there.",
    columns={
        "pid": "process that opened the log last",
        "host": "its host",
        "boot_id": "that host's boot",
        "program": "its version of Moorage",
        "opened_at": "when it opened the log",
        "opened_seq": "the event that says so",
        "closed_at": "when it closed the log, NULL when it did not",
        "kept": "JSON list of the runs it left running when it closed, NULL when it did not close",
        "alive": "1 or 0 where `moorage sql` can see it, else NULL: the log alone cannot tell",
    },
    query="""\
SELECT
    o.pid AS pid,
    o.data ->> 'host' AS host,
    o.data ->> 'boot_id' AS boot_id,
    o.data ->> 'program' AS program,
    o.at AS opened_at,
    o.seq AS opened_seq,
    c.at AS closed_at,
    c.data -> 'kept' AS kept,
    CASE WHEN c.seq IS NOT NULL THEN 0 END AS alive
FROM (
    SELECT
        max(seq) FILTER (WHERE kind = 'service.opened') AS opened,
        max(seq) FILTER (WHERE kind = 'service.closed') AS closed
    FROM events
    WHERE kind IN ('service.opened', 'service.closed')
) AS last
JOIN events AS o ON o.seq = last.opened
LEFT JOIN events AS c ON c.seq = last.closed AND last.closed > last.opened""",
)

MODELS: Final = View(
    name="models",
    says="One row a model that is defined now.",
    columns={
        "model": "its name",
        "status": "stage of its run, or without one `stopped`, `held`, `backoff` or `failed`",
        "run": "its run, NULL when it has none",
        "port": "the port that serves it",
        "pid": "process id of its leader",
        "since": "when that run became ready, or else was asked for",
        "pinned": "1 when it is never evicted",
        "backend": "what serves it",
        "source": "its file or folder, or its repository on the hub",
        "aliases": "JSON list of its other names",
        "attempts": "failed attempts in a row, counted while it is in `backoff` or `failed`",
        "retry_at": "until when leases get the last error, while it is in `backoff`",
        "last_error": "what its last failure said, NULL after a reset",
        "last_error_at": "when that was",
        "defined_at": "when it was defined as it is now",
        "spec": "JSON object of all that was defined, without secrets",
    },
    query="""\
SELECT
    m.model AS model,
    coalesce(run.stage, CASE
        WHEN m.held > coalesce(m.reset, 0) THEN 'held'
        WHEN m.failure > coalesce(m.ready, 0) THEN substr(failure.kind, 7)
        ELSE 'stopped'
    END) AS status,
    run.run AS run,
    run.port AS port,
    run.pid AS pid,
    coalesce(run.ready_at, run.began_at) AS since,
    coalesce(m.pinned, 0) > coalesce(m.unpinned, 0) AS pinned,
    defined.data ->> '$.spec.backend' AS backend,
    coalesce(defined.data ->> '$.spec.path', defined.data ->> '$.spec.repo') AS source,
    defined.data -> '$.spec.aliases' AS aliases,
    iif(m.failure > coalesce(m.ready, 0), failure.data ->> 'attempts', 0) AS attempts,
    iif(m.failure > coalesce(m.ready, 0), nullif(failure.data ->> 'until', ''), NULL) AS retry_at,
    failure.data ->> 'error' AS last_error,
    failure.at AS last_error_at,
    defined.at AS defined_at,
    defined.data -> 'spec' AS spec
FROM (
    SELECT
        e.model AS model,
        max(e.seq) FILTER (WHERE e.kind = 'model.defined') AS defined,
        max(e.seq) FILTER (WHERE e.kind = 'model.pinned') AS pinned,
        max(e.seq) FILTER (WHERE e.kind = 'model.unpinned') AS unpinned,
        max(e.seq) FILTER (WHERE e.kind = 'model.held') AS held,
        max(e.seq) FILTER (WHERE e.kind = 'model.reset') AS reset,
        max(e.seq) FILTER (
            WHERE e.kind IN ('model.backoff', 'model.failed') AND e.seq > coalesce(gone.reset, 0)
        ) AS failure,
        max(e.seq) FILTER (WHERE e.kind = 'run.ready') AS ready
    FROM events AS e
    LEFT JOIN (
        SELECT
            model,
            max(seq) FILTER (WHERE kind = 'model.removed') AS removed,
            max(seq) AS reset
        FROM events
        WHERE kind IN ('model.removed', 'model.reset')
        GROUP BY model
    ) AS gone ON gone.model = e.model
    WHERE e.model IS NOT NULL
        AND (e.kind = 'run.ready' OR (e.kind >= 'model.' AND e.kind < 'model/'))
        AND e.seq > coalesce(gone.removed, 0)
    GROUP BY e.model
) AS m
JOIN events AS defined ON defined.seq = m.defined
LEFT JOIN events AS failure ON failure.seq = m.failure
LEFT JOIN (
    SELECT min(run) AS run, model, stage, port, pid, began_at, ready_at
    FROM runs
    WHERE stage <> 'ended'
    GROUP BY model
) AS run ON run.model = m.model""",
)

PORTS: Final = View(
    name="ports",
    says="One row a port: all of the pool, and whatever else a run ever held.",
    columns={
        "port": "the port",
        "state": "`held` or `free`",
        "run": "the run that holds it",
        "model": "that run's model",
        "stage": "that run's stage",
        "since": "since when it is held, or free again; NULL when it was never held",
        "in_pool": "1 when it belongs to the pool of now",
        "uses": "how many runs have held it",
        "last_run": "the run that held it last, or holds it",
        "blocked_at": "when a stranger was last found on it",
        "blocked_by": "that stranger's command, where it could be seen",
        "blocked_pid": "that stranger's process id",
    },
    query="""\
WITH RECURSIVE
pool (port, last) AS (
    SELECT range.value ->> 0, range.value ->> 1
    FROM owner
    JOIN events AS opened ON opened.seq = owner.opened_seq
    JOIN json_each(opened.data, '$.ports') AS range
    UNION ALL
    SELECT port + 1, last FROM pool WHERE port < last
),
reservations (port, run) AS (
    SELECT port, run FROM events WHERE run IS NOT NULL AND kind = 'run.reserved'
    UNION ALL
    SELECT more.value, events.run
    FROM events
    JOIN json_each(events.data, '$.more_ports') AS more
    WHERE events.run IS NOT NULL
        AND events.kind = 'run.reserved'
        AND events.data -> 'more_ports' <> '[]'
),
used (port, run, uses) AS (
    SELECT port, max(run), count(*) FROM reservations GROUP BY port
),
blocked (port, seq) AS (
    SELECT port, max(seq) FROM events WHERE kind = 'port.blocked' GROUP BY port
),
known (port) AS (
    SELECT port FROM pool UNION SELECT port FROM used UNION SELECT port FROM blocked
)
SELECT
    known.port AS port,
    iif(runs.stage <> 'ended', 'held', 'free') AS state,
    iif(runs.stage <> 'ended', runs.run, NULL) AS run,
    iif(runs.stage <> 'ended', runs.model, NULL) AS model,
    iif(runs.stage <> 'ended', runs.stage, NULL) AS stage,
    coalesce(runs.ended_at, runs.reserved_at) AS since,
    known.port IN (SELECT port FROM pool) AS in_pool,
    coalesce(used.uses, 0) AS uses,
    used.run AS last_run,
    stranger.at AS blocked_at,
    nullif(stranger.data ->> 'command', '') AS blocked_by,
    stranger.pid AS blocked_pid
FROM known
LEFT JOIN used ON used.port = known.port
LEFT JOIN runs ON runs.run = used.run
LEFT JOIN blocked ON blocked.port = known.port
LEFT JOIN events AS stranger ON stranger.seq = blocked.seq
ORDER BY known.port""",
)

LEAKS: Final = View(
    name="leaks",
    says="One row a run that has not ended though nobody looks after it, or that cannot be ended."
    " Empty for a service that is well.",
    columns={
        "problem": "what is wrong",
        "certain": "1 when the log proves it; 0 when it depends on whether the owner is alive",
        "run": "the run",
        "model": "its model",
        "stage": "where it was left",
        "ports": "JSON list of the ports it holds, empty when it holds none",
        "pid": "process id of its leader, which may live on",
        "since": "its last event",
        "held_s": "seconds from its reservation to the last event of the log",
        "owner_pid": "process that opened the log last",
        "owner_host": "its host",
        "first_seq": "first event of the run",
        "last_seq": "last event of the run",
    },
    query="""\
SELECT
    CASE
        WHEN r.stage = 'stop_failed' THEN 'could not be stopped'
        WHEN o.closed_at IS NOT NULL THEN 'open in a log that was closed'
        WHEN r.last_seq < o.opened_seq THEN 'not taken over by the present owner'
        WHEN o.alive = 0 THEN 'the owner is gone without closing'
        ELSE 'leaked if the owner is gone'
    END AS problem,
    r.stage = 'stop_failed'
        OR o.closed_at IS NOT NULL
        OR r.last_seq < o.opened_seq
        OR coalesce(o.alive = 0, 0) AS certain,
    r.run AS run,
    r.model AS model,
    r.stage AS stage,
    r.ports AS ports,
    r.pid AS pid,
    final.at AS since,
    round((
        julianday((SELECT at FROM events ORDER BY seq DESC LIMIT 1)) - julianday(r.reserved_at)
    ) * 86400, 3) AS held_s,
    o.pid AS owner_pid,
    o.host AS owner_host,
    r.first_seq AS first_seq,
    r.last_seq AS last_seq
FROM runs AS r
CROSS JOIN owner AS o
JOIN events AS final ON final.seq = r.last_seq
WHERE r.stage <> 'ended'
    AND (
        r.stage = 'stop_failed'
        OR r.last_seq < o.opened_seq
        OR (o.closed_at IS NULL AND o.alive IS NOT 1)
        OR (o.closed_at IS NOT NULL AND r.run NOT IN (SELECT value FROM json_each(o.kept)))
    )""",
)

ALL: Final = (OWNER, RUNS, MODELS, PORTS, LEAKS, EVICTIONS, LOADS)
"""In the order in which they can be made."""


def temporary(*, alive: bool | None) -> tuple[str, ...]:
    """Return the statements that make all views in the TEMP schema.

    There they hide those of the file, which may be an older program's, or not there. `alive` is
    what was seen of the log's owner.
    """
    made = [view.create(temporary=True) for view in ALL]
    if alive is not None:
        made[0] = made[0].replace(_SAID_ALIVE, f"{int(alive)} AS alive")
    return tuple(made)
