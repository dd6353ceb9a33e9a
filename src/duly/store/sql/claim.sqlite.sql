-- claim: take ready runs for a live worker. SQLite has one writer. So several statements of one
-- transaction can do the work of one statement on PostgreSQL (take).

-- :name ready
-- Nothing is ready for a worker that is not live.
SELECT json_group_array(json_array(queue, lane, running_limit))
  FROM duly_ready_lanes
 WHERE NOT paused
   AND EXISTS (SELECT 1 FROM duly_workers WHERE id = :worker_id AND state = 'live')

-- :name sizes_ready
-- The sizes of the arguments of the runs that `take` would take, in the same order.
SELECT json_group_array(length(CAST(arguments AS BLOB)))
  FROM (SELECT arguments
         FROM duly_runs INDEXED BY duly_runs_ready
        WHERE state = 'queued'
          AND queue = :queue
          AND lane = :lane
          AND task IN (SELECT value FROM json_each(:tasks))
          AND (expires_at IS NULL OR expires_at > :now)
        ORDER BY priority DESC, due_at, id
        LIMIT :limit)

-- :name take
-- Guard: only queued rows of the partial index. claim_number grows by one, and is the fence.
UPDATE duly_runs
   SET state = 'running', claim_number = claim_number + 1, worker_id = :worker_id,
       claimed_at = :claimed_at, progress = NULL, progress_text = NULL
 WHERE rowid IN (
       SELECT rowid
         FROM duly_runs INDEXED BY duly_runs_ready
        WHERE state = 'queued'
          AND queue = :queue
          AND lane = :lane
          AND task IN (SELECT value FROM json_each(:tasks))
          AND (expires_at IS NULL OR expires_at > :now)
        ORDER BY priority DESC, due_at, id
        LIMIT :limit)

-- :name running_in_queue
-- It reads the running runs of all queues. The workers' slots bound their number.
SELECT count(*) FROM duly_runs INDEXED BY duly_runs_held WHERE state = 'running' AND queue = :queue

-- :name queues
SELECT name, paused, running_limit FROM duly_queues WHERE paused OR running_limit IS NOT NULL

-- :name limited_lanes
-- A loose index scan: one probe per limit that has ready runs, regardless of their number. SQLite
-- starts its search at the first bound of a column in the WHERE clause. If `lane >= '~'` came first, it
-- would read all limited runs before :after.
WITH RECURSIVE head(lane) AS (
    SELECT * FROM (SELECT lane FROM duly_runs INDEXED BY duly_runs_limited
                    WHERE lane > :after AND state = 'queued' AND lane >= '~'
                    ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT next.lane FROM duly_runs AS next INDEXED BY duly_runs_limited
             WHERE next.lane > head.lane AND next.state = 'queued' AND next.lane >= '~'
             ORDER BY next.lane LIMIT 1)
      FROM head
     WHERE head.lane IS NOT NULL
)
SELECT lane FROM head WHERE lane IS NOT NULL LIMIT :most

-- :name running_in_limit
SELECT count(*)
  FROM duly_runs INDEXED BY duly_runs_slots
 WHERE lane >= :low AND lane < :high AND state = 'running' AND lane >= '~'

-- :name take_limited
-- Guard: as for `take`. The caller has counted the running runs, and there is no other writer.
UPDATE duly_runs
   SET state = 'running', claim_number = claim_number + 1, worker_id = :worker_id,
       claimed_at = :claimed_at, progress = NULL, progress_text = NULL
 WHERE rowid IN (
       SELECT number
         FROM (SELECT number, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
                 FROM (SELECT rowid AS number, length(CAST(arguments AS BLOB)) AS bytes
                         FROM duly_runs INDEXED BY duly_runs_limited
                        WHERE state = 'queued'
                          AND lane >= '~'
                          AND lane = :lane
                          AND (:queue IS NULL OR queue = :queue)
                          AND queue NOT IN (SELECT value FROM json_each(:closed))
                          AND (expires_at IS NULL OR expires_at > :now)
                          AND EXISTS (SELECT 1 FROM duly_workers WHERE id = :worker_id AND state = 'live')
                        ORDER BY priority DESC, due_at, id
                        LIMIT :limit))
        WHERE bytes_before < :bytes)

-- :name take_carried
-- Guard: as above, and only with the claim number that was handed over.
UPDATE duly_runs
   SET state = 'running', claim_number = claim_number + 1, worker_id = :worker_id,
       claimed_at = :claimed_at, progress = NULL, progress_text = NULL
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'queued'
   AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
   AND (expires_at IS NULL OR expires_at > :now)
   AND NOT EXISTS (
       SELECT 1 FROM duly_queues AS known
        WHERE known.name = duly_runs.queue
          AND (known.paused
               OR known.running_limit <= (SELECT count(*)
                                            FROM duly_runs AS other INDEXED BY duly_runs_held
                                           WHERE other.state = 'running'
                                             AND other.queue = known.name)))
   AND EXISTS (SELECT 1 FROM duly_workers WHERE id = :worker_id AND state = 'live')

-- :name put_off_handed
-- A run of a full queue is soon handed over again.
UPDATE duly_handed SET stale_at = :now + :after
 WHERE run_id = :run_id
   AND EXISTS (SELECT 1 FROM duly_runs AS run
                 JOIN duly_queues AS known ON known.name = run.queue
                WHERE run.id = :run_id AND run.state = 'queued' AND NOT known.paused
                  AND known.running_limit IS NOT NULL)

-- :name drop_handed
DELETE FROM duly_handed WHERE run_id = :run_id

-- :name bytes_taken
SELECT coalesce(sum(length(CAST(arguments AS BLOB))), 0)
  FROM duly_runs INDEXED BY duly_runs_held
 WHERE state = 'running' AND worker_id = :worker_id AND claimed_at = :claimed_at

-- :name taken
-- Every claim of a worker has a different claimed_at. The answer is one row of JSON, because the driver
-- releases the interpreter lock once per row.
SELECT json_group_array(json_array(
           id, claim_number, task, queue, lane, priority, due_at, attempt, retries_used, crashes,
           generation, key IS NOT NULL, tags, arguments, claimed_at))
  FROM duly_runs INDEXED BY duly_runs_held
 WHERE state = 'running' AND worker_id = :worker_id AND claimed_at = :claimed_at
