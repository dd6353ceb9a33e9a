-- steps: the steps that a run has recorded, and the events and runs that it waits for.
-- Guard: a step is written only under a claim that is still valid.

-- :part suspended
-- Only a run that was suspended is woken. A run that is retried later keeps its time, although a wait of
-- its last attempt may be open.
EXISTS (SELECT 1 FROM duly_attempts AS last
         WHERE last.run_id = duly_waiting.id AND last.claim_number = duly_waiting.claim_number
           AND last.outcome = 'suspended')

-- :name holds
SELECT 1 FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name begin
INSERT INTO duly_steps (run_id, name, kind, done, awaited, wake_at, claim_number, began_at)
SELECT id, :name, :kind, 0, :awaited, :now + :after, claim_number, :now
  FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'
    ON CONFLICT (run_id, name) DO NOTHING

-- :name conclude
-- Ends a sleep or a wait whose time is over or whose event was sent. An event's payload is never NULL.
UPDATE duly_steps
   SET done = 1, ended_at = :now, claim_number = :claim_number,
       result = (SELECT payload FROM duly_events WHERE name = awaited)
 WHERE run_id = :run_id AND name = :name AND NOT done AND kind IN ('sleep', 'wait')
   AND (wake_at <= :now OR EXISTS (SELECT 1 FROM duly_events WHERE name = awaited))
   AND EXISTS (SELECT 1 FROM duly_runs
                WHERE id = :run_id AND claim_number = :claim_number AND state = 'running')

-- :name end
INSERT INTO duly_steps
       (run_id, name, kind, done, awaited, result, claim_number, began_at, ended_at)
SELECT id, :name, 'step', 1, :inside, :result, claim_number, :now, :now
  FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'
    ON CONFLICT (run_id, name) DO UPDATE
   SET done = 1, result = excluded.result, claim_number = excluded.claim_number,
       ended_at = excluded.ended_at
 WHERE NOT duly_steps.done

-- :name forget
DELETE FROM duly_steps
 WHERE run_id = :run_id AND name = :name AND NOT done
   AND EXISTS (SELECT 1 FROM duly_runs
                WHERE id = :run_id AND claim_number = :claim_number AND state = 'running')

-- :name one
SELECT run_id, name, kind, done, awaited, wake_at, result, claim_number, began_at, ended_at
  FROM duly_steps WHERE run_id = :run_id AND name = :name

-- :name all
SELECT run_id, name, kind, done, awaited, wake_at, result, claim_number, began_at, ended_at
  FROM duly_steps WHERE run_id = :run_id ORDER BY began_at, name

-- :name begun
-- The open steps of a run that has ended or waits. Their outcome is unknown.
SELECT run_id, name, kind, done, awaited, wake_at, result, claim_number, began_at, ended_at
  FROM duly_steps WHERE run_id = :run_id AND kind = 'step' AND NOT done ORDER BY began_at, name

-- :name send
-- Also wakes the runs that wait for the event. On PostgreSQL a tick wakes them, since there the
-- sender's transaction may stay open.
-- :answer
INSERT INTO duly_events (name, payload, sent_at) VALUES (:name, :payload, :now)
    ON CONFLICT (name) DO NOTHING
RETURNING 1
-- :then
UPDATE duly_waiting
   SET due_at = :now
 WHERE id IN (SELECT run_id FROM duly_steps WHERE kind = 'wait' AND NOT done AND awaited = :name)
   AND due_at > :now AND parked IS NULL AND :part(suspended)

-- :name wake
UPDATE duly_waiting
   SET due_at = :now
 WHERE id IN (SELECT value FROM json_each(:run_ids)) AND due_at > :now AND parked IS NULL
   AND EXISTS (SELECT 1 FROM duly_awake WHERE duly_awake.run_id = duly_waiting.id)
   AND :part(suspended)

-- :name pending
-- A bounded part of the waiting runs. Later calls read the next parts, so that a lost wake-up is soon
-- repaired.
SELECT DISTINCT run_id FROM duly_steps INDEXED BY duly_steps_pending
 WHERE kind IN ('wait', 'gather') AND NOT done AND run_id > :after
 ORDER BY run_id LIMIT :limit

-- :name resolve_done
-- The step, and all steps that had begun inside it at any depth.
WITH RECURSIVE held (name) AS (
    SELECT name FROM duly_steps WHERE run_id = :run_id AND name = :step
     UNION
    SELECT inner_one.name
      FROM duly_steps AS inner_one
      JOIN held ON inner_one.awaited = held.name
     WHERE inner_one.run_id = :run_id AND inner_one.kind = 'step' AND NOT inner_one.done
)
UPDATE duly_steps
   SET done = 1, ended_at = :now, result = :result
 WHERE run_id = :run_id AND kind = 'step' AND NOT done
   AND name IN (SELECT name FROM held)
   AND EXISTS (SELECT 1 FROM duly_history WHERE id = :run_id AND state <> 'succeeded')
RETURNING name

-- :name resolve_again
WITH RECURSIVE held (name) AS (
    SELECT name FROM duly_steps WHERE run_id = :run_id AND name = :step
     UNION
    SELECT inner_one.name
      FROM duly_steps AS inner_one
      JOIN held ON inner_one.awaited = held.name
     WHERE inner_one.run_id = :run_id AND inner_one.kind = 'step' AND NOT inner_one.done
)
DELETE FROM duly_steps
 WHERE run_id = :run_id AND kind = 'step' AND NOT done
   AND name IN (SELECT name FROM held)
   AND EXISTS (SELECT 1 FROM duly_history WHERE id = :run_id AND state <> 'succeeded')
RETURNING name

-- :name next_epoch
INSERT INTO duly_steps (run_id, name, kind, done, result, claim_number, began_at, ended_at)
VALUES (:run_id, '', 'epoch', 1, '1', 0, :now, :now)
    ON CONFLICT (run_id, name) DO UPDATE
   SET result = CAST(CAST(duly_steps.result AS INTEGER) + 1 AS TEXT)

-- :name forget_from
-- Forgets all steps that began after the step, and the steps inside it, which were recorded before it.
-- It also forgets the steps around it that are done, or the run would not reach the step again. If a
-- step around it began and did not end, a person must resolve it. The step around a wait is not
-- recorded, so a wait stays if it began before the step.
-- The statement finds all of these steps before it deletes the first, which may be the step itself.
DELETE FROM duly_steps
 WHERE run_id = :run_id AND kind <> 'epoch'
   AND name IN (
       WITH RECURSIVE inside (name) AS (
           SELECT name FROM duly_steps WHERE run_id = :run_id AND name = :from_step
            UNION
           SELECT inner_one.name
             FROM duly_steps AS inner_one
             JOIN inside ON inner_one.awaited = inside.name
            WHERE inner_one.run_id = :run_id AND inner_one.kind = 'step'
       ), around (name) AS (
           SELECT awaited FROM duly_steps
            WHERE run_id = :run_id AND name = :from_step AND kind = 'step'
            UNION
           SELECT outer_one.awaited
             FROM duly_steps AS outer_one
             JOIN around ON outer_one.name = around.name
            WHERE outer_one.run_id = :run_id AND outer_one.kind = 'step'
       ), forgotten (name) AS (
           SELECT name FROM inside
            UNION
           SELECT outer_one.name
             FROM duly_steps AS outer_one
             JOIN around ON outer_one.name = around.name
            WHERE outer_one.run_id = :run_id AND outer_one.done
            UNION
           SELECT later.name
             FROM duly_steps AS later
             JOIN duly_steps AS first ON first.run_id = later.run_id AND first.name = :from_step
            WHERE later.run_id = :run_id
              AND (later.began_at, later.name) >= (first.began_at, first.name)
       )
       SELECT name FROM forgotten)
