-- carry: hand runs over to another engine, once they are ready and again when nobody claims them.

-- :name lanes
SELECT queue, lane FROM duly_ready_lanes WHERE NOT paused AND lane IN ('carried', 'carried-hold')

-- :name fresh
SELECT id, claim_number, task, queue, priority
  FROM duly_runs INDEXED BY duly_runs_ready
 WHERE state = 'queued' AND queue = :queue AND lane = :lane
   AND task IN (SELECT value FROM json_each(:tasks))
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY priority DESC, due_at, id
 LIMIT :limit

-- :name hand
-- Guard: only a run that nobody runs.
UPDATE duly_runs SET lane = replace(lane, 'carried', 'handed')
 WHERE id = :run_id AND state = 'queued'

-- :name note
INSERT INTO duly_handed (run_id, times, stale_at) VALUES (:run_id, 1, :now + :stale)
    ON CONFLICT (run_id) DO UPDATE SET times = 1, stale_at = excluded.stale_at

-- :name stale
SELECT handed.run_id, run.claim_number, run.task, run.queue, run.priority, handed.times
  FROM duly_handed AS handed
  LEFT JOIN duly_runs AS run
    ON run.id = handed.run_id AND run.state = 'queued' AND run.lane IN ('handed', 'handed-hold')
 WHERE handed.stale_at <= :now
 ORDER BY handed.stale_at
 LIMIT :limit

-- :name note_again
UPDATE duly_handed SET times = times + 1, stale_at = :now + :after WHERE run_id = :run_id

-- :name put_off
UPDATE duly_handed SET stale_at = :now + :after WHERE run_id = :run_id

-- :name resume
-- Whoever was brought one while its queue was paused has used up the message.
UPDATE duly_handed SET stale_at = :now
 WHERE run_id IN (SELECT id FROM duly_runs INDEXED BY duly_runs_ready
                   WHERE state = 'queued' AND queue = :queue AND lane IN ('handed', 'handed-hold'))

-- :name forget
DELETE FROM duly_handed WHERE run_id = :run_id
