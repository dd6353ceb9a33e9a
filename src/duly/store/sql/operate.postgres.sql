-- operate: acts of operators on runs and queues. Each act is recorded in the same transaction.
-- A statement that finds a run by its id compares the state in a form that matches no partial index: IS
-- NOT FALSE, since no state is NULL. Otherwise the planner reads all of that index if the index was
-- empty when it was last counted.

-- :part change
-- Counts that an operator takes the run `old` out of its final state, as `finish` counted its end. An end
-- without an attempt was not counted. On SQLite this is settle.tally_change.
    INSERT INTO duly_tallies
        (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
    SELECT duly_microseconds(finished_at), 0, task, queue, %(change)s::text || ' ' || state,
           duly_bound(lasted), duly_bound(delay), 1, elapsed, delay, lasted
      FROM (SELECT finished_at, task, queue, state,
                   duly_microseconds(finished_at) - duly_microseconds(started_at) AS elapsed,
                   greatest(duly_microseconds(started_at) - duly_microseconds(due_at), 0) AS delay,
                   duly_microseconds(finished_at) - duly_microseconds(least(started_at,
                       (SELECT pg_catalog.min(attempt.started_at)
                          FROM duly_attempts AS attempt
                         WHERE attempt.run_id = old.id
                           AND attempt.generation = old.generation))) AS lasted
              FROM old
             WHERE started_at IS NOT NULL) AS tally

-- :name record
INSERT INTO duly_acts (at, actor, act, subject, reason)
VALUES (duly_now(), %(actor)s, %(act)s, %(subject)s, %(reason)s)

-- :name state
SELECT state FROM duly_every_run WHERE id = %(run_id)s

-- :name ask_cancel
UPDATE duly_runs SET cancel_requested = true WHERE id = %(run_id)s AND state = 'running'

-- :name end_queued
-- Guard: only a run that no worker runs can end without an attempt. One statement, so that no other
-- transaction sees the run in two tables or in none.
WITH ready AS (
    DELETE FROM duly_runs
     WHERE id = %(run_id)s AND state <> 'running'
    RETURNING id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, key, tags, arguments
), waiting AS (
    DELETE FROM duly_waiting
     WHERE id = %(run_id)s
    RETURNING id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, key, tags, arguments
), gone AS (
    SELECT * FROM ready UNION ALL SELECT * FROM waiting
), kept AS (
    INSERT INTO duly_history
        (id, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
         retries_used, crashes, created_at, due_at, expires_at, finished_at, key, tags, arguments,
         error)
    SELECT id, task, queue, lane, %(state)s, %(cause)s, priority, generation, claim_number,
           attempt, retries_used, crashes, created_at, due_at, expires_at, duly_now(), key, tags,
           arguments, %(error)s
      FROM gone
), expiring AS (
    UPDATE duly_keys
       SET expires_at = duly_now()
                        + CASE WHEN active_only THEN 0 ELSE ttl END::float8 * interval '1 microsecond'
     WHERE run_id = ANY (ARRAY(SELECT id FROM gone WHERE key IS NOT NULL))
)
SELECT id FROM gone

-- :name queued
-- A run that no worker runs, with what a reschedule depends on.
SELECT queue, lane, claim_number, duly_microseconds(due_at), duly_microseconds(expires_at),
       (SELECT name FROM duly_steps
         WHERE run_id = %(run_id)s AND kind <> 'step' AND NOT done
           AND EXISTS (SELECT 1 FROM duly_attempts AS last
                        WHERE last.run_id = %(run_id)s AND last.claim_number = run.claim_number
                          AND last.outcome = 'suspended')
         ORDER BY began_at DESC LIMIT 1),
       duly_microseconds(duly_now())
  FROM (SELECT queue, lane, claim_number, due_at, expires_at
          FROM duly_runs WHERE id = %(run_id)s AND state <> 'running'
        UNION ALL
        SELECT queue, lane, claim_number, due_at, expires_at
          FROM duly_waiting WHERE id = %(run_id)s) AS run

-- :name reschedule
-- Guard: a run that no worker runs, as it was read: not claimed or sent to its engine since, and not
-- rescheduled. One statement, so that no other transaction sees the run in two tables or in none. If
-- its queue is paused or no worker registers its task, a tick parks it again.
WITH ready AS (
    DELETE FROM duly_runs
     WHERE id = %(run_id)s AND state <> 'running' AND claim_number = %(claim_number)s
       AND lane = %(lane)s AND due_at = duly_time(%(due_before)s::bigint)
    RETURNING id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, expires_at, key, tags, arguments
), waiting AS (
    DELETE FROM duly_waiting
     WHERE id = %(run_id)s AND claim_number = %(claim_number)s
       AND lane = %(lane)s AND due_at = duly_time(%(due_before)s::bigint)
    RETURNING id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, expires_at, key, tags, arguments
), run AS (
    SELECT id, task, coalesce(%(queue)s::text, queue) AS queue, lane,
           coalesce(%(priority)s::integer, priority) AS priority, generation, claim_number, attempt,
           retries_used, crashes, created_at, duly_time(%(due_at)s::bigint) AS due_at, expires_at, key,
           tags, arguments
      FROM (TABLE ready UNION ALL TABLE waiting) AS old
), due AS (
    INSERT INTO duly_runs
        (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
         created_at, due_at, expires_at, key, tags, arguments)
    SELECT * FROM run WHERE %(is_due)s
), later AS (
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
         created_at, due_at, expires_at, key, tags, arguments)
    SELECT * FROM run WHERE NOT %(is_due)s
)
SELECT id FROM run

-- :name limit_wait
-- Sets how long later statements of this transaction wait for a lock, and returns the time before. On
-- SQLite one transaction writes at a time.
SELECT pg_catalog.current_setting('lock_timeout'),
       pg_catalog.set_config('lock_timeout', %(limit)s, true)

-- :name hold_key_again
-- Guard: another run that took the key keeps it while the key is in force. The history row is locked,
-- so that `revive` finds it unchanged. If the key was forgotten, it is held without the fingerprint of
-- its arguments until the run ends. A run has its key under each name of its task. All transactions
-- take keys in the order of the names.
WITH old AS MATERIALIZED (
    SELECT id, task, key
      FROM duly_history
     WHERE id = %(run_id)s AND key IS NOT NULL
       AND (state = ANY (%(states)s::text[])) IS NOT FALSE
       AND (%(generation)s::integer IS NULL OR generation = %(generation)s::integer)
       FOR UPDATE
)
INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
SELECT name, key, id, '', NULL, true
  FROM old
 CROSS JOIN LATERAL (
       SELECT DISTINCT name COLLATE "C" AS name
         FROM pg_catalog.unnest(pg_catalog.array_prepend(old.task, %(other_names)s::text[])) AS name
        ORDER BY 1) AS names
    ON CONFLICT (task, key) DO UPDATE
   SET run_id = excluded.run_id, expires_at = NULL,
       fingerprint = CASE WHEN duly_keys.run_id = excluded.run_id THEN duly_keys.fingerprint
                          ELSE '' END,
       ttl = CASE WHEN duly_keys.run_id = excluded.run_id THEN duly_keys.ttl END,
       active_only = duly_keys.run_id <> excluded.run_id OR duly_keys.active_only
 WHERE duly_keys.run_id = excluded.run_id OR duly_keys.expires_at <= duly_now()

-- :name live_holder
-- The live run, if any, that has the key of this final run.
SELECT id, state
  FROM (SELECT known.run_id::text AS id,
               coalesce((SELECT state FROM duly_runs WHERE id = known.run_id),
                        (SELECT 'queued' FROM duly_waiting WHERE id = known.run_id)) AS state
          FROM duly_history AS old
         CROSS JOIN LATERAL (
               SELECT run_id FROM duly_keys
                WHERE duly_keys.task = ANY (pg_catalog.array_prepend(old.task,
                                                                  %(other_names)s::text[]))
                  AND duly_keys.key = old.key AND duly_keys.run_id <> old.id
               OFFSET 0) AS known
         WHERE old.id = %(run_id)s) AS holder
 WHERE state IS NOT NULL

-- :name revive
-- The last attempt moves to the earlier attempts, since its history row is deleted. The answer is the
-- state that the run was in.
WITH old AS (
    DELETE FROM duly_history
     WHERE id = %(run_id)s
       AND (state = ANY (%(states)s::text[])) IS NOT FALSE
       AND (%(generation)s::integer IS NULL OR generation = %(generation)s::integer)
    RETURNING id, task, queue, lane, state, outcome, priority, generation, claim_number, attempt,
              created_at, due_at, worker_id, started_at, finished_at, key, tags, arguments, error,
              traceback
), changed AS (
    :part(change)
), again AS (
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
         created_at, due_at, key, tags, arguments)
    SELECT id, task, queue,
           coalesce(%(lane)s, CASE WHEN lane < '~' THEN pg_catalog.replace(lane, 'handed', 'carried')
                                   ELSE lane END),
           priority, generation + 1, claim_number,
           1, 0, 0, created_at,
           duly_now() + %(delay)s::float8 * interval '1 microsecond', key, tags,
           coalesce(%(arguments)s, arguments)
      FROM old
), last_attempt AS (
    INSERT INTO duly_attempts
        (run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
         error, traceback)
    SELECT id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
           error, traceback
      FROM old
     WHERE outcome IS NOT NULL
        ON CONFLICT (run_id, claim_number) DO NOTHING
)
SELECT state FROM old

-- :name discard
-- The row is locked and read first, since the count needs the state that the UPDATE overwrites.
WITH old AS MATERIALIZED (
    SELECT id, task, queue, state, generation, due_at, started_at, finished_at
      FROM duly_history
     WHERE id = %(run_id)s AND (state NOT IN ('succeeded', 'cancelled')) IS NOT FALSE
       FOR UPDATE
), changed AS (
    :part(change)
)
UPDATE duly_history
   SET state = 'cancelled', cause = 'discarded'
 WHERE id = ANY (ARRAY(SELECT id FROM old))

-- :name pause
INSERT INTO duly_queues (name, paused) VALUES (%(queue)s, %(paused)s)
    ON CONFLICT (name) DO UPDATE SET paused = excluded.paused

-- :name limit
-- The lock is that of `claim.lock_limit`: a claim that counted under the old limit is committed before
-- the new limit is written.
WITH locked AS MATERIALIZED (
    SELECT pg_catalog.pg_advisory_xact_lock(
               duly_key_lock(' limit', 'queue ' || %(queue)s::text))
)
INSERT INTO duly_queues (name, paused, running_limit)
SELECT %(queue)s::text, false, %(limit)s::integer FROM locked
    ON CONFLICT (name) DO UPDATE SET running_limit = excluded.running_limit

-- :name bound
INSERT INTO duly_queues (name, paused, max_size) VALUES (%(queue)s, false, %(max_size)s)
    ON CONFLICT (name) DO UPDATE SET max_size = excluded.max_size

-- :name release_of_key
-- The run no longer has to be kept for its key.
UPDATE duly_history SET kept_until = NULL
 WHERE id = (SELECT run_id FROM duly_keys
              WHERE task = %(task)s AND key = %(key)s
                AND (%(run_id)s::uuid IS NULL OR run_id = %(run_id)s::uuid))

-- :name reset_key
-- Deletes the key under all names that its run has it by.
DELETE FROM duly_keys
 WHERE run_id = (SELECT held.run_id FROM duly_keys AS held
                  WHERE held.task = %(task)s AND held.key = %(key)s
                    AND (%(run_id)s::uuid IS NULL OR held.run_id = %(run_id)s::uuid)
                 OFFSET 0)
