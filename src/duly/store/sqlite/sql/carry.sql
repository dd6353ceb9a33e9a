-- carry: hand runs over to another engine, once they are ready and again when nobody claims them.

-- :name lanes
SELECT queue, lane, running_limit
  FROM duly_ready_lanes
 WHERE NOT paused AND lane IN ('carried', 'carried-hold')

-- :name out_of_queue
-- What is running in a queue, or was handed over: of a queue with a limit no more is.
SELECT (SELECT count(*) FROM duly_runs INDEXED BY duly_runs_held
         WHERE state = 'running' AND queue = :queue)
       + (SELECT count(*) FROM duly_runs INDEXED BY duly_runs_ready
           WHERE state = 'queued' AND queue = :queue AND lane IN ('handed', 'handed-hold'))

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
INSERT INTO duly_handed (run_id, task, times, stale_at) VALUES (:run_id, :task, 1, :now + :stale)
    ON CONFLICT (run_id) DO UPDATE SET times = 1, stale_at = excluded.stale_at

-- :name stale
SELECT handed.run_id, run.claim_number, run.queue, run.priority, handed.times
  FROM duly_handed AS handed
  LEFT JOIN duly_runs AS run
    ON run.id = handed.run_id AND run.state = 'queued' AND run.lane IN ('handed', 'handed-hold')
 WHERE handed.task = :task AND handed.stale_at <= :now
 ORDER BY handed.stale_at
 LIMIT :limit

-- :name note_again
UPDATE duly_handed SET times = times + 1, stale_at = :now + :after WHERE run_id = :run_id

-- :name unsent
-- A sending that failed does not count, unless it was the first: a mark stands for one at least.
UPDATE duly_handed SET times = max(times - 1, 1), stale_at = :now + :after WHERE run_id = :run_id

-- :name resume
-- Whoever was brought one while its queue was paused has used up the message, and it does not count.
UPDATE duly_handed SET times = 1, stale_at = :now
 WHERE run_id IN (SELECT id FROM duly_runs INDEXED BY duly_runs_ready
                   WHERE state = 'queued' AND queue = :queue AND lane IN ('handed', 'handed-hold'))

-- :name forget
DELETE FROM duly_handed WHERE run_id = :run_id

-- :name seen_to
SELECT DISTINCT seen.key, seen.value
  FROM duly_workers, json_each(duly_workers.lanes) AS seen
 WHERE state = 'live'

-- :name carried_tasks
SELECT DISTINCT task FROM duly_carried_lanes

-- :name bring_back
SELECT id
  FROM duly_runs INDEXED BY duly_runs_carried
 WHERE state = 'queued' AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
   AND task = :task
 LIMIT :limit

-- :name own_lanes
SELECT queue, lane
  FROM duly_ready_lanes
 WHERE lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')

-- :name send_away
-- Looks where a claim would begin to walk, as parking does.
SELECT id, task
  FROM (SELECT id, task
          FROM duly_runs INDEXED BY duly_runs_ready
         WHERE state = 'queued' AND queue = :queue AND lane = :lane
         ORDER BY priority DESC, due_at, id
         LIMIT :limit)
 WHERE task IN (SELECT value FROM json_each(:tasks))

-- :name move
-- Guard: only a run that nobody runs. A message about it, if it comes yet, claims nothing while it
-- is ours. What was to be held after a crash stays so.
UPDATE duly_runs
   SET lane = CASE WHEN substr(lane, -5) = '-hold'
                   THEN replace(:lane, '-hold', '') || '-hold'
                   ELSE :lane END
 WHERE id = :run_id AND state = 'queued'
