-- tick: bounded upkeep of the tables that claims read. Usually one worker at a time does it (lock_duty,
-- take_turn). A worker may also tick without the lock, so rows that another transaction has locked
-- are skipped.
-- No statement joins a growing table with the rows that it picked. The reason is in claim.sql.

-- :name lock_duty
-- Held until the transaction ends. No session waits for this lock. The server ends a transaction that
-- hangs, which releases the lock.
SELECT pg_catalog.pg_try_advisory_xact_lock(
           pg_catalog.hashtextextended(duly_channel() || ' ' || %(duty)s, 1685417083)),
       pg_catalog.set_config('statement_timeout', %(longest)s, true)

-- :name take_turn
-- The same for a duty with an interval. It also records the time, in the transaction of the duty. This
-- is the server's own time, because tests may stop duly's clock. A time in the future means that the
-- server's clock was set back. CASE ensures that the lock is taken only if the interval is over.
WITH due AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT 1 FROM duly_duties
                              WHERE name = %(duty)s AND done_at <= pg_catalog.statement_timestamp()
                                AND done_at > pg_catalog.statement_timestamp()
                                              - %(seconds)s::float8 * interval '1 second')
                THEN false
                ELSE pg_catalog.pg_try_advisory_xact_lock(
                         pg_catalog.hashtextextended(duly_channel() || ' ' || %(duty)s, 1685417083))
           END AS is_mine,
           pg_catalog.set_config('statement_timeout', %(longest)s, true)
), taken AS (
    INSERT INTO duly_duties (name, done_at)
    SELECT %(duty)s, pg_catalog.statement_timestamp() FROM due WHERE is_mine
        ON CONFLICT (name) DO UPDATE
       SET done_at = excluded.done_at
        -- Another worker may have done it after this statement's snapshot was taken.
     WHERE NOT (duly_duties.done_at > excluded.done_at - %(seconds)s::float8 * interval '1 second'
                AND duly_duties.done_at <= excluded.done_at)
    RETURNING true
)
SELECT EXISTS (SELECT FROM taken)

-- :name unpark
WITH registered AS MATERIALIZED (
    SELECT pg_catalog.json_array_elements_text(tasks::json) COLLATE "C" AS task FROM duly_registrations
), free AS MATERIALIZED (
    SELECT parked, queue, task
      FROM duly_parked_lanes
     WHERE CASE parked
           WHEN 'paused' THEN NOT paused
           ELSE task IN (SELECT registered.task FROM registered)
           END
), chosen AS MATERIALIZED (
    SELECT run.id
      FROM free
     CROSS JOIN LATERAL (
           SELECT id FROM duly_waiting
            WHERE parked = free.parked AND queue = free.queue AND task = free.task
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED) AS run
), lowered AS (
    -- The runs keep their times, which are below the floor.
    UPDATE duly_floors
       SET due_at = '-infinity'
     WHERE look = (SELECT number FROM duly_look) AND lane = '' AND queue = 'waiting'
       AND EXISTS (SELECT 1 FROM chosen)
)
UPDATE duly_waiting
   SET parked = NULL
 WHERE id = ANY (ARRAY(SELECT id FROM chosen))

-- :name promote
-- It ends with the run whose arguments reach a number of bytes, as park and expire do.
WITH due AS MATERIALIZED (
    SELECT id, pg_catalog.octet_length(arguments) AS bytes FROM duly_waiting
     WHERE parked IS NULL AND due_at <= duly_now() AND due_at >= duly_floor_of('waiting')
     ORDER BY due_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT id
      FROM (SELECT id, pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
              FROM due) AS run
     WHERE bytes_before < %(bytes)s::bigint
), moved AS (
    DELETE FROM duly_waiting AS run
     WHERE run.id = ANY (ARRAY(SELECT id FROM chosen))
    RETURNING run.id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, key, tags, arguments
)
INSERT INTO duly_runs
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM moved

-- :name park
-- Reads the first runs of some queues, where a claim would start, and moves runs away that cannot run:
-- runs of paused queues and of unregistered tasks. The next look starts after these queues (reached).
-- A run that was handed over is handed over again. The key in a limited lane may contain that word.
WITH registered AS MATERIALIZED (
    SELECT pg_catalog.json_array_elements_text(tasks::json) COLLATE "C" AS task FROM duly_registrations
), look AS MATERIALIZED (
    SELECT number, coalesce((SELECT reached FROM duly_duties WHERE name = 'parked'), '') AS after
      FROM duly_look
), head AS MATERIALIZED (
    SELECT next.queue, next.lane
      FROM look
     CROSS JOIN LATERAL duly_next_lanes(look.number, look.after, %(queues)s::bigint) AS next
), stuck AS MATERIALIZED (
    SELECT run.id, known.paused
      FROM look
     CROSS JOIN head
      LEFT JOIN LATERAL (
           SELECT paused FROM duly_queues WHERE name = head.queue
           OFFSET 0) AS known ON true
     CROSS JOIN LATERAL duly_first_runs(look.number, head.lane, head.queue, %(limit)s::bigint) AS run
     WHERE known.paused OR run.task NOT IN (SELECT registered.task FROM registered)
     LIMIT %(limit)s
), found AS MATERIALIZED (
    SELECT id, pg_catalog.octet_length(arguments) AS bytes
      FROM duly_runs
     WHERE id = ANY (ARRAY(SELECT id FROM stuck)) AND state <> 'running'
       FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT id
      FROM (SELECT id, pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
              FROM found) AS run
     WHERE bytes_before < %(bytes)s::bigint
), moved AS (
    DELETE FROM duly_runs AS run
     WHERE run.id = ANY (ARRAY(SELECT id FROM chosen))
    RETURNING run.id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, key, tags, arguments
), parked AS (
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
         created_at, due_at, expires_at, parked, key, tags, arguments)
    SELECT id, task, queue,
           CASE WHEN lane < '~' THEN pg_catalog.replace(lane, 'handed', 'carried') ELSE lane END,
           priority, generation, claim_number, attempt, retries_used, crashes, created_at, due_at, expires_at,
           CASE WHEN id IN (SELECT stuck.id FROM stuck WHERE stuck.paused) THEN 'paused'
                ELSE 'unregistered' END,
           key, tags, arguments
      FROM moved
)
SELECT (SELECT pg_catalog.count(*) FROM moved),
       (SELECT pg_catalog.count(*) FROM chosen) < (SELECT pg_catalog.count(*) FROM found),
       (SELECT after FROM look),
       coalesce((SELECT pg_catalog.min(last)
                   FROM (SELECT pg_catalog.max(queue) AS last
                           FROM head
                          GROUP BY CASE WHEN lane < '~' THEN lane END
                         HAVING pg_catalog.count(*) = %(queues)s::bigint) AS full_lane), '')

-- :name note_reached
-- Records where a look at some queues ended, at most once per second: old versions of the row stay as
-- long as a transaction holds a snapshot. Two workers do not wait for each other; only one writes.
INSERT INTO duly_duties (name, done_at, reached)
SELECT %(name)s, pg_catalog.statement_timestamp(), %(reached)s
 WHERE pg_catalog.pg_try_advisory_xact_lock(
           pg_catalog.hashtextextended(duly_channel() || ' ' || %(name)s, 1685417083))
    ON CONFLICT (name) DO UPDATE
   SET done_at = excluded.done_at, reached = excluded.reached
 WHERE NOT (duly_duties.done_at > excluded.done_at - interval '1 second'
            AND duly_duties.done_at <= excluded.done_at)

-- :name expire
-- Ends runs that expired before they started.
WITH old_ready AS MATERIALIZED (
    SELECT id, pg_catalog.octet_length(arguments) AS bytes FROM duly_runs
     WHERE state = 'queued' AND expires_at IS NOT NULL AND expires_at <= duly_now()
       AND expires_at >= duly_floor_of('expiring')
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), old_waiting AS MATERIALIZED (
    SELECT id, pg_catalog.octet_length(arguments) AS bytes FROM duly_waiting
     WHERE expires_at IS NOT NULL AND expires_at <= duly_now()
       AND expires_at >= duly_floor_of('expiring')
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), old AS MATERIALIZED (
    SELECT id, pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
      FROM (TABLE old_ready UNION ALL TABLE old_waiting) AS run
), chosen AS MATERIALIZED (
    SELECT id FROM old WHERE bytes_before < %(bytes)s::bigint
), ready AS (
    DELETE FROM duly_runs AS run
     WHERE run.id = ANY (ARRAY(SELECT id FROM old_ready WHERE id IN (SELECT id FROM chosen)))
    RETURNING run.id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, key, tags, arguments
), waiting AS (
    DELETE FROM duly_waiting AS run
     WHERE run.id = ANY (ARRAY(SELECT id FROM old_waiting WHERE id IN (SELECT id FROM chosen)))
    RETURNING run.id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, key, tags, arguments
), gone AS (
    SELECT * FROM ready UNION ALL SELECT * FROM waiting
), kept AS (
    INSERT INTO duly_history
        (id, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
         retries_used, crashes, created_at, due_at, expires_at, finished_at, key, tags, arguments)
    SELECT id, task, queue, lane, 'cancelled', 'expired', priority, generation, claim_number,
           attempt, retries_used, crashes, created_at, due_at, expires_at, duly_now(), key, tags,
           arguments
      FROM gone
), expiring AS (
    UPDATE duly_keys
       SET expires_at = duly_now()
                        + CASE WHEN active_only THEN 0 ELSE ttl END::float8 * interval '1 microsecond'
     WHERE run_id = ANY (ARRAY(SELECT id FROM gone WHERE key IS NOT NULL))
)
SELECT (SELECT pg_catalog.count(*) FROM gone),
       (SELECT pg_catalog.count(*) FROM chosen) < (SELECT pg_catalog.count(*) FROM old)

-- :name next_due
-- It also returns how many dead rows the claims must step over. vacuum.py uses this number.
SELECT duly_microseconds(pg_catalog.min(due_at)) - duly_microseconds(duly_now()),
       pg_catalog.pg_stat_get_dead_tuples('duly_runs'::regclass)
  FROM duly_waiting
 WHERE parked IS NULL AND due_at >= duly_floor_of('waiting')
