-- settle: record how attempts ended.
-- Guard: claim_number only grows, so a worker that lost its claim matches no row.
-- The ids are sorted and unique. width_bucket() finds a run's position among them, and so its claim.
-- No statement joins a growing table with these rows. If the statistics show an empty table, the
-- planner would read the whole table for each row. An array of ids leaves no other plan. A FULL JOIN of
-- two sets of rows is always hashed or merged, for any estimated size.

-- :name finish
-- One statement moves the rows, and all writes derive from the rows that the fenced DELETE returned.
-- SQLite cannot write inside WITH, and does the same in three statements.
WITH gone AS (
    DELETE FROM duly_runs AS run
     WHERE run.id = ANY (%(ids)s::uuid[])
       AND run.claim_number
           = (%(claim_numbers)s::bigint[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])]
       AND run.state = 'running'
    RETURNING id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
              crashes, created_at, due_at, expires_at, worker_id, key, tags, arguments
), ended AS MATERIALIZED (
    SELECT gone.*, ending.state, ending.cause, ending.outcome, ending.elapsed, ending.result,
           ending.error, ending.traceback, ending.fingerprint,
           duly_now() - ending.elapsed::float8 * interval '1 microsecond' AS started_at
      FROM gone
      FULL JOIN unnest(%(ids)s::uuid[], %(states)s::text[], %(causes)s::text[],
                       %(outcomes)s::text[], %(elapsed)s::bigint[], %(results)s::text[],
                       %(errors)s::text[], %(tracebacks)s::text[], %(fingerprints)s::text[])
           AS ending(id, state, cause, outcome, elapsed, result, error, traceback, fingerprint)
        ON ending.id = gone.id
), kept AS (
    INSERT INTO duly_history
        (id, task, queue, lane, state, cause, outcome, priority, generation, claim_number, attempt,
         retries_used, crashes, created_at, due_at, expires_at, worker_id, started_at, finished_at,
         key, tags, arguments, result, error, traceback, fingerprint)
    SELECT id, task, queue, lane, state, cause, outcome, priority, generation, claim_number, attempt,
           retries_used, crashes, created_at, due_at, expires_at, worker_id, started_at, duly_now(),
           key, tags, arguments, result, error, traceback, fingerprint
      FROM ended
     WHERE id IS NOT NULL
), tallied AS (
    -- A run lasts from its first start, before all other attempts of its generation, to its end.
    INSERT INTO duly_tallies
        (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
    SELECT duly_microseconds(duly_now()), 0, task, queue, state, duly_bound(lasted),
           duly_bound(delay), pg_catalog.count(*), pg_catalog.sum(elapsed), pg_catalog.sum(delay),
           pg_catalog.sum(lasted)
      FROM (SELECT task, queue, state, elapsed,
                   greatest(duly_microseconds(started_at) - duly_microseconds(due_at), 0) AS delay,
                   CASE WHEN claim_number = 1 THEN elapsed
                        ELSE greatest(elapsed, duly_microseconds(duly_now()) - duly_microseconds(
                             (SELECT pg_catalog.min(attempt.started_at)
                                FROM duly_attempts AS attempt
                               WHERE attempt.run_id = ended.id
                                 AND attempt.generation = ended.generation))) END AS lasted
              FROM ended
             WHERE id IS NOT NULL) AS tally
     GROUP BY task, queue, state, duly_bound(lasted), duly_bound(delay)
), expiring AS (
    UPDATE duly_keys
       SET expires_at = duly_now()
                        + CASE WHEN active_only THEN 0 ELSE ttl END::float8 * interval '1 microsecond'
     WHERE run_id = ANY (ARRAY(SELECT id FROM gone WHERE key IS NOT NULL))
)
SELECT pg_catalog.count(*) FROM gone

-- :name requeue
-- The rows are locked and read first, since an attempt's record needs values that the UPDATE
-- overwrites. A run with a requested cancel stays unchanged, and the caller must decide again.
-- Expiry ends only runs that never started, so a run with a recorded attempt no longer expires.
WITH locked AS MATERIALIZED (
    SELECT id, task, queue, priority, generation, claim_number, attempt, retries_used, crashes,
           created_at, due_at, expires_at, worker_id, key, tags, arguments
      FROM duly_runs AS run
     WHERE run.id = ANY (%(ids)s::uuid[])
       AND run.claim_number
           = (%(claim_numbers)s::bigint[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])]
       AND run.state = 'running'
       AND NOT run.cancel_requested
     ORDER BY run.id
       FOR UPDATE
), held AS MATERIALIZED (
    SELECT locked.id, locked.task, locked.queue, op.lane, locked.priority, locked.generation,
           locked.claim_number, locked.attempt AS attempt_before, op.attempt, op.retries_used,
           op.crashes, locked.created_at,
           CASE WHEN op.after > 0 THEN duly_now() + op.after::float8 * interval '1 microsecond'
                ELSE locked.due_at END AS due_at,
           CASE WHEN NOT op.recorded THEN locked.expires_at END AS expires_at, locked.worker_id,
           locked.key, locked.tags, locked.arguments, op.after, op.recorded, op.outcome, op.elapsed,
           op.error, op.traceback,
           op.retries_used > locked.retries_used OR op.crashes > locked.crashes AS is_retried,
           greatest(duly_microseconds(duly_now()) - op.elapsed - duly_microseconds(locked.due_at), 0)
           AS delay
      FROM locked
      FULL JOIN unnest(%(ids)s::uuid[], %(lanes)s::text[], %(attempts)s::integer[],
                       %(retries_used)s::integer[], %(crashes)s::integer[], %(afters)s::bigint[],
                       %(recorded)s::boolean[], %(outcomes)s::text[], %(elapsed)s::bigint[],
                       %(errors)s::text[], %(tracebacks)s::text[])
           AS op(id, lane, attempt, retries_used, crashes, after, recorded, outcome, elapsed, error,
                 traceback)
        ON op.id = locked.id
), stayed AS (
    UPDATE duly_runs AS run
       SET state = 'queued', worker_id = NULL, claimed_at = NULL,
           attempt = (%(attempts)s::integer[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])],
           retries_used = (%(retries_used)s::integer[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])],
           crashes = (%(crashes)s::integer[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])],
           lane = (%(lanes)s::text[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])],
           expires_at = CASE WHEN NOT (%(recorded)s::boolean[])
                                      [pg_catalog.width_bucket(run.id, %(ids)s::uuid[])]
                             THEN run.expires_at END
     WHERE run.id = ANY (ARRAY(SELECT id FROM held WHERE after <= 0))
       AND run.claim_number
           = (%(claim_numbers)s::bigint[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])]
       AND run.state = 'running'
    RETURNING run.id, run.claim_number
), left_behind AS (
    DELETE FROM duly_runs AS run
     WHERE run.id = ANY (ARRAY(SELECT id FROM held WHERE after > 0))
       AND run.claim_number
           = (%(claim_numbers)s::bigint[])[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])]
       AND run.state = 'running'
    RETURNING run.id, run.claim_number
), set_aside AS (
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
         created_at, due_at, expires_at, key, tags, arguments)
    SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
           crashes, created_at, due_at, expires_at, key, tags, arguments
      FROM held
     WHERE (id IN (SELECT id FROM left_behind)) IS TRUE
), done AS (
    SELECT id, claim_number FROM stayed UNION ALL SELECT id, claim_number FROM left_behind
), attempts AS (
    INSERT INTO duly_attempts
        (run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
         error, traceback)
    SELECT id, claim_number, generation, attempt_before, outcome, worker_id,
           duly_now() - elapsed::float8 * interval '1 microsecond', duly_now(), error, traceback
      FROM held
     WHERE recorded AND (id IN (SELECT id FROM done)) IS TRUE
), tallied AS (
    INSERT INTO duly_tallies
        (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
    SELECT duly_microseconds(duly_now()), 0, task, queue, 'retried', duly_bound(elapsed),
           duly_bound(delay), pg_catalog.count(*), pg_catalog.sum(elapsed), pg_catalog.sum(delay),
           pg_catalog.sum(elapsed)
      FROM held
     WHERE is_retried AND (id IN (SELECT id FROM done)) IS TRUE
     GROUP BY task, queue, duly_bound(elapsed), duly_bound(delay)
)
SELECT id::text, claim_number FROM done

-- :name recorded
-- The outcomes of ops that matched no row. An op was recorded if its commit succeeded and only the
-- reply was lost. An op was refused if a cancel was requested.
SELECT op.id::text, op.claim_number, coalesce(run.cancel_requested, false),
       coalesce(history.outcome, attempt.outcome)
  FROM unnest(%(ids)s::uuid[], %(claim_numbers)s::bigint[]) AS op(id, claim_number)
  LEFT JOIN LATERAL (
       SELECT cancel_requested FROM duly_runs AS run
        WHERE run.id = op.id AND run.claim_number = op.claim_number AND run.state = 'running'
       OFFSET 0) AS run ON true
  LEFT JOIN LATERAL (
       SELECT outcome FROM duly_history AS history
        WHERE history.id = op.id AND history.claim_number = op.claim_number
       OFFSET 0) AS history ON true
  LEFT JOIN LATERAL (
       SELECT outcome FROM duly_attempts AS attempt
        WHERE attempt.run_id = op.id AND attempt.claim_number = op.claim_number
       OFFSET 0) AS attempt ON true

-- :name lock_waits
-- A transaction that wakes runs takes the same locks exclusively, so one of the two sees the other.
SELECT pg_catalog.pg_advisory_xact_lock_shared(wait)
  FROM (SELECT DISTINCT duly_wait_lock(CASE step.kind WHEN 'wait' THEN step.awaited
                                       ELSE op.id::text END) AS wait
          FROM unnest(%(ids)s::uuid[], %(names)s::text[]) AS op(id, name)
         CROSS JOIN LATERAL (
               SELECT kind, awaited FROM duly_steps
                WHERE duly_steps.run_id = op.id AND duly_steps.name = op.name
               OFFSET 0) AS step
         ORDER BY wait) AS waits

-- :name is_wait_satisfied
SELECT op.id::text
  FROM unnest(%(ids)s::uuid[], %(names)s::text[]) AS op(id, name)
 CROSS JOIN LATERAL (
       SELECT 1 FROM duly_awake AS awake
        WHERE awake.run_id = op.id AND awake.name = op.name
       OFFSET 0) AS found
