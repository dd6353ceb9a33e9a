-- recover: end a lost worker. Its runs are settled as Lost by the same statements as any attempt.

-- :name end_worker
-- Returns whether the worker has beaten since: its counter then has another value, and it is not ended.
-- The lock waits for a claim of this worker that is in progress. It also keeps out later claims, which
-- lock this row FOR KEY SHARE. The UPDATE alone would not conflict with them.
WITH locked AS MATERIALIZED (
    SELECT %(beats)s::bigint IS NOT NULL AND beats <> %(beats)s AS has_beaten
      FROM duly_workers
     WHERE id = %(worker_id)s
       FOR UPDATE
), ended AS (
    UPDATE duly_workers
       SET state = %(state)s, stopped_at = duly_now()
     WHERE id = %(worker_id)s AND state = 'live'
       AND EXISTS (SELECT FROM locked WHERE NOT has_beaten)
)
SELECT has_beaten FROM locked

-- :name held
-- A separate statement, so that it sees the runs that the last claim committed while `end_worker`
-- waited.
SELECT id::text, claim_number, task, lane, attempt, retries_used, crashes, key IS NOT NULL,
       cancel_requested,
       greatest(duly_microseconds(duly_now()) - duly_microseconds(claimed_at), 0)
  FROM duly_runs
 WHERE id = ANY (ARRAY(SELECT id FROM duly_runs WHERE worker_id = %(worker_id)s))
   AND worker_id = %(worker_id)s
 ORDER BY id
   FOR UPDATE

-- :name orphans
-- Locks candidates, from worker to worker by the index. It skips runs that another transaction has
-- locked.
WITH RECURSIVE holder(worker_id) AS (
    (SELECT worker_id FROM duly_runs WHERE worker_id IS NOT NULL ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT next.worker_id FROM duly_runs AS next
             WHERE next.worker_id > holder.worker_id
             ORDER BY next.worker_id LIMIT 1)
      FROM holder
     WHERE holder.worker_id IS NOT NULL
), gone AS MATERIALIZED (
    SELECT worker_id
      FROM holder
     WHERE worker_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM duly_workers WHERE id = worker_id AND state = 'live')
)
SELECT run.id::text
  FROM gone
 CROSS JOIN LATERAL (
       SELECT id FROM duly_runs
        WHERE duly_runs.worker_id = gone.worker_id
        LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED) AS run
 LIMIT %(limit)s

-- :name still_orphaned
-- Checks again after the rows are locked. Between the snapshot of `orphans` and its lock, a row may
-- have got another worker, which that snapshot did not see.
SELECT id::text, claim_number, task, lane, attempt, retries_used, crashes, key IS NOT NULL,
       cancel_requested,
       greatest(duly_microseconds(duly_now()) - duly_microseconds(claimed_at), 0)
  FROM duly_runs
 WHERE id = ANY (%(ids)s::uuid[])
   AND state = 'running'
   AND NOT EXISTS (SELECT 1 FROM duly_workers
                    WHERE duly_workers.id = duly_runs.worker_id AND duly_workers.state = 'live'
                   OFFSET 0)
 ORDER BY id

-- :name forget_retentions
-- For tasks that no longer have a retention of their own.
DELETE FROM duly_retentions
 WHERE task IN (SELECT pg_catalog.json_array_elements_text(%(tasks)s::json))
   AND task NOT IN (SELECT pg_catalog.json_object_keys(%(retentions)s::json))

-- :name note_retentions
-- In a fixed order, since other workers may register at the same time.
INSERT INTO duly_retentions (task, kept)
SELECT key, value::bigint FROM pg_catalog.json_each_text(%(retentions)s::json) ORDER BY key COLLATE "C"
    ON CONFLICT (task) DO UPDATE SET kept = excluded.kept WHERE duly_retentions.kept <> excluded.kept

-- :name register
-- A repeated registration updates the tasks, which may be new. It does not revive an ended worker.
INSERT INTO duly_workers
    (id, state, host, pid, started_at, seen_at, lease_seconds, queues, tasks, lanes, version,
     engine)
VALUES (%(worker_id)s, 'live', %(host)s, %(pid)s, duly_now(), duly_now(), %(lease_seconds)s,
        %(queues)s, %(tasks)s, %(lanes)s, %(version)s, %(engine)s)
    ON CONFLICT (id) DO UPDATE
   SET tasks = excluded.tasks, lanes = excluded.lanes, queues = excluded.queues
 WHERE duly_workers.state = 'live'

-- :name beat
-- Only on PostgreSQL, as the next two: the heartbeats of SQLite's workers are in files next to the
-- database. These statements are sent with a deadline and bypass the driver's own parameters, so they
-- use $1. The commit is flushed, also where the server's default is not, and with a pooler. If a crash
-- of the server undid an acknowledged beat, two workers could start one run.
WITH durable AS MATERIALIZED (
    SELECT pg_catalog.set_config('synchronous_commit', coalesce(nullif(
               pg_catalog.current_setting('synchronous_commit'),
                                                            'off'), 'on'), true)
)
UPDATE duly_workers
   SET beats = beats + 1, seen_at = duly_now()
 WHERE id = ANY ($1::text[]) AND state = 'live' AND EXISTS (SELECT FROM durable)
RETURNING id

-- :name busy
-- Only on PostgreSQL. Sessions of one application have one name and one role.
SELECT EXISTS (
       SELECT FROM pg_stat_activity
        WHERE datname = pg_catalog.current_database() AND usename = session_user
          AND application_name = pg_catalog.current_setting('application_name')
          AND state = 'active' AND pid <> pg_catalog.pg_backend_pid()
          AND pg_catalog.clock_timestamp() - query_start >= $1::float8 * interval '1 second')

-- :name beats
SELECT id, beats, extract(epoch FROM duly_now() - seen_at), lease_seconds
  FROM duly_workers
 WHERE state = 'live'

-- :name watchers
-- Only on PostgreSQL: the workers that read the beats of all others. Any workers with a recent beat can
-- do this. If the server's clock was set in between, fewer rows match, and then every worker reads
-- them.
SELECT id
  FROM duly_workers
 WHERE state = 'live'
   AND seen_at BETWEEN duly_now() - $1::float8 * interval '1 second'
                   AND duly_now() + $1::float8 * interval '1 second'
 ORDER BY pg_catalog.reverse(id)
 LIMIT $2::integer

-- :name peers
-- Only on PostgreSQL, as hints name no runs on SQLite. Workers of one deployment register the same
-- tasks.
SELECT pg_catalog.array_agg(id), queues, tasks
  FROM duly_workers
 WHERE state = 'live' GROUP BY queues, tasks
