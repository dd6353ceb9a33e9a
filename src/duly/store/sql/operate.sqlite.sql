-- operate: acts of operators on runs and queues. Each act is recorded in the same transaction.

-- :name record
INSERT INTO duly_acts (at, actor, act, subject, reason)
VALUES (:now, :actor, :act, :subject, :reason)

-- :name state
SELECT state FROM duly_every_run WHERE id = :run_id

-- :name ask_cancel
UPDATE duly_runs SET cancel_requested = 1 WHERE id = :run_id AND state = 'running'

-- :name end_queued
-- Guard: a run can end without an attempt only if no worker runs it.
-- :answer
-- :stop-if-none
INSERT INTO duly_history
    (id, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
     retries_used, crashes, created_at, due_at, expires_at, finished_at, key, tags, arguments, error)
SELECT id, task, queue, lane, :state, :cause, priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, :now, key, tags, arguments, :error
  FROM duly_runs
 WHERE id = :run_id AND state = 'queued'
UNION ALL
SELECT id, task, queue, lane, :state, :cause, priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, :now, key, tags, arguments, :error
  FROM duly_waiting
 WHERE id = :run_id
-- :then
DELETE FROM duly_runs WHERE id = :run_id AND state = 'queued'
-- :then
DELETE FROM duly_waiting WHERE id = :run_id
-- :then
UPDATE duly_keys
   SET expires_at = CASE WHEN active_only THEN :now ELSE :now + ttl END
  FROM duly_history AS run
 WHERE run.id = :run_id AND run.key IS NOT NULL
   AND duly_keys.task = run.task AND duly_keys.key = run.key AND duly_keys.run_id = run.id

-- :name queued
-- A run that no worker runs, with what a reschedule depends on.
SELECT queue, lane, claim_number, due_at, expires_at,
       (SELECT name FROM duly_steps
         WHERE run_id = :run_id AND kind <> 'step' AND NOT done
           AND EXISTS (SELECT 1 FROM duly_attempts AS last
                        WHERE last.run_id = :run_id AND last.claim_number = run.claim_number
                          AND last.outcome = 'suspended')
         ORDER BY began_at DESC LIMIT 1),
       :now
  FROM (SELECT queue, lane, claim_number, due_at, expires_at
          FROM duly_runs WHERE id = :run_id AND state = 'queued'
        UNION ALL
        SELECT queue, lane, claim_number, due_at, expires_at
          FROM duly_waiting WHERE id = :run_id) AS run

-- :name reschedule
-- Guard: a run that no worker runs, as it was read: not claimed or sent to its engine since, and not
-- rescheduled. It passes through duly_waiting. If its queue is paused or no worker registers its task,
-- the next tick parks it again.
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM duly_runs
 WHERE id = :run_id AND state = 'queued'
-- :then
DELETE FROM duly_runs WHERE id = :run_id AND state = 'queued'
-- :then
-- :answer
UPDATE duly_waiting
   SET queue = coalesce(:queue, queue), priority = coalesce(:priority, priority), due_at = :due_at,
       parked = NULL
 WHERE id = :run_id AND claim_number = :claim_number AND lane = :lane AND due_at = :due_before
-- :then
INSERT INTO duly_runs
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM duly_waiting
 WHERE id = :run_id AND :is_due
-- :then
DELETE FROM duly_waiting WHERE id = :run_id AND :is_due

-- :name hold_key_again
-- Guard: another run that took the key keeps it while the key is in force. If the key was forgotten
-- meanwhile, the run holds it without the fingerprint of its arguments until the run ends. A key has
-- one row, under the task name of its run.
INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
SELECT task, key, id, '', NULL, 1
  FROM duly_history
 WHERE id = :run_id AND key IS NOT NULL
   AND state IN (SELECT value FROM json_each(:states))
   AND (:generation IS NULL OR generation = :generation)
    ON CONFLICT (task, key) DO UPDATE
   SET run_id = excluded.run_id, expires_at = NULL,
       fingerprint = CASE WHEN duly_keys.run_id = excluded.run_id THEN duly_keys.fingerprint
                          ELSE '' END,
       ttl = CASE WHEN duly_keys.run_id = excluded.run_id THEN duly_keys.ttl END,
       active_only = duly_keys.run_id <> excluded.run_id OR duly_keys.active_only
 WHERE duly_keys.run_id = excluded.run_id OR duly_keys.expires_at <= :now

-- :name live_holder
-- The live run that has the key of a final run, if it is a different run.
SELECT id, state
  FROM (SELECT known.run_id AS id,
               coalesce((SELECT state FROM duly_runs WHERE id = known.run_id),
                        (SELECT 'queued' FROM duly_waiting WHERE id = known.run_id)) AS state
          FROM duly_history AS old
          JOIN duly_keys AS known
            ON known.task IN (SELECT old.task UNION ALL SELECT value FROM json_each(:other_names))
           AND known.key = old.key AND known.run_id <> old.id
         WHERE old.id = :run_id) AS holder
 WHERE state IS NOT NULL

-- :name revive
-- The last attempt moves to the earlier attempts, since its history row is deleted. The answer is the
-- previous state of the run.
-- :stop-if-none
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, key, tags, arguments)
SELECT id, task, queue,
       coalesce(:lane, CASE WHEN lane < '~' THEN replace(lane, 'handed', 'carried') ELSE lane END),
       priority, generation + 1, claim_number,
       1, 0, 0, created_at, :now + :delay, key, tags,
       coalesce(:arguments, arguments)
  FROM duly_history
 WHERE id = :run_id
   AND state IN (SELECT value FROM json_each(:states))
   AND (:generation IS NULL OR generation = :generation)
-- :then
:part(settle.tally_change)
-- :then
INSERT INTO duly_attempts
    (run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
     error, traceback)
SELECT id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
       error, traceback
  FROM duly_history
 WHERE id = :run_id AND outcome IS NOT NULL
    ON CONFLICT (run_id, claim_number) DO NOTHING
-- :then
DELETE FROM duly_history WHERE id = :run_id
RETURNING state

-- :name discard
-- The end is counted before the UPDATE, which overwrites the state.
-- :stop-if-none
SELECT 1 FROM duly_history WHERE id = :run_id AND state IN ('failed', 'interrupted')
-- :then
:part(settle.tally_change)
-- :then
UPDATE duly_history
   SET state = 'cancelled', cause = 'discarded'
 WHERE id = :run_id AND state IN ('failed', 'interrupted')

-- :name pause
INSERT INTO duly_queues (name, paused) VALUES (:queue, :paused)
    ON CONFLICT (name) DO UPDATE SET paused = excluded.paused

-- :name limit
INSERT INTO duly_queues (name, paused, running_limit) VALUES (:queue, 0, :limit)
    ON CONFLICT (name) DO UPDATE SET running_limit = excluded.running_limit

-- :name bound
INSERT INTO duly_queues (name, paused, max_size) VALUES (:queue, 0, :max_size)
    ON CONFLICT (name) DO UPDATE SET max_size = excluded.max_size

-- :name release_of_key
-- The run no longer needs to be kept for its key.
UPDATE duly_history SET kept_until = NULL
 WHERE id = (SELECT run_id FROM duly_keys
              WHERE task = :task AND key = :key AND (:run_id IS NULL OR run_id = :run_id))

-- :name reset_key
DELETE FROM duly_keys
 WHERE task = :task AND key = :key AND (:run_id IS NULL OR run_id = :run_id)
