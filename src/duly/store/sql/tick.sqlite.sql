-- tick: bounded upkeep of the tables that claims read. One statement cannot both insert and delete, so
-- a script first copies rows and then deletes those that are in both tables. Parts that read rows by
-- the same times read the same rows in the same order, because the orders are unique.

-- :part registered
SELECT value FROM duly_workers, json_each(duly_workers.tasks) WHERE state = 'live'

-- :part due
SELECT rowid AS place, id, length(CAST(arguments AS BLOB)) AS bytes
  FROM duly_waiting
 WHERE parked IS NULL AND due_at <= :now
 ORDER BY due_at, rowid
 LIMIT :limit

-- :part stuck
-- Some of the first runs of each queue, where a claim would start, that cannot run: runs of paused
-- queues and of unregistered tasks. The index has the tasks, so only these runs are read.
SELECT run.rowid AS place, length(CAST(run.arguments AS BLOB)) AS bytes,
       CASE WHEN head.paused THEN 'paused' ELSE 'unregistered' END AS parked
  FROM duly_ready_lanes AS head
 CROSS JOIN duly_runs AS run
 WHERE run.rowid IN (
       SELECT place
         FROM (SELECT rowid AS place, task FROM duly_runs INDEXED BY duly_runs_ready
                WHERE state = 'queued' AND queue = head.queue AND lane = head.lane
                ORDER BY priority DESC, due_at, id
                LIMIT :limit)
        WHERE head.paused OR task NOT IN (:part(registered)))
 LIMIT :limit

-- :part parked
-- The runs that a tick has copied. New rows of duly_waiting have the highest rowids.
SELECT run.rowid AS place, length(CAST(run.arguments AS BLOB)) AS bytes
  FROM (SELECT id FROM duly_waiting ORDER BY rowid DESC LIMIT :limit) AS copy
 CROSS JOIN duly_runs AS run
 WHERE run.id = copy.id AND run.state = 'queued'

-- :part old
SELECT * FROM (
       SELECT id, length(CAST(arguments AS BLOB)) AS bytes
         FROM duly_runs INDEXED BY duly_runs_expiring
        WHERE state = 'queued' AND expires_at <= :now
        ORDER BY expires_at, rowid
        LIMIT :limit)
UNION ALL
SELECT * FROM (
       SELECT id, length(CAST(arguments AS BLOB)) AS bytes
         FROM duly_waiting INDEXED BY duly_waiting_expiring
        WHERE expires_at <= :now
        ORDER BY expires_at, rowid
        LIMIT :limit)

-- :part chosen_old
SELECT id FROM (
       SELECT id, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
         FROM (:part(old)))
 WHERE bytes_before < :bytes

-- :part ended
SELECT id, bytes FROM (:part(old)) AS run
 WHERE EXISTS (SELECT 1 FROM duly_history WHERE duly_history.id = run.id)

-- :name unpark
UPDATE duly_waiting
   SET parked = NULL
 WHERE rowid IN (
       SELECT run.rowid
         FROM duly_parked_lanes AS head
        CROSS JOIN duly_waiting AS run INDEXED BY duly_waiting_parked
           ON run.parked = head.parked AND run.queue = head.queue AND run.task = head.task
        WHERE CASE head.parked
              WHEN 'paused' THEN NOT head.paused
              ELSE head.task IN (:part(registered))
              END
        LIMIT :limit)

-- :name promote
-- It ends with the run whose arguments reach a number of bytes, as park and expire do.
-- :answer
-- :stop-if-none
INSERT INTO duly_runs
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT run.id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM (SELECT place, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
          FROM (:part(due))) AS chosen
 CROSS JOIN duly_waiting AS run
 WHERE bytes_before < :bytes AND run.rowid = place
-- :then
DELETE FROM duly_waiting
 WHERE rowid IN (
       SELECT place FROM (:part(due)) AS run
        WHERE EXISTS (SELECT 1 FROM duly_runs WHERE duly_runs.id = run.id))

-- :name park
-- A run that was handed over is handed over again. The key in a limited lane may contain that word.
-- :stop-if-none
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, parked, key, tags, arguments)
SELECT run.id, task, queue,
       CASE WHEN lane < '~' THEN replace(lane, 'handed', 'carried') ELSE lane END,
       priority, generation, claim_number, attempt, retries_used, crashes, created_at, due_at,
       expires_at, chosen.parked, key, tags, arguments
  FROM (SELECT place, parked, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
          FROM (:part(stuck))) AS chosen
 CROSS JOIN duly_runs AS run
 WHERE bytes_before < :bytes AND run.rowid = place AND state = 'queued'
-- :then
-- :answer
SELECT count(*), sum(bytes) >= :bytes, '', '' FROM (:part(parked))
-- :then
DELETE FROM duly_runs WHERE state = 'queued' AND rowid IN (SELECT place FROM (:part(parked)))

-- :name expire
-- Ends runs that expired before they started.
-- :stop-if-none
INSERT INTO duly_history
    (id, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
     retries_used, crashes, created_at, due_at, expires_at, finished_at, key, tags, arguments)
SELECT id, task, queue, lane, 'cancelled', 'expired', priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, :now, key, tags, arguments
  FROM duly_runs
 WHERE state = 'queued' AND id IN (:part(chosen_old))
UNION ALL
SELECT id, task, queue, lane, 'cancelled', 'expired', priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, :now, key, tags, arguments
  FROM duly_waiting
 WHERE id IN (:part(chosen_old))
-- :then
UPDATE duly_keys
   SET expires_at = CASE WHEN active_only THEN :now ELSE :now + ttl END
  FROM duly_history AS run
 WHERE run.id IN (SELECT id FROM (:part(ended))) AND run.key IS NOT NULL
   AND duly_keys.task = run.task AND duly_keys.key = run.key AND duly_keys.run_id = run.id
-- :then
-- :answer
SELECT count(*), sum(bytes) >= :bytes FROM (:part(ended))
-- :then
DELETE FROM duly_runs WHERE state = 'queued' AND id IN (SELECT id FROM (:part(ended)))
-- :then
DELETE FROM duly_waiting WHERE id IN (SELECT id FROM (:part(ended)))

-- :name next_due
SELECT min(due_at) - :now, 0 FROM duly_waiting WHERE parked IS NULL
