-- carry: hand runs over to another engine, once they are ready and again when nobody claims them.

-- :name fresh
-- Guard: only queued rows that nobody else is taking. One statement for SQLite's lanes, fresh, hand
-- and note. Of a queue with a limit, no more is handed over than may be running.
WITH picked AS MATERIALIZED (
    SELECT run.id
      FROM duly_ready_lanes AS turn
     CROSS JOIN LATERAL (
           SELECT id
             FROM duly_runs
            WHERE state = 'queued' AND queue = turn.queue AND lane = turn.lane
              AND task = ANY (%(tasks)s::text[])
              AND (expires_at IS NULL OR expires_at > duly_now())
            ORDER BY priority DESC, due_at, id
            LIMIT CASE WHEN turn.running_limit IS NULL THEN %(limit)s
                       ELSE least(%(limit)s, greatest(turn.running_limit - (
                            SELECT count(*) FROM duly_runs AS other
                             WHERE other.queue = turn.queue
                               AND (other.worker_id IS NOT NULL
                                    OR other.lane IN ('handed', 'handed-hold'))), 0)) END
              FOR UPDATE SKIP LOCKED) AS run
     WHERE NOT turn.paused AND turn.lane IN ('carried', 'carried-hold')
     LIMIT %(limit)s
), moved AS (
    UPDATE duly_runs AS run
       SET lane = replace(lane, 'carried', 'handed')
      FROM picked
     WHERE run.id = picked.id AND run.state = 'queued'
    RETURNING run.id, claim_number, task, queue, priority
), noted AS (
    INSERT INTO duly_handed (run_id, task, times, stale_at)
    SELECT id, task, 1, duly_now() + %(stale)s::bigint * interval '1 microsecond' FROM moved
        ON CONFLICT (run_id) DO UPDATE SET times = 1, stale_at = excluded.stale_at
)
SELECT id::text, claim_number, task, queue, priority FROM moved

-- :name stale
-- One statement for SQLite's stale, note_again and forget.
WITH due AS MATERIALIZED (
    SELECT mark.run_id, mark.times
      FROM unnest(%(tasks)s::text[]) AS known(task)
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
      JOIN duly_runs AS run ON run.id = due.run_id
     WHERE run.state <> 'running' AND run.lane IN ('handed', 'handed-hold')
), forgotten AS (
    DELETE FROM duly_handed AS handed
     USING due
     WHERE handed.run_id = due.run_id AND due.run_id NOT IN (SELECT id FROM found)
), again AS (
    UPDATE duly_handed AS handed
       SET times = handed.times + 1,
           stale_at = duly_now() + interval '1 microsecond'
                      * CASE WHEN found.times + 1 = %(most)s::integer THEN %(longest)s::bigint
                             ELSE least(%(stale)s::bigint * 2 ^ least(found.times, 30),
                                        %(longest)s::bigint) END
      FROM found
     WHERE handed.run_id = found.id AND (found.times < %(most)s::integer) IS NOT FALSE
)
SELECT id::text, claim_number, task, queue, priority, times FROM found

-- :name worn
-- Guard: only runs that wait for their engine still. Their marks go with them; one whose run somebody
-- else holds just now is found again.
WITH ending AS MATERIALIZED (
    SELECT id
      FROM duly_runs
     WHERE id = ANY (%(run_ids)s::uuid[])
       AND state <> 'running' AND lane IN ('handed', 'handed-hold')
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_handed AS handed
 USING ending
 WHERE handed.run_id = ending.id
RETURNING handed.run_id::text, handed.times

-- :name resume
-- Whoever was brought one while its queue was paused has used up the message, and it does not count.
UPDATE duly_handed SET times = 1, stale_at = duly_now()
 WHERE run_id IN (SELECT id FROM duly_runs
                   WHERE state = 'queued' AND queue = %(queue)s
                     AND lane IN ('handed', 'handed-hold'))

-- :name unsent
-- A sending that failed does not count, unless it was the first: a mark stands for one at least.
UPDATE duly_handed
   SET times = greatest(times - 1, 1),
       stale_at = duly_now() + %(after)s::bigint * interval '1 microsecond'
 WHERE run_id = ANY (%(run_ids)s::uuid[])

-- :name seen_to
SELECT DISTINCT seen.task, seen.lane
  FROM duly_workers
 CROSS JOIN LATERAL json_each_text(lanes::json) AS seen(task, lane)
 WHERE state = 'live'

-- :name carried_tasks
SELECT DISTINCT task FROM duly_carried_lanes

-- :name bring_back
-- Guard: only queued rows that nobody else is taking. A message about one of them, if it comes yet,
-- claims nothing. One statement for SQLite's bring_back, move and forget. What was to be held after
-- a crash stays so.
WITH picked AS MATERIALIZED (
    SELECT run.id, home.lane
      FROM unnest(%(tasks)s::text[], %(lanes)s::text[]) AS home(task, lane)
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
    UPDATE duly_runs AS run
       SET lane = CASE WHEN right(run.lane, 5) = '-hold'
                       THEN replace(picked.lane, '-hold', '') || '-hold'
                       ELSE picked.lane END
      FROM picked
     WHERE run.id = picked.id AND run.state <> 'running'
    RETURNING run.id
), forgotten AS (
    DELETE FROM duly_handed USING moved WHERE duly_handed.run_id = moved.id
)
SELECT count(*) FROM moved

-- :name send_away
-- Guard: as above. One statement for SQLite's own_lanes, send_away and move. Looks where a claim
-- would begin to walk, as parking does.
WITH found AS MATERIALIZED (
    SELECT run.id, home.lane
      FROM duly_ready_lanes AS head
     CROSS JOIN LATERAL (
           SELECT id, task
             FROM duly_runs
            WHERE state = 'queued' AND queue = head.queue AND lane = head.lane
            ORDER BY priority DESC, due_at, id
            LIMIT %(limit)s) AS run
      JOIN unnest(%(tasks)s::text[], %(lanes)s::text[]) AS home(task, lane)
        ON home.task = run.task
     WHERE head.lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')
), chosen AS MATERIALIZED (
    SELECT run.id, found.lane
      FROM found
      JOIN duly_runs AS run ON run.id = found.id
     WHERE run.state <> 'running'
       AND run.lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')
     LIMIT %(limit)s
       FOR UPDATE OF run SKIP LOCKED
)
UPDATE duly_runs AS run
   SET lane = CASE WHEN right(run.lane, 5) = '-hold'
                   THEN replace(chosen.lane, '-hold', '') || '-hold'
                   ELSE chosen.lane END
  FROM chosen
 WHERE run.id = chosen.id AND run.state <> 'running'
