"""Views for SQL. The text stays as it was when this revision was made: a later one replaces it."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VIEWS = (
    """\
CREATE VIEW owner AS
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
    """\
CREATE VIEW runs AS
SELECT
    r.run AS run,
    began.model AS model,
    CASE moved.kind
        WHEN 'run.fetched' THEN 'fetching'
        WHEN 'run.launched' THEN iif(r.stopping IS NULL, 'loading', 'stopping')
        WHEN 'run.reopened' THEN 'ready'
        WHEN 'run.evicting' THEN 'draining'
        WHEN 'run.exited' THEN 'stopping'
        WHEN 'run.swept' THEN 'stopping'
        WHEN 'run.released' THEN 'ended'
        WHEN 'run.abandoned' THEN 'ended'
        ELSE substr(moved.kind, 5)
    END AS stage,
    ended.data ->> 'outcome' AS outcome,
    nullif(coalesce(
        nullif(ended.data ->> 'error', ''),
        nullif(exited.data ->> 'error', ''),
        stop_failed.data ->> 'error'
    ), '') AS error,
    began.data ->> 'requested_by' AS requested_by,
    reserved.port AS port,
    (
        SELECT json_group_array(value)
        FROM (
            SELECT reserved.port AS value
            UNION ALL
            SELECT more.value FROM json_each(reserved.data, '$.more_ports') AS more
        )
        WHERE value IS NOT NULL
    ) AS ports,
    launched.pid AS pid,
    began.at AS began_at,
    queued.at AS queued_at,
    reserved.at AS reserved_at,
    launched.at AS launched_at,
    ready.at AS ready_at,
    stopping.at AS stopping_at,
    exited.at AS exited_at,
    ended.at AS ended_at,
    fetched.data ->> 'seconds' AS fetch_s,
    round((julianday(reserved.at) - julianday(queued.at)) * 86400, 3) AS wait_s,
    ready.data ->> 'load_s' AS load_s,
    round((
        julianday(coalesce(min(stopping.at, exited.at), stopping.at, exited.at, newest.at))
        - julianday(ready.at)
    ) * 86400, 3) AS ready_s,
    round((
        julianday(ended.at)
        - julianday(coalesce(min(stopping.at, exited.at), stopping.at, exited.at))
    ) * 86400, 3) AS stop_s,
    round((julianday(coalesce(ended.at, newest.at)) - julianday(began.at)) * 86400, 3) AS total_s,
    exited.data ->> 'code' AS exit_code,
    exited.data ->> 'signal' AS exit_signal,
    exited.data ->> 'wanted' AS exit_wanted,
    stopping.data ->> 'reason' AS stop_reason,
    evicting.data ->> 'for_run' AS evicted_for_run,
    evicting.data ->> 'for_model' AS evicted_for_model,
    r.adopted AS adopted,
    reserved.data ->> 'room_bytes' AS room_bytes,
    coalesce(ended.data ->> 'peak_bytes', swept.data ->> 'peak_bytes') AS peak_bytes,
    launching.data ->> 'log_file' AS log_file,
    r.first AS first_seq,
    r.last AS last_seq
FROM (
    SELECT
        run,
        min(seq) AS first,
        max(seq) AS last,
        max(seq) FILTER (WHERE kind <> 'run.adopted') AS moved,
        max(seq) FILTER (WHERE kind = 'run.fetched') AS fetched,
        max(seq) FILTER (WHERE kind = 'run.queued') AS queued,
        max(seq) FILTER (WHERE kind = 'run.reserved') AS reserved,
        max(seq) FILTER (WHERE kind = 'run.launching') AS launching,
        max(seq) FILTER (WHERE kind = 'run.launched') AS launched,
        max(seq) FILTER (WHERE kind = 'run.ready') AS ready,
        max(seq) FILTER (WHERE kind = 'run.evicting') AS evicting,
        max(seq) FILTER (WHERE kind = 'run.reopened') AS reopened,
        max(seq) FILTER (WHERE kind = 'run.draining') AS draining,
        min(seq) FILTER (WHERE kind = 'run.stopping') AS stopping,
        max(seq) FILTER (WHERE kind = 'run.exited') AS exited,
        max(seq) FILTER (WHERE kind = 'run.swept') AS swept,
        max(seq) FILTER (WHERE kind = 'run.stop_failed') AS stop_failed,
        max(seq) FILTER (WHERE kind IN ('run.released', 'run.abandoned')) AS ended,
        count(*) FILTER (WHERE kind = 'run.adopted') AS adopted
    FROM events
    WHERE run IS NOT NULL AND kind >= 'run.' AND kind < 'run/'
    GROUP BY run
) AS r
CROSS JOIN (SELECT at FROM events ORDER BY seq DESC LIMIT 1) AS newest
JOIN events AS began ON began.seq = r.first
JOIN events AS moved ON moved.seq = r.moved
LEFT JOIN events AS fetched ON fetched.seq = r.fetched
LEFT JOIN events AS queued ON queued.seq = r.queued
LEFT JOIN events AS reserved ON reserved.seq = r.reserved
LEFT JOIN events AS launching ON launching.seq = r.launching
LEFT JOIN events AS launched ON launched.seq = r.launched
LEFT JOIN events AS ready ON ready.seq = r.ready
LEFT JOIN events AS stopping ON stopping.seq = r.stopping
LEFT JOIN events AS exited ON exited.seq = r.exited
LEFT JOIN events AS swept ON swept.seq = r.swept
LEFT JOIN events AS stop_failed ON stop_failed.seq = r.stop_failed
LEFT JOIN events AS ended ON ended.seq = r.ended
LEFT JOIN events AS evicting
    ON evicting.seq = r.evicting
    AND r.evicting > coalesce(r.reopened, 0)
    AND r.evicting > coalesce(r.draining, 0)""",
    """\
CREATE VIEW models AS
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
    """\
CREATE VIEW ports AS
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
    """\
CREATE VIEW leaks AS
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
    """\
CREATE VIEW evictions AS
SELECT
    e.seq AS seq,
    e.at AS at,
    e.run AS run,
    e.model AS model,
    e.data ->> 'reason' AS reason,
    e.data ->> 'for_run' AS for_run,
    e.data ->> 'for_model' AS for_model,
    (
        SELECT began.data ->> 'requested_by'
        FROM events AS began
        WHERE began.run = e.data ->> 'for_run'
        ORDER BY began.seq
        LIMIT 1
    ) AS requested_by,
    e.cause AS cause,
    e.data ->> 'leases' AS leases,
    e.data -> 'order' AS lru,
    e.data -> 'skipped' AS skipped,
    round((julianday(e.at) - julianday((
        SELECT ready.at
        FROM events AS ready
        WHERE ready.run = e.run AND ready.kind = 'run.ready'
        LIMIT 1
    ))) * 86400, 3) AS ready_s,
    CASE done.kind WHEN 'run.released' THEN 'ended' WHEN 'run.reopened' THEN 'reopened' END
        AS outcome,
    done.at AS done_at,
    round((julianday(done.at) - julianday(e.at)) * 86400, 3) AS took_s
FROM events AS e
LEFT JOIN events AS done ON done.seq = (
    SELECT min(next.seq)
    FROM events AS next
    WHERE next.run = e.run
        AND next.seq > e.seq
        AND next.kind IN ('run.reopened', 'run.released')
)
WHERE e.kind = 'run.evicting'
ORDER BY e.seq""",
    """\
CREATE VIEW loads AS
WITH
r AS MATERIALIZED (
    SELECT
        model, run, outcome, error, load_s, wait_s, exit_wanted, evicted_for_run, peak_bytes,
        ready_at, ended_at, outcome LIKE 'failed%' AS failed
    FROM runs
),
ranked AS (
    SELECT
        model, failed, run, error, ended_at, load_s, wait_s,
        row_number() OVER (PARTITION BY model, load_s IS NULL ORDER BY load_s) AS load_rank,
        count(load_s) OVER (PARTITION BY model) AS loads,
        row_number() OVER (PARTITION BY model, wait_s IS NULL ORDER BY wait_s) AS wait_rank,
        count(wait_s) OVER (PARTITION BY model) AS waits
    FROM r
),
spread AS (
    SELECT
        model,
        max(load_s) FILTER (WHERE load_rank = (loads * 50 + 99) / 100) AS p50_s,
        max(load_s) FILTER (WHERE load_rank = (loads * 95 + 99) / 100) AS p95_s,
        max(wait_s) FILTER (WHERE wait_rank = (waits * 95 + 99) / 100) AS p95_wait_s
    FROM ranked
    GROUP BY model
),
failed AS (
    SELECT model, max(run) AS run, error, ended_at FROM r WHERE failed GROUP BY model
)
SELECT
    r.model AS model,
    count(*) AS runs,
    count(r.ready_at) AS loads,
    coalesce(sum(r.failed), 0) AS failures,
    count(*) FILTER (WHERE r.exit_wanted = 0) AS crashes,
    count(*) FILTER (WHERE r.evicted_for_run IS NOT NULL AND r.ended_at IS NOT NULL) AS evictions,
    spread.p50_s AS p50_s,
    spread.p95_s AS p95_s,
    max(r.load_s) AS max_s,
    spread.p95_wait_s AS p95_wait_s,
    max(r.peak_bytes) AS peak_bytes,
    failed.ended_at AS last_failed_at,
    failed.error AS last_error
FROM r
JOIN spread ON spread.model = r.model
LEFT JOIN failed ON failed.model = r.model
GROUP BY r.model
ORDER BY r.model""",
)


def upgrade() -> None:
    for view in VIEWS:
        op.execute(view)
