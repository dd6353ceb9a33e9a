-- carry: hand runs over to another engine when they are ready, and again if no worker claims them.
-- No statement joins a growing table with the rows that it picked. The reason is in claim.sql.

-- :name fresh
-- Guard: only queued rows that no other transaction is taking. In a queue with a limit, no more runs
-- are handed over than may be running. Both lanes of the queue share this limit.
WITH look AS MATERIALIZED (
    SELECT number FROM duly_look
), picked AS MATERIALIZED (
    SELECT run.id, turn.queue, free.room
      FROM look
     CROSS JOIN (VALUES ('carried'), ('carried-hold')) AS own(lane)
     CROSS JOIN LATERAL duly_queues_of(look.number, own.lane, '') AS turn
      LEFT JOIN LATERAL (
           SELECT paused, running_limit FROM duly_queues WHERE name = turn.queue
           OFFSET 0) AS known ON true
     CROSS JOIN LATERAL (
           SELECT CASE WHEN known.running_limit IS NULL THEN %(limit)s
                       ELSE least(%(limit)s, greatest(known.running_limit - (
                            SELECT pg_catalog.count(*) FROM duly_runs AS other
                             WHERE other.queue = turn.queue
                               AND (other.worker_id IS NOT NULL
                                    OR other.lane IN ('handed', 'handed-hold'))), 0)) END AS room
           OFFSET 0) AS free
     CROSS JOIN LATERAL (
           SELECT ready.id
             FROM duly_parts(look.number, own.lane, turn.queue) AS part
            CROSS JOIN LATERAL (
                  SELECT id
                    FROM duly_runs
                   WHERE state = 'queued' AND lane < '~'
                     AND lane = own.lane AND queue = turn.queue
                     AND (-priority, due_at) >= (part.first, part.due_at)
                     AND -priority < part.last
                     AND task = ANY (%(tasks)s::text[])
                     AND (expires_at IS NULL OR expires_at > duly_now())
                   ORDER BY -priority, due_at, id
                   LIMIT free.room
                     FOR UPDATE SKIP LOCKED) AS ready
            LIMIT free.room) AS run
     WHERE known.paused IS NOT TRUE
     LIMIT %(limit)s
), fitting AS (
    SELECT id
      FROM (SELECT id, room, pg_catalog.row_number() OVER (PARTITION BY queue) AS number
              FROM picked) AS numbered
     WHERE number <= room
), moved AS (
    UPDATE duly_runs AS run
       SET lane = pg_catalog.replace(lane, 'carried', 'handed')
     WHERE run.id = ANY (ARRAY(SELECT id FROM fitting)) AND run.state <> 'running'
    RETURNING run.id, claim_number, task, queue, priority
), noted AS (
    INSERT INTO duly_handed (run_id, task, times, stale_at)
    SELECT id, task, 1, duly_now() + %(stale)s::float8 * interval '1 microsecond' FROM moved
        ON CONFLICT (run_id) DO UPDATE SET times = 1, stale_at = excluded.stale_at
)
SELECT id::text, claim_number, task, queue, priority FROM moved

-- :name stale
-- It also deletes the marks of runs that no longer wait for their engine.
WITH due AS MATERIALIZED (
    SELECT mark.run_id, mark.times
      FROM pg_catalog.unnest(%(tasks)s::text[]) AS known(task)
     CROSS JOIN LATERAL (
           SELECT run_id, times
             FROM duly_handed
            WHERE task = known.task AND stale_at <= duly_now()
            ORDER BY stale_at
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED) AS mark
     LIMIT %(limit)s
), found AS MATERIALIZED (
    SELECT run.id, run.claim_number, run.task, run.queue, run.priority, due.times
      FROM due
     CROSS JOIN LATERAL (
           SELECT id, claim_number, task, queue, priority FROM duly_runs
            WHERE id = due.run_id AND state <> 'running' AND lane IN ('handed', 'handed-hold')
           OFFSET 0) AS run
), forgotten AS (
    DELETE FROM duly_handed
     WHERE run_id = ANY (ARRAY(SELECT run_id FROM due
                                WHERE run_id NOT IN (SELECT id FROM found)))
), again AS (
    UPDATE duly_handed
       SET times = times + 1,
           stale_at = duly_now() + interval '1 microsecond'
                      * CASE WHEN times + 1 = %(most)s::integer THEN %(longest)s::float8
                             ELSE least(%(stale)s::float8
                                        * pg_catalog.power(2::float8, least(times, 30)::float8),
                                        %(longest)s::float8) END
     WHERE run_id = ANY (ARRAY(SELECT id FROM found
                                WHERE (times < %(most)s::integer) IS NOT FALSE))
)
SELECT id::text, claim_number, task, queue, priority, times FROM found

-- :name drop_marks
-- Guard: only of runs that still wait for their engine. They are locked, so none can have been claimed
-- and queued again since it was found. If another transaction has locked a run, its mark stays, and is
-- found again.
WITH ending AS MATERIALIZED (
    SELECT id
      FROM duly_runs
     WHERE id = ANY (%(run_ids)s::uuid[])
       AND state <> 'running' AND lane IN ('handed', 'handed-hold')
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_handed
 WHERE run_id = ANY (ARRAY(SELECT id FROM ending))
RETURNING run_id::text

-- :name resume
-- A worker that received a message while the queue was paused has used it up. The message does not
-- count.
UPDATE duly_handed SET times = 1, stale_at = duly_now()
 WHERE run_id = ANY (ARRAY(SELECT run.id
                             FROM (VALUES ('handed'), ('handed-hold')) AS engine(lane)
                            CROSS JOIN LATERAL (
                                  SELECT id FROM duly_runs
                                   WHERE state = 'queued' AND duly_runs.lane < '~'
                                     AND duly_runs.lane = engine.lane AND queue = %(queue)s
                                  OFFSET 0) AS run))

-- :name unsent
-- A message that could not be sent does not count, unless it was the first: a mark counts one at least.
UPDATE duly_handed
   SET times = greatest(times - 1, 1),
       stale_at = duly_now() + %(after)s::float8 * interval '1 microsecond'
 WHERE run_id = ANY (%(run_ids)s::uuid[])

-- :name seen_to
SELECT DISTINCT seen.task, seen.lane
  FROM duly_registrations
 CROSS JOIN LATERAL pg_catalog.json_each_text(lanes::json) AS seen(task, lane)

-- :name carried_tasks
SELECT DISTINCT task FROM duly_carried_lanes

-- :name bring_back
-- Guard: only queued rows that no other transaction is taking. A message about one of them that
-- arrives later claims nothing. A run that must be held after a crash stays so.
WITH picked AS MATERIALIZED (
    SELECT run.id
      FROM pg_catalog.unnest(%(tasks)s::text[]) AS home(task)
     CROSS JOIN LATERAL (
           SELECT id
             FROM duly_runs
            WHERE worker_id IS NULL
              AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
              AND task = home.task
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED) AS run
     LIMIT %(limit)s
), moved AS (
    UPDATE duly_runs
       SET lane = CASE WHEN pg_catalog.right(lane, 5) = '-hold'
                       THEN pg_catalog.replace(
                            (%(lanes)s::text[])[pg_catalog.array_position(%(tasks)s::text[], task)],
                                    '-hold', '') || '-hold'
                       ELSE (%(lanes)s::text[])[pg_catalog.array_position(%(tasks)s::text[], task)] END
     WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND state <> 'running'
    RETURNING id
), forgotten AS (
    DELETE FROM duly_handed WHERE run_id = ANY (ARRAY(SELECT id FROM moved))
)
SELECT pg_catalog.count(*) FROM moved

-- :name send_away
-- Guard: as above. It starts where a claim would start, at some queues at a time, as parking does.
-- It also returns the queue after which it began, and the one after which the next op must continue.
WITH look AS MATERIALIZED (
    SELECT number, coalesce((SELECT reached FROM duly_duties WHERE name = 'sent away'), '') AS after
      FROM duly_look
), head AS MATERIALIZED (
    SELECT next.queue, next.lane
      FROM look
     CROSS JOIN LATERAL duly_next_lanes(look.number, look.after, %(queues)s::bigint) AS next
), found AS MATERIALIZED (
    SELECT run.id
      FROM look
     CROSS JOIN head
     CROSS JOIN LATERAL duly_first_runs(look.number, head.lane, head.queue, %(limit)s::bigint) AS run
     WHERE head.lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')
       AND run.task = ANY (%(tasks)s::text[])
     LIMIT %(limit)s
), chosen AS MATERIALIZED (
    SELECT id
      FROM duly_runs
     WHERE id = ANY (ARRAY(SELECT id FROM found))
       AND state <> 'running'
       AND lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')
       FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE duly_runs
       SET lane = CASE WHEN pg_catalog.right(lane, 5) = '-hold'
                       THEN pg_catalog.replace(
                            (%(lanes)s::text[])[pg_catalog.array_position(%(tasks)s::text[], task)],
                                    '-hold', '') || '-hold'
                       ELSE (%(lanes)s::text[])[pg_catalog.array_position(%(tasks)s::text[], task)] END
     WHERE id = ANY (ARRAY(SELECT id FROM chosen)) AND state <> 'running'
    RETURNING id
)
SELECT (SELECT pg_catalog.count(*) FROM moved),
       (SELECT after FROM look),
       coalesce((SELECT pg_catalog.min(last)
                   FROM (SELECT pg_catalog.max(queue) AS last
                           FROM head
                          GROUP BY CASE WHEN lane < '~' THEN lane END
                         HAVING pg_catalog.count(*) = %(queues)s::bigint) AS full_lane), '')
