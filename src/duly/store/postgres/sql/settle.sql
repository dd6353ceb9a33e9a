-- settle: record how attempts ended.
-- Guard: claim_number only grows, so a worker that lost its claim matches no row.

-- :name finish
-- One statement moves the rows, and everything written derives from the rows that the fenced
-- DELETE returned; SQLite, which cannot write inside WITH, does the same in three.
WITH gone AS (
    DELETE FROM duly_runs AS run
     USING unnest(%(ids)s::uuid[], %(claim_numbers)s::bigint[], %(states)s::text[],
                  %(causes)s::text[], %(outcomes)s::text[], %(elapsed)s::bigint[],
                  %(results)s::text[], %(errors)s::text[], %(tracebacks)s::text[],
                  %(fingerprints)s::text[])
           AS ending(id, claim_number, state, cause, outcome, elapsed, result, error, traceback,
                     fingerprint)
     WHERE run.id = ending.id AND run.claim_number = ending.claim_number AND run.state = 'running'
    RETURNING run.id, run.task, run.queue, run.lane, ending.state, ending.cause, ending.outcome,
              run.priority, run.generation, run.claim_number, run.attempt, run.retries_used,
              run.crashes, run.created_at, run.due_at, run.expires_at, run.worker_id,
              duly_now() - ending.elapsed * interval '1 microsecond' AS started_at,
              duly_now() AS finished_at, run.key, run.tags, run.arguments, ending.result,
              ending.error, ending.traceback, ending.fingerprint, ending.elapsed
), kept AS (
    INSERT INTO duly_history
        (id, task, queue, lane, state, cause, outcome, priority, generation, claim_number, attempt,
         retries_used, crashes, created_at, due_at, expires_at, worker_id, started_at, finished_at,
         key, tags, arguments, result, error, traceback, fingerprint)
    SELECT id, task, queue, lane, state, cause, outcome, priority, generation, claim_number, attempt,
           retries_used, crashes, created_at, due_at, expires_at, worker_id, started_at, finished_at,
           key, tags, arguments, result, error, traceback, fingerprint
      FROM gone
), tallied AS (
    INSERT INTO duly_tallies (at, span, task, queue, state, took, waited, runs, elapsed, delay)
    SELECT duly_microseconds(duly_now()), 0, task, queue, state, duly_bound(elapsed),
           duly_bound(delay), count(*), sum(elapsed), sum(delay)
      FROM (SELECT task, queue, state, elapsed,
                   greatest(duly_microseconds(started_at) - duly_microseconds(due_at), 0) AS delay
              FROM gone) AS ended
     GROUP BY task, queue, state, duly_bound(elapsed), duly_bound(delay)
), expiring AS (
    UPDATE duly_keys
       SET expires_at = gone.finished_at
                        + CASE WHEN active_only THEN 0 ELSE ttl END * interval '1 microsecond'
      FROM gone
     WHERE gone.key IS NOT NULL
       AND duly_keys.task = gone.task AND duly_keys.key = gone.key AND duly_keys.run_id = gone.id
)
SELECT count(*) FROM gone

-- :name requeue
-- The rows are locked and read first, since an attempt's record needs what the UPDATE overwrites.
-- A run whose cancel was requested stays as it is: the caller is to decide again.
WITH held AS MATERIALIZED (
    SELECT run.id, run.task, run.queue, op.lane, run.priority, run.generation, run.claim_number,
           run.attempt AS attempt_before, op.attempt, op.retries_used, op.crashes, run.created_at,
           CASE WHEN op.after > 0 THEN duly_now() + op.after * interval '1 microsecond'
                ELSE run.due_at END AS due_at,
           run.expires_at, run.worker_id, run.key, run.tags, run.arguments, op.after, op.recorded,
           op.outcome, op.elapsed, op.error, op.traceback
      FROM unnest(%(ids)s::uuid[], %(claim_numbers)s::bigint[], %(lanes)s::text[],
                  %(attempts)s::integer[], %(retries_used)s::integer[], %(crashes)s::integer[],
                  %(afters)s::bigint[], %(recorded)s::boolean[], %(outcomes)s::text[],
                  %(elapsed)s::bigint[], %(errors)s::text[], %(tracebacks)s::text[])
           AS op(id, claim_number, lane, attempt, retries_used, crashes, after, recorded, outcome,
                 elapsed, error, traceback)
      JOIN duly_runs AS run
        ON run.id = op.id AND run.claim_number = op.claim_number AND run.state = 'running'
     WHERE NOT run.cancel_requested
       FOR UPDATE OF run
), stayed AS (
    UPDATE duly_runs AS run
       SET state = 'queued', worker_id = NULL, claimed_at = NULL, attempt = held.attempt,
           retries_used = held.retries_used, crashes = held.crashes, lane = held.lane
      FROM held
     WHERE run.id = held.id AND run.claim_number = held.claim_number AND run.state = 'running'
       AND held.after <= 0
    RETURNING run.id, run.claim_number
), left_behind AS (
    DELETE FROM duly_runs AS run
     USING held
     WHERE run.id = held.id AND run.claim_number = held.claim_number AND run.state = 'running'
       AND held.after > 0
    RETURNING run.id, run.claim_number
), set_aside AS (
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
         created_at, due_at, expires_at, key, tags, arguments)
    SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used,
           crashes, created_at, due_at, expires_at, key, tags, arguments
      FROM held
     WHERE id IN (SELECT id FROM left_behind)
), done AS (
    SELECT id, claim_number FROM stayed UNION ALL SELECT id, claim_number FROM left_behind
), attempts AS (
    INSERT INTO duly_attempts
        (run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
         error, traceback)
    SELECT id, claim_number, generation, attempt_before, outcome, worker_id,
           duly_now() - elapsed * interval '1 microsecond', duly_now(), error, traceback
      FROM held
     WHERE recorded AND id IN (SELECT id FROM done)
)
SELECT id::text, claim_number FROM done

-- :name recorded
-- What became of ops that matched no row: recorded, if their commit went through and only the reply
-- got lost; refused, if a cancel came in.
SELECT op.id::text, op.claim_number, coalesce(run.cancel_requested, false),
       coalesce(history.outcome, attempt.outcome)
  FROM unnest(%(ids)s::uuid[], %(claim_numbers)s::bigint[]) AS op(id, claim_number)
  LEFT JOIN duly_runs AS run
    ON run.id = op.id AND run.claim_number = op.claim_number AND run.state = 'running'
  LEFT JOIN duly_history AS history
    ON history.id = op.id AND history.claim_number = op.claim_number
  LEFT JOIN duly_attempts AS attempt
    ON attempt.run_id = op.id AND attempt.claim_number = op.claim_number
