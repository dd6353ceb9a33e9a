-- tick: bounded upkeep of the runs that claims read.

-- :name due
SELECT id, length(CAST(arguments AS BLOB)) FROM duly_waiting
 WHERE parked IS NULL AND due_at <= :now
 ORDER BY due_at
 LIMIT :limit

-- :name promote
INSERT INTO duly_runs
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM duly_waiting
 WHERE id IN (SELECT value FROM json_each(:ids))

-- :name drop_promoted
DELETE FROM duly_waiting WHERE id IN (SELECT value FROM json_each(:ids))

-- :name next_due
SELECT min(due_at) FROM duly_waiting WHERE parked IS NULL

-- :name registered
SELECT DISTINCT value FROM duly_workers, json_each(duly_workers.tasks) WHERE state = 'live'

-- :name heads
SELECT queue, lane, paused FROM duly_ready_lanes

-- :name first_runs
SELECT id, length(CAST(arguments AS BLOB)), task
  FROM duly_runs INDEXED BY duly_runs_ready
 WHERE state = 'queued' AND queue = :queue AND lane = :lane
 ORDER BY priority DESC, due_at, id
 LIMIT :limit

-- :name park
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, parked, key, tags, arguments)
SELECT id, task, queue, replace(lane, 'handed', 'carried'), priority, generation, claim_number,
       attempt, retries_used, crashes, created_at, due_at, expires_at, :parked, key, tags, arguments
  FROM duly_runs
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued'

-- :name drop_parked
DELETE FROM duly_runs
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued'

-- :name parked_lanes
SELECT parked, queue, task, paused FROM duly_parked_lanes

-- :name unpark
UPDATE duly_waiting
   SET parked = NULL
 WHERE rowid IN (
       SELECT rowid FROM duly_waiting
        WHERE parked = :parked AND queue = :queue AND task = :task
        LIMIT :limit)

-- :name expired
SELECT *
  FROM (SELECT id, length(CAST(arguments AS BLOB))
          FROM duly_runs INDEXED BY duly_runs_expiring
         WHERE state = 'queued' AND expires_at <= :now
         LIMIT :limit)
UNION ALL
SELECT *
  FROM (SELECT id, length(CAST(arguments AS BLOB)) FROM duly_waiting
         WHERE expires_at <= :now
         LIMIT :limit)
