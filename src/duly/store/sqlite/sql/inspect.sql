-- inspect: reads. A run is read from the view over all three tables in one statement.

-- :name run
SELECT * FROM duly_every_run WHERE id = :run_id

-- :name states
SELECT id, state FROM duly_every_run WHERE id IN (SELECT value FROM json_each(:run_ids))

-- :name runs
SELECT *
  FROM duly_every_run AS run
 WHERE id < coalesce(:before, '~')  -- No id is beyond that; so worded it is found by the key.
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:task IS NULL OR task = :task)
   AND (:queue IS NULL OR queue = :queue)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
   AND (:since IS NULL OR created_at >= :since)
   AND (:tag_name IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = :tag_name AND value = :tag_value AND run_id = run.id))
 ORDER BY id DESC
 LIMIT :limit

-- :name dead_runs
-- The same filters over dead letters alone, by their own index.
SELECT *
  FROM duly_every_run
 WHERE id IN (
       SELECT id FROM duly_history INDEXED BY duly_history_died
        WHERE state IN ('failed', 'interrupted')
          AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
          AND id < coalesce(:before, '~')
          AND (:task IS NULL OR task = :task)
          AND (:queue IS NULL OR queue = :queue)
          AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
          AND (:since IS NULL OR created_at >= :since)
          AND (:tag_name IS NULL OR EXISTS (
               SELECT 1 FROM duly_tags
                WHERE name = :tag_name AND value = :tag_value AND run_id = duly_history.id))
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name dead_groups
SELECT task, coalesce(fingerprint, ''), count(*), max(error), min(finished_at), max(finished_at),
       max(id)
  FROM duly_history
 WHERE state IN ('failed', 'interrupted')
   AND (:task IS NULL OR task = :task)
   AND (:queue IS NULL OR queue = :queue)
   AND (:since IS NULL OR created_at >= :since)
 GROUP BY task, coalesce(fingerprint, '')
 ORDER BY count(*) DESC, task
 LIMIT :limit

-- :name summary
-- Of a bounded number, so that it costs the same whatever the history holds.
SELECT queue, state, count(*), count(started_at), coalesce(sum(finished_at - started_at), 0)
  FROM (SELECT queue, state, started_at, finished_at
          FROM duly_history
         ORDER BY id DESC
         LIMIT :limit)
 GROUP BY queue, state
 ORDER BY queue, state

-- :name attempts
SELECT run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
       error, traceback
  FROM duly_attempts WHERE run_id = :run_id
UNION ALL
SELECT id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
       error, traceback
  FROM duly_history WHERE id = :run_id AND outcome IS NOT NULL
 ORDER BY claim_number

-- :name logs
SELECT run_id, claim_number, at, level, message
  FROM duly_logs WHERE run_id = :run_id
 ORDER BY at, rowid
 LIMIT :limit

-- :name acts
SELECT at, actor, act, subject, reason
  FROM duly_acts
 WHERE (:subject IS NULL OR subject = :subject)
 ORDER BY at DESC, rowid DESC
 LIMIT :limit

-- :name workers
SELECT id, state, host, pid, started_at, seen_at, stopped_at, lease_seconds, queues, tasks,
       (SELECT count(*) FROM duly_runs
         WHERE duly_runs.state = 'running' AND worker_id = duly_workers.id)
  FROM duly_workers
 ORDER BY started_at DESC, id DESC
 LIMIT 200

-- :name live_workers
SELECT id FROM duly_workers WHERE state = 'live'

-- :name paused
SELECT 1 FROM duly_queues WHERE name = :queue AND paused

-- :name queues
-- Counts stop at a cap: an operator needs "10,000 and more", not a walk over all of them.
SELECT name,
       coalesce((SELECT paused FROM duly_queues AS known WHERE known.name = every.name), 0),
       (SELECT count(*) FROM (SELECT 1 FROM duly_runs
                               WHERE state = 'queued' AND queue = every.name LIMIT 10001)),
       (SELECT count(*) FROM (SELECT 1 FROM duly_waiting WHERE queue = every.name LIMIT 10001)),
       (SELECT count(*) FROM (SELECT 1 FROM duly_runs
                               WHERE state = 'running' AND queue = every.name LIMIT 10001))
  FROM (SELECT name FROM duly_queues
        UNION SELECT queue FROM duly_runs
        UNION SELECT queue FROM duly_waiting) AS every
 ORDER BY name

-- :name cancel_requests
SELECT id FROM duly_runs
 WHERE state = 'running' AND worker_id = :worker_id AND cancel_requested

-- :name peek
-- Every term is a few probes of an index.
SELECT coalesce(
           max(lane NOT IN ('suspect', 'carried', 'carried-hold', 'handed', 'handed-hold')), 0),
       coalesce(max(lane = 'suspect'), 0),
       EXISTS (SELECT 1 FROM duly_waiting WHERE parked IS NOT NULL),
       (SELECT min(at) FROM (
            SELECT min(due_at) AS at FROM duly_waiting WHERE parked IS NULL
            UNION ALL SELECT min(expires_at) FROM duly_waiting WHERE expires_at IS NOT NULL
            UNION ALL SELECT min(expires_at) FROM duly_runs
                       WHERE state = 'queued' AND expires_at IS NOT NULL)),
       (SELECT min(look_at) FROM duly_schedules WHERE look_at IS NOT NULL),
       EXISTS (SELECT 1 FROM duly_steps WHERE kind IN ('wait', 'gather') AND NOT done),
       EXISTS (SELECT 1 FROM duly_carried_lanes
                WHERE lane IN ('carried', 'carried-hold')
                  AND task IN (SELECT value FROM json_each(:carried))),
       EXISTS (SELECT 1 FROM duly_carried_lanes
                WHERE task NOT IN (SELECT value FROM json_each(:carried))),
       (SELECT min((SELECT min(stale_at) FROM duly_handed WHERE task = known.value))
          FROM json_each(:carried) AS known)
  FROM duly_ready_lanes
