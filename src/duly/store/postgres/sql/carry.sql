-- carry: hand runs over to another engine, once they are ready and again when nobody claims them.

-- :name fresh
-- Guard: only queued rows that nobody else is taking. One statement for SQLite's lanes, fresh, hand
-- and note.
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
            LIMIT %(limit)s
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
    INSERT INTO duly_handed (run_id, times, stale_at)
    SELECT id, 1, duly_now() + %(stale)s::bigint * interval '1 microsecond' FROM moved
        ON CONFLICT (run_id) DO UPDATE SET times = 1, stale_at = excluded.stale_at
)
SELECT id::text, claim_number, task, queue, priority FROM moved

-- :name stale
-- One statement for SQLite's stale, note_again, put_off and forget.
WITH due AS MATERIALIZED (
    SELECT run_id, times
      FROM duly_handed
     WHERE stale_at <= duly_now()
     ORDER BY stale_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT run.id, run.claim_number, run.task, run.queue, run.priority, due.times,
           run.task = ANY (%(tasks)s::text[]) AS is_known
      FROM due
      JOIN duly_runs AS run ON run.id = due.run_id
     WHERE run.state = 'queued' AND run.lane IN ('handed', 'handed-hold')
), forgotten AS (
    DELETE FROM duly_handed AS handed
     USING due
     WHERE handed.run_id = due.run_id AND due.run_id NOT IN (SELECT id FROM found)
), again AS (
    UPDATE duly_handed AS handed
       SET times = handed.times + found.is_known::integer,
           stale_at = duly_now() + interval '1 microsecond'
                      * CASE WHEN found.is_known
                             THEN least(%(stale)s::bigint * 2 ^ least(found.times, 30),
                                        %(longest)s::bigint)
                             ELSE %(stale)s::bigint END
      FROM found
     WHERE handed.run_id = found.id
)
SELECT id::text, claim_number, task, queue, priority FROM found WHERE is_known

-- :name resume
-- Whoever was brought one while its queue was paused has used up the message.
UPDATE duly_handed SET stale_at = duly_now()
 WHERE run_id IN (SELECT id FROM duly_runs
                   WHERE state = 'queued' AND queue = %(queue)s
                     AND lane IN ('handed', 'handed-hold'))

-- :name put_off
UPDATE duly_handed
   SET stale_at = duly_now() + %(after)s::bigint * interval '1 microsecond'
 WHERE run_id = ANY (%(run_ids)s::uuid[])
