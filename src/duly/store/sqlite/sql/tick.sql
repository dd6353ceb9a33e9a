-- tick: bounded upkeep of what claims look at.

-- :name promote
INSERT INTO duly_runs
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, key, tags, arguments
  FROM duly_waiting
 WHERE parked IS NULL AND due_at <= :now
 ORDER BY due_at
 LIMIT :limit

-- :name drop_promoted
DELETE FROM duly_waiting
 WHERE rowid IN (
       SELECT rowid FROM duly_waiting WHERE parked IS NULL AND due_at <= :now
        ORDER BY due_at
        LIMIT :limit)

-- :name next_due
SELECT min(due_at) FROM duly_waiting WHERE parked IS NULL

-- :name registered
SELECT DISTINCT value FROM duly_workers, json_each(duly_workers.tasks) WHERE state = 'live'

-- :name heads
-- The first runs of every queue and lane, where a claim would begin to walk.
WITH RECURSIVE head(queue, lane) AS (
    SELECT * FROM (SELECT queue, lane FROM duly_runs WHERE state = 'queued'
                    ORDER BY queue, lane LIMIT 1)
    UNION ALL
    SELECT next.queue, next.lane
      FROM head
      JOIN duly_runs AS next
        ON next.rowid = (SELECT rowid FROM duly_runs
                          WHERE state = 'queued' AND (queue, lane) > (head.queue, head.lane)
                          ORDER BY queue, lane LIMIT 1)
)
SELECT queue, lane, coalesce((SELECT paused FROM duly_queues WHERE name = queue), 0) FROM head

-- :name first_runs
SELECT id, task
  FROM duly_runs INDEXED BY duly_runs_ready
 WHERE state = 'queued' AND queue = :queue AND lane = :lane
 ORDER BY priority DESC, due_at, id
 LIMIT :limit

-- :name park
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
     created_at, due_at, expires_at, parked, key, tags, arguments)
SELECT id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
       created_at, due_at, expires_at, :parked, key, tags, arguments
  FROM duly_runs
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued'

-- :name drop_parked
DELETE FROM duly_runs
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued'

-- :name parked_lanes
WITH RECURSIVE parked_lane(parked, queue, task) AS (
    SELECT * FROM (SELECT parked, queue, task FROM duly_waiting WHERE parked IS NOT NULL
                    ORDER BY parked, queue, task LIMIT 1)
    UNION ALL
    SELECT next.parked, next.queue, next.task
      FROM parked_lane
      JOIN duly_waiting AS next
        ON next.rowid = (SELECT rowid FROM duly_waiting
                          WHERE parked IS NOT NULL
                            AND (parked, queue, task)
                                > (parked_lane.parked, parked_lane.queue, parked_lane.task)
                          ORDER BY parked, queue, task LIMIT 1)
)
SELECT parked, queue, task, coalesce((SELECT paused FROM duly_queues WHERE name = queue), 0)
  FROM parked_lane

-- :name unpark
UPDATE duly_waiting
   SET parked = NULL
 WHERE rowid IN (
       SELECT rowid FROM duly_waiting
        WHERE parked = :parked AND queue = :queue AND task = :task
        LIMIT :limit)

-- :name expired
SELECT * FROM (SELECT id FROM duly_runs INDEXED BY duly_runs_expiring
                WHERE state = 'queued' AND expires_at <= :now LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT id FROM duly_waiting WHERE expires_at <= :now LIMIT :limit)
