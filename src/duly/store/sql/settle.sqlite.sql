-- settle: record the ends of attempts.
-- Guard: claim_number only grows, so a worker that lost its claim matches no row.

-- :part took
CASE WHEN lasted <= 5000 THEN 5 WHEN lasted <= 10000 THEN 10
     WHEN lasted <= 25000 THEN 25 WHEN lasted <= 50000 THEN 50
     WHEN lasted <= 100000 THEN 100 WHEN lasted <= 250000 THEN 250
     WHEN lasted <= 500000 THEN 500 WHEN lasted <= 1000000 THEN 1000
     WHEN lasted <= 2500000 THEN 2500 WHEN lasted <= 5000000 THEN 5000
     WHEN lasted <= 10000000 THEN 10000 WHEN lasted <= 30000000 THEN 30000
     WHEN lasted <= 60000000 THEN 60000 WHEN lasted <= 300000000 THEN 300000
     WHEN lasted <= 900000000 THEN 900000 WHEN lasted <= 3600000000 THEN 3600000
     WHEN lasted <= 21600000000 THEN 21600000 WHEN lasted <= 86400000000 THEN 86400000
     ELSE 9000000000000 END

-- :part waited
CASE WHEN delay <= 5000 THEN 5 WHEN delay <= 10000 THEN 10
     WHEN delay <= 25000 THEN 25 WHEN delay <= 50000 THEN 50
     WHEN delay <= 100000 THEN 100 WHEN delay <= 250000 THEN 250
     WHEN delay <= 500000 THEN 500 WHEN delay <= 1000000 THEN 1000
     WHEN delay <= 2500000 THEN 2500 WHEN delay <= 5000000 THEN 5000
     WHEN delay <= 10000000 THEN 10000 WHEN delay <= 30000000 THEN 30000
     WHEN delay <= 60000000 THEN 60000 WHEN delay <= 300000000 THEN 300000
     WHEN delay <= 900000000 THEN 900000 WHEN delay <= 3600000000 THEN 3600000
     WHEN delay <= 21600000000 THEN 21600000 WHEN delay <= 86400000000 THEN 86400000
     ELSE 9000000000000 END

-- :part lasted
-- The time from the first start in this generation to the end.
ended.finished_at - CASE WHEN ended.claim_number = 1 THEN ended.started_at
     ELSE coalesce((SELECT min(ended.started_at, min(attempt.started_at))
                      FROM duly_attempts AS attempt
                     WHERE attempt.run_id = ended.id AND attempt.generation = ended.generation),
                   ended.started_at) END

-- :part tally_change
-- Counts that an operator takes a run out of its final state. `tally` has counted its end in the same
-- way, but not an end without an attempt. The statements of `operate` include this part.
INSERT INTO duly_tallies
       (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
SELECT at, 0, task, queue, :change || ' ' || state, :part(took), :part(waited), 1, elapsed, delay,
       lasted
  FROM (SELECT ended.finished_at AS at, ended.task, ended.queue, ended.state,
               ended.finished_at - ended.started_at AS elapsed,
               max(ended.started_at - ended.due_at, 0) AS delay,
               :part(lasted) AS lasted
          FROM duly_history AS ended
         WHERE ended.id = :run_id AND ended.started_at IS NOT NULL)

-- :name succeed
-- Parameters: now, then one row per run. An empty result means NULL, which binds slowly.
-- INSERT comes before WITH because the driver counts rows only for statements that begin with INSERT.
-- A settle that occurs twice in one batch is written once.
INSERT INTO duly_history
    (id, task, queue, lane, state, outcome, priority, generation, claim_number, attempt,
     retries_used, crashes, created_at, due_at, expires_at, worker_id, started_at, finished_at,
     key, tags, arguments, result)
WITH clock(now) AS (VALUES (?)),
     ending(id, claim_number, elapsed, result) AS (VALUES :rows(4))
SELECT run.id, run.task, run.queue, run.lane, 'succeeded', 'returned',
       run.priority, run.generation, run.claim_number, run.attempt, run.retries_used, run.crashes,
       run.created_at, run.due_at, run.expires_at, run.worker_id, clock.now - ending.elapsed,
       clock.now, run.key, run.tags, run.arguments, nullif(ending.result, '')
  FROM ending
  JOIN clock
  CROSS JOIN duly_runs AS run
    ON run.id = ending.id AND run.claim_number = ending.claim_number AND run.state = 'running'
 WHERE true
    ON CONFLICT (id) DO NOTHING

-- :name finish
-- As above, for all other ends.
INSERT INTO duly_history
    (id, task, queue, lane, state, cause, outcome, priority, generation, claim_number, attempt,
     retries_used, crashes, created_at, due_at, expires_at, worker_id, started_at, finished_at,
     key, tags, arguments, result, error, traceback, fingerprint)
WITH clock(now) AS (VALUES (?)),
     ending(id, claim_number, state, cause, outcome, elapsed, result, error, traceback, fingerprint)
     AS (VALUES :rows(10))
SELECT run.id, run.task, run.queue, run.lane, ending.state, ending.cause, ending.outcome,
       run.priority, run.generation, run.claim_number, run.attempt, run.retries_used, run.crashes,
       run.created_at, run.due_at, run.expires_at, run.worker_id, clock.now - ending.elapsed,
       clock.now, run.key, run.tags, run.arguments, ending.result, ending.error, ending.traceback,
       ending.fingerprint
  FROM ending
  JOIN clock
  CROSS JOIN duly_runs AS run
    ON run.id = ending.id AND run.claim_number = ending.claim_number AND run.state = 'running'
 WHERE true
    ON CONFLICT (id) DO NOTHING

-- :name tally
-- Counts the ends that were just written, one row for each kind of end. It finds them as `leave` does.
INSERT INTO duly_tallies
       (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
SELECT :now, 0, task, queue, state, took, waited, count(*), sum(elapsed), sum(delay), sum(lasted)
  FROM (SELECT task, queue, state, elapsed, delay, lasted,
               :part(took) AS took,
               :part(waited) AS waited
          FROM (SELECT ended.task, ended.queue, ended.state,
                       ended.finished_at - ended.started_at AS elapsed,
                       max(ended.started_at - ended.due_at, 0) AS delay,
                       :part(lasted) AS lasted
                  FROM duly_history AS ended INDEXED BY duly_history_ended
                 CROSS JOIN duly_runs AS run
                    ON run.id = ended.id AND run.claim_number = ended.claim_number
                       AND run.state = 'running'
                 WHERE ended.finished_at = :now AND ended.state NOT IN ('failed', 'interrupted')
                   AND ended.kept_until IS NULL
                UNION ALL
                SELECT ended.task, ended.queue, ended.state,
                       ended.finished_at - ended.started_at,
                       max(ended.started_at - ended.due_at, 0),
                       :part(lasted)
                  FROM duly_history AS ended INDEXED BY duly_history_died
                 CROSS JOIN duly_runs AS run
                    ON run.id = ended.id AND run.claim_number = ended.claim_number
                       AND run.state = 'running'
                 WHERE ended.finished_at = :now AND ended.state IN ('failed', 'interrupted')
                   AND ended.kept_until IS NULL))
 GROUP BY task, queue, state, took, waited

-- :name tally_retry
-- Counts a failed attempt that another attempt will follow, before the run is queued again.
INSERT INTO duly_tallies
       (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
SELECT :now, 0, task, queue, 'retried', :part(took), :part(waited), 1, lasted, delay, lasted
  FROM (SELECT task, queue, :elapsed AS lasted, max(:now - :elapsed - due_at, 0) AS delay
          FROM duly_runs
         WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'
           AND (:retries_used > retries_used OR :crashes > crashes))

-- :name leave
-- Guard: a history row of this instant with this claim_number was just written by this transaction. It
-- is in one of two indexes, depending on its state. Unless the statement names these indexes, SQLite
-- reads the whole history.
DELETE FROM duly_runs
 WHERE rowid IN (
       SELECT run.rowid
         FROM duly_history AS ended INDEXED BY duly_history_ended
        CROSS JOIN duly_runs AS run
           ON run.id = ended.id AND run.claim_number = ended.claim_number
              AND run.state = 'running'
        WHERE ended.finished_at = :now AND ended.state NOT IN ('failed', 'interrupted')
          AND ended.kept_until IS NULL
       UNION ALL
       SELECT run.rowid
         FROM duly_history AS ended INDEXED BY duly_history_died
        CROSS JOIN duly_runs AS run
           ON run.id = ended.id AND run.claim_number = ended.claim_number
              AND run.state = 'running'
        WHERE ended.finished_at = :now AND ended.state IN ('failed', 'interrupted')
          AND ended.kept_until IS NULL)

-- :name recorded
-- For an op that matched no row: the outcome of its earlier commit, if only the reply was lost.
-- A run that was cancelled while queued ended without an attempt, so its outcome is NULL.
SELECT outcome FROM duly_history
 WHERE id = :run_id AND claim_number = :claim_number AND outcome IS NOT NULL
UNION ALL
SELECT outcome FROM duly_attempts WHERE run_id = :run_id AND claim_number = :claim_number

-- :name standing
SELECT cancel_requested
  FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name record_attempt
INSERT INTO duly_attempts
    (run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
     error, traceback)
SELECT id, claim_number, generation, attempt, :outcome, worker_id, :now - :elapsed, :now,
       :error, :traceback
  FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name requeue
-- Expiry ends runs that never started, so a run with a recorded attempt no longer expires.
UPDATE duly_runs
   SET state = 'queued', worker_id = NULL, claimed_at = NULL, attempt = :attempt,
       retries_used = :retries_used, crashes = :crashes, lane = :lane,
       due_at = CASE WHEN :after > 0 THEN :now + :after ELSE due_at END,
       expires_at = CASE WHEN NOT :recorded THEN expires_at END
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'
   AND NOT cancel_requested

-- :name set_aside
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM duly_runs
 WHERE id = :run_id AND state = 'queued'

-- :name drop_set_aside
DELETE FROM duly_runs WHERE id = :run_id AND state = 'queued'

-- :name start_key_expiry
-- The time starts at the run's end and not now, so that a repeated settle changes nothing.
UPDATE duly_keys
   SET expires_at = CASE WHEN active_only THEN run.finished_at ELSE run.finished_at + ttl END
  FROM duly_history AS run
 WHERE run.id = :run_id AND run.claim_number = :claim_number AND run.key IS NOT NULL
   AND duly_keys.task = run.task AND duly_keys.key = run.key AND duly_keys.run_id = run.id

-- :name is_wait_satisfied
SELECT EXISTS (SELECT 1 FROM duly_awake WHERE run_id = :run_id AND name = :name)
