-- inspect: reads. A run is read from the view over all three tables in one statement.

-- :part record
id::text, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
       retries_used, crashes, duly_microseconds(created_at), duly_microseconds(due_at),
       duly_microseconds(expires_at), duly_microseconds(claimed_at),
       duly_microseconds(finished_at), worker_id, cancel_requested, parked, key, tags, arguments,
       result, error, traceback, fingerprint, progress, progress_text

-- :part fits
(%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
   AND (%(task)s::text IS NULL OR task = %(task)s::text)
   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
   AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s::text)
   AND (%(since)s::bigint IS NULL OR created_at >= duly_time(%(since)s::bigint))

-- :part dead
-- In this form, the planner cannot use the other indexes, whose cost it underestimates.
state NOT IN ('succeeded', 'cancelled')
   AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
   AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
   AND (%(since)s::bigint IS NULL OR created_at >= duly_time(%(since)s::bigint))
   AND (%(tag_name)s::text IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
           AND run_id = duly_history.id))

-- :name run
SELECT :part(record)
  FROM duly_every_run
 WHERE id = %(run_id)s

-- :name states
SELECT id::text, state FROM duly_every_run WHERE id = ANY (%(run_ids)s::uuid[])

-- :name runs
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
   AND :part(fits)
   AND (%(tag_name)s::text IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text AND run_id = run.id))
 ORDER BY run.id DESC
 LIMIT %(limit)s

-- :name runs_with_tag
-- Runs that have a tag of this name, with any value.
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
   AND :part(fits)
   AND EXISTS (SELECT 1 FROM duly_tags WHERE name = %(tag_name)s::text AND run_id = run.id)
 ORDER BY run.id DESC
 LIMIT %(limit)s

-- :name tagged
SELECT run_id::text
  FROM duly_tags
 WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
   AND (%(before)s::uuid IS NULL OR run_id < %(before)s::uuid)
 ORDER BY duly_tags.run_id DESC
 LIMIT %(most)s

-- :name few_runs
-- The same filters over known runs. Few runs have the tag, so a scan over all runs would be slow.
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE id = ANY (%(run_ids)s::uuid[])
   AND :part(fits)
 ORDER BY run.id DESC
 LIMIT %(limit)s

-- :name runs_among
-- The newest runs that match the filters, among the newest `scan` of all runs.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id, task, queue, state, fingerprint, created_at
                 FROM duly_every_run
                WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                ORDER BY id DESC
                LIMIT %(scan)s) AS newest
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name running_runs
-- It uses the index of claimed runs, whose number is bounded by the slots of workers. The oldest of all
-- runs may be running. Without the inner order the planner would scan all runs by their ids.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id, task, queue, state, NULL::text AS fingerprint, created_at
                 FROM duly_runs
                WHERE worker_id IS NOT NULL
                ORDER BY worker_id, claimed_at
                LIMIT %(most)s) AS held
        WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
          AND :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name live_runs
-- As above, among runs that have not ended. Each part is bounded: the planner cannot merge two parts by
-- their keys if the types of their columns differ.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM ((SELECT id, task, queue, state, NULL::text AS fingerprint, created_at
                  FROM duly_runs
                 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                 ORDER BY id DESC
                 LIMIT %(scan)s)
                UNION ALL
               (SELECT id, task, queue, 'queued', NULL, created_at
                  FROM duly_waiting
                 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                 ORDER BY id DESC
                 LIMIT %(scan)s)
                ORDER BY id DESC
                LIMIT %(scan)s) AS newest
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_among
-- As above, among dead letters.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id, task, queue, state, fingerprint, created_at
                 FROM duly_history
                WHERE state NOT IN ('succeeded', 'cancelled')
                  AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                ORDER BY id DESC
                LIMIT %(scan)s) AS newest
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name tagged_runs
-- As above, among runs that have a tag.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT run_id FROM duly_tags
                WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
                  AND (%(before)s::uuid IS NULL OR run_id < %(before)s::uuid)
                ORDER BY run_id DESC
                LIMIT %(scan)s) AS tagged
         JOIN duly_every_run ON id = tagged.run_id
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name scanned
-- The last of the newest `scan` runs, where a search of `runs_among` has stopped, and the time when
-- it was created.
SELECT id::text, duly_microseconds(created_at) FROM duly_every_run
 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
 ORDER BY duly_every_run.id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name scanned_live
SELECT id::text, duly_microseconds(created_at)
  FROM ((SELECT id, created_at FROM duly_runs
          WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
          ORDER BY id DESC
          LIMIT %(scan)s)
        UNION ALL
        (SELECT id, created_at FROM duly_waiting
          WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
          ORDER BY id DESC
          LIMIT %(scan)s)) AS live
 ORDER BY live.id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name scanned_dead
SELECT id::text, duly_microseconds(created_at) FROM duly_history
 WHERE state NOT IN ('succeeded', 'cancelled')
   AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
 ORDER BY duly_history.id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name scanned_tagged
SELECT run_id::text, (SELECT duly_microseconds(created_at) FROM duly_every_run WHERE id = run_id)
  FROM duly_tags
 WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
   AND (%(before)s::uuid IS NULL OR run_id < %(before)s::uuid)
 ORDER BY duly_tags.run_id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name runs_of_key
-- One probe for each task that has keys.
WITH RECURSIVE known(task) AS (
    SELECT pg_catalog.min(task) FROM duly_keys
    UNION ALL
    SELECT (SELECT pg_catalog.min(task) FROM duly_keys WHERE task > known.task)
      FROM known
     WHERE known.task IS NOT NULL
)
SELECT DISTINCT run_id::text
  FROM known JOIN duly_keys AS held ON held.task = known.task AND held.key = %(key)s

-- :name dead_runs
-- Only dead letters, by their own indexes. An array of ids is looked up one by one in each part of
-- the view, while a subquery may be joined with all of them.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id FROM duly_history
        WHERE :part(dead)
          AND (%(task)s::text IS NULL OR task = %(task)s::text)
          AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s::text)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_runs_of_task
-- As above, of one task.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id FROM duly_history
        WHERE :part(dead)
          AND task = %(task)s::text
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_runs_of_group
-- As above, of one group.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id FROM duly_history
        WHERE :part(dead)
          AND task = %(task)s::text
          AND (fingerprint = %(fingerprint)s::text
               OR %(fingerprint)s::text = '' AND fingerprint IS NULL)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_count
-- Only by the index of dead letters and up to a cap, because every page of the dashboard reads it.
SELECT pg_catalog.count(*)
  FROM (SELECT id FROM duly_history
         WHERE state NOT IN ('succeeded', 'cancelled')
         ORDER BY id DESC
         LIMIT %(cap)s) AS newest

-- :name interrupted_count
-- Among the newest dead letters, because no index contains only the interrupted ones.
SELECT pg_catalog.count(*)
  FROM (SELECT state FROM duly_history
         WHERE state NOT IN ('succeeded', 'cancelled')
         ORDER BY id DESC
         LIMIT %(cap)s) AS newest
 WHERE state = 'interrupted'

-- :name dead_groups
-- The statement finds the groups by jumps from one to the next in their index, and counts each up to a
-- cap. So a bug that failed a million runs costs no more than one that failed ten thousand. NULL is
-- last here, and first on SQLite.
WITH RECURSIVE head(task, fingerprint, number) AS (
    (SELECT task, fingerprint, 1
       FROM duly_history
      WHERE state NOT IN ('succeeded', 'cancelled')
        AND (%(task)s::text IS NULL OR task >= %(task)s::text)
      ORDER BY task, fingerprint LIMIT 1)
    UNION ALL
    SELECT next.task, next.fingerprint, head.number + 1
      FROM head
     CROSS JOIN LATERAL (
           (SELECT task, fingerprint, 1 AS place FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled')
               AND task = head.task AND fingerprint > head.fingerprint
             ORDER BY task, fingerprint LIMIT 1)
           UNION ALL
           (SELECT task, fingerprint, 2 FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled')
               AND task = head.task AND fingerprint IS NULL AND head.fingerprint IS NOT NULL
             LIMIT 1)
           UNION ALL
           (SELECT task, fingerprint, 3 FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task > head.task
             ORDER BY task, fingerprint LIMIT 1)
           ORDER BY place
           LIMIT 1) AS next
     WHERE head.number < %(groups)s
)
SELECT head.task, coalesce(head.fingerprint, ''), counted.runs, newest.error,
       duly_microseconds(oldest.finished_at), duly_microseconds(newest.finished_at),
       newest.id::text
  FROM head
 CROSS JOIN LATERAL (
       SELECT pg_catalog.count(*) AS runs
         FROM (
           (SELECT created_at, queue FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint = head.fingerprint
             ORDER BY id DESC LIMIT %(cap)s)
           UNION ALL
           (SELECT created_at, queue FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint IS NULL
               AND head.fingerprint IS NULL
             ORDER BY id DESC LIMIT %(cap)s)) AS dead
        WHERE (%(since)s::bigint IS NULL OR created_at >= duly_time(%(since)s::bigint))
          AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)) AS counted
 CROSS JOIN LATERAL (
           (SELECT finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint = head.fingerprint
             ORDER BY id LIMIT 1)
           UNION ALL
           (SELECT finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint IS NULL
               AND head.fingerprint IS NULL
             ORDER BY id LIMIT 1)) AS oldest
 CROSS JOIN LATERAL (
           (SELECT id, error, finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint = head.fingerprint
             ORDER BY id DESC LIMIT 1)
           UNION ALL
           (SELECT id, error, finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint IS NULL
               AND head.fingerprint IS NULL
             ORDER BY id DESC LIMIT 1)) AS newest
 WHERE counted.runs > 0 AND (%(task)s::text IS NULL OR head.task = %(task)s::text)
 ORDER BY counted.runs DESC, head.task, head.fingerprint
 LIMIT %(limit)s

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
