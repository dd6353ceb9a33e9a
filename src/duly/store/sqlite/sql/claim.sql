-- claim: take ready runs for a live worker. SQLite has one writer, so the statements of this file
-- act as the one statement PostgreSQL uses.

-- :name ready
-- Nothing is ready for a worker that is not live.
SELECT json_group_array(json_array(queue, lane))
  FROM duly_ready_lanes
 WHERE NOT paused
   AND EXISTS (SELECT 1 FROM duly_workers WHERE id = :worker_id AND state = 'live')

-- :name take
-- Guard: only queued rows of the partial index; claim_number grows by one, and is the fence.
UPDATE duly_runs
   SET state = 'running', claim_number = claim_number + 1, worker_id = :worker_id,
       claimed_at = :now, progress = NULL, progress_text = NULL
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

-- :name take_carried
-- Guard: as above, and only for the claim that was handed over.
UPDATE duly_runs
   SET state = 'running', claim_number = claim_number + 1, worker_id = :worker_id,
       claimed_at = :now, progress = NULL, progress_text = NULL
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'queued'
   AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
   AND (expires_at IS NULL OR expires_at > :now)
   AND NOT EXISTS (SELECT 1 FROM duly_queues WHERE name = duly_runs.queue AND paused)
   AND EXISTS (SELECT 1 FROM duly_workers WHERE id = :worker_id AND state = 'live')

-- :name drop_handed
DELETE FROM duly_handed WHERE run_id = :run_id

-- :name taken
-- The store gives every claim of a worker another claimed_at. The answer is one row of JSON:
-- stepping through rows would hand the interpreter lock over once per row.
SELECT json_group_array(json_array(
           id, claim_number, task, queue, lane, priority, due_at, attempt, retries_used, crashes,
           generation, key IS NOT NULL, tags, arguments))
  FROM duly_runs INDEXED BY duly_runs_held
 WHERE state = 'running' AND worker_id = :worker_id AND claimed_at = :now
