"""The views for SQL about runs."""

from __future__ import annotations

from typing import Final

from moorage.log.view import View

RUNS: Final = View(
    name="runs",
    says="One row a run: one attempt to have a model loaded, from the request to the end.",
    columns={
        "run": "number of the run, never used again",
        "model": "its model",
        "stage": "where it is: `fetching`, `queued`, `reserved`, `launching`, `loading`, `ready`,"
        " `draining`, `stopping`, `stop_failed` or `ended`",
        "outcome": "how it ended: `ok`, `failed: STAGE`, `cancelled`, `lost`, `refused`;"
        " NULL while it has not",
        "error": "what went wrong, NULL when nothing did",
        "requested_by": "the call that asked for it",
        "port": "the port that serves",
        "ports": "JSON list of all its ports",
        "pid": "process id of the leader",
        "began_at": "when it was asked for",
        "queued_at": "when it began to wait for room",
        "reserved_at": "when it took its ports and its room",
        "launched_at": "when its leader was spawned",
        "ready_at": "when it could be leased",
        "stopping_at": "when its stop began (the first, when it took several)",
        "exited_at": "when its leader was gone",
        "ended_at": "when it ended and its ports were free again",
        "fetch_s": "seconds it fetched files",
        "wait_s": "seconds it waited for room",
        "load_s": "seconds from the spawn until it was ready",
        "ready_s": "seconds from ready until its stop began, or its leader was gone,"
        " or the last event of the log",
        "stop_s": "seconds from the stop or the exit until its ports were free again",
        "total_s": "seconds from the request to the end, or to the last event of the log",
        "exit_code": "exit code of the leader, NULL when it was a signal or is unknown",
        "exit_signal": "signal that ended the leader",
        "exit_wanted": "1 when the exit was asked for, 0 when the server died by itself",
        "stop_reason": "why it was stopped first: `room`, `memory`, `idle`, `limits`, `operator`,"
        " `reload`, `remove`, `close`, `unhealthy`, `cancelled`, `failed`, `exited`, `forced`,"
        " `recovery`",
        "evicted_for_run": "the run it had to make room for",
        "evicted_for_model": "that run's model",
        "adopted": "how often a later owner took it over",
        "room_bytes": "memory it was given room for",
        "peak_bytes": "memory it took at most, where measured",
        "log_file": "what the server wrote",
        "first_seq": "its first event",
        "last_seq": "its last event",
    },
    query="""\
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
)

EVICTIONS: Final = View(
    name="evictions",
    says="One row a run that was chosen to make room, with what the decision saw.",
    columns={
        "seq": "the event that says so",
        "at": "when it was chosen",
        "run": "the run that was chosen",
        "model": "its model",
        "reason": "`room`, `memory`, `idle` or `limits`",
        "for_run": "the run that needs the room",
        "for_model": "that run's model",
        "requested_by": "the call that asked for that run",
        "cause": "the event that led to it",
        "leases": "leases it had when its gate closed; 0: it stopped at once",
        "lru": "JSON list of the ready runs, least recently used first",
        "skipped": "JSON list of [run, why] of those that were passed over",
        "ready_s": "seconds it had been ready",
        "outcome": "`ended`, `reopened` when it was not needed after all, NULL while it drains"
        " or stops",
        "done_at": "when that was",
        "took_s": "seconds from the choice to the outcome",
    },
    query="""\
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
)

LOADS: Final = View(
    name="loads",
    says="One row a model that was ever asked for: how its loads went.",
    columns={
        "model": "the model",
        "runs": "how many runs it had",
        "loads": "how many became ready",
        "failures": "how many failed at any stage",
        "crashes": "how often its server exited though nobody had asked it to",
        "evictions": "how many ended to make room",
        "p50_s": "seconds from the spawn until ready, half of the loads took at most that",
        "p95_s": "the same for 95 of 100 loads",
        "max_s": "the slowest",
        "p95_wait_s": "seconds of waiting for room, 95 of 100 runs waited at most that",
        "peak_bytes": "memory it took at most, where measured",
        "last_failed_at": "when a run of it last failed",
        "last_error": "what that one said",
    },
    query="""\
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
