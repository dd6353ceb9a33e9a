-- inspect: what operators and pages read about attempts, logs, queues and workers.

-- :name summary
-- For a bounded number of runs, so that a long history does not make it slower.
SELECT queue, state, pg_catalog.count(*), pg_catalog.count(started_at),
       coalesce(pg_catalog.sum(duly_microseconds(finished_at) - duly_microseconds(started_at)), 0)::bigint
  FROM (SELECT queue, state, started_at, finished_at
          FROM duly_history
         ORDER BY id DESC
         LIMIT %(limit)s) AS newest
 GROUP BY queue, state
 ORDER BY queue, state

-- :name first_starts
-- The first start of the current generation of each run, by the attempts that have ended.
SELECT attempt.run_id::text, duly_microseconds(pg_catalog.min(attempt.started_at))
  FROM duly_attempts AS attempt
  JOIN duly_every_run AS run ON run.id = attempt.run_id AND run.generation = attempt.generation
 WHERE attempt.run_id = ANY (%(run_ids)s::uuid[]) AND run.id = ANY (%(run_ids)s::uuid[])
 GROUP BY attempt.run_id

-- :name attempts
SELECT run_id::text, claim_number, generation, attempt, outcome, worker_id,
       duly_microseconds(started_at), duly_microseconds(finished_at), error, traceback
  FROM duly_attempts WHERE run_id = %(run_id)s
UNION ALL
SELECT id::text, claim_number, generation, attempt, outcome, worker_id,
       duly_microseconds(started_at), duly_microseconds(finished_at), error, traceback
  FROM duly_history WHERE id = %(run_id)s AND outcome IS NOT NULL
 ORDER BY claim_number

-- :name logs
SELECT run_id::text, claim_number, duly_microseconds(at), level, message
  FROM duly_logs WHERE run_id = %(run_id)s
 ORDER BY at, number
 LIMIT %(limit)s

-- :name acts
SELECT duly_microseconds(at), actor, act, subject, reason, number
  FROM duly_acts
 WHERE (%(subject)s::text IS NULL OR subject = %(subject)s::text)
   AND (%(before)s::bigint IS NULL OR number < %(before)s::bigint)
 ORDER BY number DESC
 LIMIT %(limit)s

-- :name has_act
SELECT 1 FROM duly_acts WHERE subject = %(subject)s LIMIT 1

-- :name ends_by_time
SELECT at / %(step)s::bigint * %(step)s::bigint, state, pg_catalog.sum(runs)::bigint,
       pg_catalog.sum(elapsed)::bigint, pg_catalog.sum(delay)::bigint
  FROM duly_tallies
 WHERE span IN (0, 60, 3600) AND at >= %(since)s
   AND (state = 'retried') = %(retried)s::boolean
 GROUP BY at / %(step)s::bigint, state
 ORDER BY at / %(step)s::bigint, state

-- :name ends_by_task
-- As in `fold`: no run lasted less than its last attempt took.
SELECT task, queue, state, took, waited, pg_catalog.sum(runs)::bigint, pg_catalog.sum(elapsed)::bigint,
       pg_catalog.sum(delay)::bigint, pg_catalog.sum(greatest(lasted, elapsed))::bigint
  FROM duly_tallies
 WHERE span IN (0, 60, 3600, 86400) AND at >= %(since)s
   AND (state = 'retried') = %(retried)s::boolean
 GROUP BY task, queue, state, took, waited
 ORDER BY task, queue, state, took, waited

-- :name oldest_ready
-- The run of each queue that has been due for longest. Within a lane and a priority, the indexes have
-- runs in that order. The statement jumps from one priority to the next, up to `jumps` in a lane or a
-- queue. So it finds a run that others overtake for ever, without a scan of the backlog.
WITH RECURSIVE own(queue, lane) AS MATERIALIZED (
    SELECT queue, lane FROM duly_ready_lanes WHERE lane < '~'
), plain(id, queue, lane, priority, due_at, number) AS (
    SELECT run.*, 1
      FROM own
     CROSS JOIN LATERAL (
           SELECT id, queue, lane, priority, due_at
             FROM duly_runs
            WHERE state = 'queued' AND duly_runs.lane < '~'
              AND duly_runs.lane = own.lane AND duly_runs.queue = own.queue
            ORDER BY -priority, due_at, id LIMIT 1) AS run
    UNION ALL
    SELECT next.*, plain.number + 1
      FROM plain
     CROSS JOIN LATERAL (
           SELECT run.id, run.queue, run.lane, run.priority, run.due_at
             FROM duly_runs AS run
            WHERE run.state = 'queued' AND run.lane < '~' AND plain.number < %(jumps)s
              AND run.lane = plain.lane AND run.queue = plain.queue
              AND -run.priority > -plain.priority
            ORDER BY -run.priority, run.due_at, run.id LIMIT 1) AS next
), limited(id, queue, lane, priority, due_at, number) AS (
    (SELECT id, queue, lane, priority, due_at, 1
       FROM duly_runs WHERE state = 'queued' AND lane >= '~' AND queue > ''
      ORDER BY queue, lane, -priority, due_at, id LIMIT 1)
    UNION ALL
    SELECT next.id, next.queue, next.lane, next.priority, next.due_at,
           CASE WHEN next.queue = limited.queue THEN limited.number + 1 ELSE 1 END
      FROM limited
     CROSS JOIN LATERAL (
           (SELECT run.id, run.queue, run.lane, run.priority, run.due_at
              FROM duly_runs AS run
             WHERE run.state = 'queued' AND run.lane >= '~' AND run.queue > ''
               AND limited.number < %(jumps)s
               AND run.queue = limited.queue AND run.lane = limited.lane
               AND -run.priority > -limited.priority
             ORDER BY -run.priority, run.due_at, run.id LIMIT 1)
           UNION ALL
           (SELECT run.id, run.queue, run.lane, run.priority, run.due_at
              FROM duly_runs AS run
             WHERE run.state = 'queued' AND run.lane >= '~' AND run.queue > ''
               AND limited.number < %(jumps)s
               AND run.queue = limited.queue AND run.lane > limited.lane
             ORDER BY run.lane, -run.priority, run.due_at, run.id LIMIT 1)
           UNION ALL
           (SELECT run.id, run.queue, run.lane, run.priority, run.due_at
              FROM duly_runs AS run
             WHERE run.state = 'queued' AND run.lane >= '~' AND run.queue > ''
               AND run.queue > limited.queue
             ORDER BY run.queue, run.lane, -run.priority, run.due_at, run.id LIMIT 1)
           LIMIT 1) AS next
), head AS (
    SELECT * FROM plain UNION ALL SELECT * FROM limited
)
SELECT queue, id::text, duly_microseconds(due_at),
       (SELECT task FROM duly_runs WHERE duly_runs.id = oldest.id), lane
  FROM (SELECT DISTINCT ON (queue) queue, id, due_at, lane
          FROM head
         WHERE queue NOT IN (SELECT name FROM duly_queues WHERE paused)
         ORDER BY queue, due_at, id) AS oldest
 ORDER BY queue

-- :name workers
-- On SQLite, Python decides which workers are silent, because their heartbeats are in files.
SELECT id,
       CASE WHEN state = 'live' AND seen_at < duly_now() - lease_seconds * interval '1 second'
            THEN 'silent' ELSE state END,
       host, pid, duly_microseconds(started_at), duly_microseconds(seen_at),
       duly_microseconds(stopped_at), lease_seconds, queues, tasks,
       (SELECT pg_catalog.count(*) FROM duly_runs WHERE worker_id = duly_workers.id), version, engine
  FROM duly_workers
 WHERE %(worker_id)s::text IS NULL OR id = %(worker_id)s::text
 ORDER BY duly_workers.started_at DESC, id DESC
 LIMIT 200

-- :name paused
SELECT 1 FROM duly_queues WHERE name = %(queue)s AND paused

-- :name queues
-- Counts stop at a cap: an operator needs "10,000 and more", not a scan of all runs. The statement
-- finds the names by jumps from one to the next in an index, while SQLite reads the tables.
WITH RECURSIVE waiting(queue) AS (
    (SELECT queue FROM duly_waiting ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT next.queue FROM duly_waiting AS next
             WHERE next.queue > waiting.queue
             ORDER BY next.queue LIMIT 1)
      FROM waiting
     WHERE waiting.queue IS NOT NULL
), every(name) AS (
    SELECT name FROM duly_queues
    UNION SELECT queue FROM duly_ready_lanes
    UNION SELECT queue FROM waiting WHERE queue IS NOT NULL
    UNION SELECT queue FROM duly_runs WHERE worker_id IS NOT NULL
)
SELECT name,
       coalesce((SELECT paused FROM duly_queues AS known WHERE known.name = every.name), false),
       (SELECT pg_catalog.count(*) FROM (SELECT 1
                                FROM duly_lanes_of(NULL::bigint) AS own
                               CROSS JOIN LATERAL (
                                     SELECT 1 FROM duly_runs
                                      WHERE state = 'queued' AND duly_runs.lane < '~'
                                        AND duly_runs.lane = own.lane AND queue = every.name
                                     OFFSET 0) AS run
                              UNION ALL
                              SELECT 1 FROM duly_runs
                               WHERE state = 'queued' AND lane >= '~' AND queue > ''
                                 AND queue = every.name
                               LIMIT 10001) AS _),
       (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM duly_waiting
                               WHERE queue = every.name LIMIT 10001) AS _),
       (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM duly_runs
                               WHERE worker_id IS NOT NULL AND queue = every.name
                               LIMIT 10001) AS _),
       (SELECT running_limit FROM duly_queues AS known WHERE known.name = every.name),
       (SELECT max_size FROM duly_queues AS known WHERE known.name = every.name)
  FROM every
 ORDER BY name

-- :name holders
SELECT 'queue', queue.running_limit, run.id::text, run.worker_id
  FROM duly_queues AS queue
  JOIN duly_runs AS run ON run.worker_id IS NOT NULL AND run.queue = queue.name
 WHERE queue.name = %(queue)s AND queue.running_limit IS NOT NULL
UNION ALL
SELECT 'task', NULL, id::text, worker_id
  FROM duly_runs
 WHERE state = 'running' AND lane >= '~'
   AND pg_catalog.split_part(lane, ' ', 1) = pg_catalog.split_part(%(low)s::text, ' ', 1)
   AND pg_catalog.split_part(lane, ' ', 2) = pg_catalog.split_part(%(low)s::text, ' ', 2)

-- :name cancel_requests
SELECT id::text FROM duly_runs WHERE worker_id = %(worker_id)s AND cancel_requested

-- :name peek
-- A function, because a session that reads has the server's planner settings. With these, the
-- statistics of an emptied table could make this statement read the whole table.
SELECT * FROM duly_peek(%(carried)s::text[])

-- :name now
SELECT duly_microseconds(duly_now())

-- :name schema
SELECT pg_catalog.max(version), pg_catalog.max(oldest_code) FROM duly_schema

-- :name columns_of
-- A role that may CREATE in a schema of the search path could create a table, and this application
-- would mistake its rows for its own.
SELECT part.attname::text
  FROM pg_catalog.pg_class AS found
  JOIN pg_catalog.pg_attribute AS part ON part.attrelid = found.oid
 WHERE found.oid = pg_catalog.to_regclass(%(table)s::text)::oid
   AND part.attnum > 0::smallint
   AND NOT part.attisdropped
   AND found.relowner IN (
           SELECT role.oid FROM pg_catalog.pg_roles AS role WHERE role.rolname = current_user
           UNION ALL
           SELECT own.relowner FROM pg_catalog.pg_class AS own
            WHERE own.oid = 'duly_schema'::regclass::oid)
