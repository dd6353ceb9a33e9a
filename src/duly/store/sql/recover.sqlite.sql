-- recover: end a dead worker. Its runs are settled as Lost by the same statements as any attempt.

-- :name end_worker
-- Returns whether the worker has sent a heartbeat in the meantime. Heartbeats on SQLite are in files,
-- and a worker whose file is not locked can send no heartbeat.
UPDATE duly_workers
   SET state = :state, stopped_at = :now
 WHERE id = :worker_id AND state = 'live'
RETURNING false

-- :name held
SELECT id, claim_number, task, lane, attempt, retries_used, crashes, key IS NOT NULL,
       cancel_requested, max(:now - claimed_at, 0)
  FROM duly_runs
 WHERE state = 'running' AND worker_id = :worker_id
 ORDER BY id

-- :name orphans
SELECT id
  FROM duly_runs INDEXED BY duly_runs_held
 WHERE state = 'running'
   AND worker_id NOT IN (SELECT id FROM duly_workers WHERE state = 'live')
 LIMIT :limit

-- :name still_orphaned
SELECT id, claim_number, task, lane, attempt, retries_used, crashes, key IS NOT NULL,
       cancel_requested, max(:now - claimed_at, 0)
  FROM duly_runs
 WHERE id IN (SELECT value FROM json_each(:ids))
 ORDER BY id

-- :name forget_retentions
-- The retentions of tasks that no longer have one of their own.
DELETE FROM duly_retentions
 WHERE task IN (SELECT value FROM json_each(:tasks))
   AND task NOT IN (SELECT key FROM json_each(:retentions))

-- :name note_retentions
INSERT INTO duly_retentions (task, kept)
SELECT key, value FROM json_each(:retentions) WHERE true
    ON CONFLICT (task) DO UPDATE SET kept = excluded.kept WHERE duly_retentions.kept <> excluded.kept

-- :name register
-- A second call adds tasks that were defined since the first one. It does not revive a dead worker.
INSERT INTO duly_workers
    (id, state, host, pid, started_at, seen_at, lease_seconds, queues, tasks, lanes, version,
     engine)
VALUES (:worker_id, 'live', :host, :pid, :now, :now, :lease_seconds, :queues, :tasks, :lanes,
        :version, :engine)
    ON CONFLICT (id) DO UPDATE
   SET tasks = excluded.tasks, lanes = excluded.lanes, queues = excluded.queues
 WHERE duly_workers.state = 'live'
