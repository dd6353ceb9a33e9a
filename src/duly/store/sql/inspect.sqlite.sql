-- inspect: what operators and pages read about attempts, logs, queues and workers.

-- :name summary
-- Reads a bounded number of runs, so that a long history does not make it slower.
SELECT queue, state, count(*), count(started_at), coalesce(sum(finished_at - started_at), 0)
  FROM (SELECT queue, state, started_at, finished_at
          FROM duly_history
         ORDER BY id DESC
         LIMIT :limit)
 GROUP BY queue, state
 ORDER BY queue, state

-- :name first_starts
-- The first start of these runs in their current generation, according to the ended attempts.
SELECT attempt.run_id, min(attempt.started_at)
  FROM duly_attempts AS attempt
  JOIN duly_every_run AS run ON run.id = attempt.run_id AND run.generation = attempt.generation
 WHERE attempt.run_id IN (SELECT value FROM json_each(:run_ids))
   AND run.id IN (SELECT value FROM json_each(:run_ids))
 GROUP BY attempt.run_id

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
SELECT at, actor, act, subject, reason, rowid
  FROM duly_acts
 WHERE (:subject IS NULL OR subject = :subject)
   AND rowid < coalesce(:before, 9223372036854775807)
 ORDER BY rowid DESC
 LIMIT :limit

-- :name has_act
SELECT 1 FROM duly_acts WHERE subject = :subject LIMIT 1

-- :name ends_by_time
SELECT at / :step * :step, state, sum(runs), sum(elapsed), sum(delay)
  FROM duly_tallies
 WHERE span IN (0, 60, 3600) AND at >= :since AND (state = 'retried') = :retried
 GROUP BY at / :step, state
 ORDER BY at / :step, state

-- :name ends_by_task
-- As in `fold`, no run lasted less than its last attempt.
SELECT task, queue, state, took, waited, sum(runs), sum(elapsed), sum(delay),
       sum(max(lasted, elapsed))
  FROM duly_tallies
 WHERE span IN (0, 60, 3600, 86400) AND at >= :since AND (state = 'retried') = :retried
 GROUP BY task, queue, state, took, waited
 ORDER BY task, queue, state, took, waited

-- :name oldest_ready
-- The run of each queue that has been due for longest. Within a lane and a priority, the index has runs
-- in that order. The statement jumps from one lane and priority to the next, up to `:jumps` in a queue.
-- So it finds a run that other runs always overtake, without reading a backlog.
WITH RECURSIVE head(place, queue, lane, priority, number) AS (
    SELECT * FROM (SELECT rowid, queue, lane, priority, 1
                     FROM duly_runs INDEXED BY duly_runs_ready
                    WHERE state = 'queued'
                    ORDER BY queue, lane, priority DESC, due_at, id LIMIT 1)
    UNION ALL
    SELECT next.rowid, next.queue, next.lane, next.priority,
           CASE WHEN next.queue = head.queue THEN head.number + 1 ELSE 1 END
      FROM head
      JOIN duly_runs AS next
        ON next.rowid = coalesce(
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND head.number < :jumps
               AND queue = head.queue AND lane = head.lane AND priority < head.priority
             ORDER BY priority DESC, due_at, id LIMIT 1),
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND head.number < :jumps
               AND queue = head.queue AND lane > head.lane
             ORDER BY lane, priority DESC, due_at, id LIMIT 1),
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND queue > head.queue
             ORDER BY queue, lane, priority DESC, due_at, id LIMIT 1))
)
SELECT run.queue, run.id, min(run.due_at), run.task, run.lane
  FROM head
  JOIN duly_runs AS run ON run.rowid = head.place
 WHERE run.queue NOT IN (SELECT name FROM duly_queues WHERE paused)
 GROUP BY run.queue
 ORDER BY run.queue

-- :name workers
SELECT id, state, host, pid, started_at, seen_at, stopped_at, lease_seconds, queues, tasks,
       (SELECT count(*) FROM duly_runs
         WHERE duly_runs.state = 'running' AND worker_id = duly_workers.id),
       version, engine
  FROM duly_workers
 WHERE :worker_id IS NULL OR id = :worker_id
 ORDER BY started_at DESC, id DESC
 LIMIT 200

-- :name live_workers
SELECT id, lease_seconds FROM duly_workers WHERE state = 'live'

-- :name paused
SELECT 1 FROM duly_queues WHERE name = :queue AND paused

-- :name queues
-- Counts stop at a cap. An operator needs "10,000 and more", not a count of all rows.
SELECT name,
       coalesce((SELECT paused FROM duly_queues AS known WHERE known.name = every.name), 0),
       (SELECT count(*) FROM (SELECT 1 FROM duly_runs
                               WHERE state = 'queued' AND queue = every.name LIMIT 10001)),
       (SELECT count(*) FROM (SELECT 1 FROM duly_waiting WHERE queue = every.name LIMIT 10001)),
       (SELECT count(*) FROM (SELECT 1 FROM duly_runs
                               WHERE state = 'running' AND queue = every.name LIMIT 10001)),
       (SELECT running_limit FROM duly_queues AS known WHERE known.name = every.name),
       (SELECT max_size FROM duly_queues AS known WHERE known.name = every.name)
  FROM (SELECT name FROM duly_queues
        UNION SELECT queue FROM duly_runs
        UNION SELECT queue FROM duly_waiting) AS every
 ORDER BY name

-- :name holders
SELECT 'queue', queue.running_limit, run.id, run.worker_id
  FROM duly_queues AS queue
  JOIN duly_runs AS run ON run.state = 'running' AND run.queue = queue.name
 WHERE queue.name = :queue AND queue.running_limit IS NOT NULL
UNION ALL
SELECT 'task', NULL, id, worker_id
  FROM duly_runs
 WHERE lane >= :low AND lane < :high AND state = 'running' AND lane >= '~'

-- :name cancel_requests
SELECT id FROM duly_runs
 WHERE state = 'running' AND worker_id = :worker_id AND cancel_requested

-- :name peek
-- Every term costs a few probes of an index. The last two columns are the age of the floors and the
-- time of the search for runs, which only PostgreSQL has.
SELECT coalesce(
           max(lane NOT IN ('suspect', 'carried', 'carried-hold', 'handed', 'handed-hold')
               AND lane < '~'), 0),
       coalesce(max(lane = 'suspect'), 0),
       EXISTS (SELECT 1 FROM duly_waiting WHERE parked IS NOT NULL),
       (SELECT min(at) FROM (
            SELECT min(due_at) AS at FROM duly_waiting WHERE parked IS NULL
            UNION ALL SELECT min(expires_at) FROM duly_waiting WHERE expires_at IS NOT NULL
            UNION ALL SELECT min(expires_at) FROM duly_runs
                       WHERE state = 'queued' AND expires_at IS NOT NULL)) - :now,
       (SELECT min(look_at) FROM duly_schedules WHERE look_at IS NOT NULL) - :now,
       EXISTS (SELECT 1 FROM duly_steps WHERE kind IN ('wait', 'gather') AND NOT done),
       EXISTS (SELECT 1 FROM duly_carried_lanes
                WHERE lane IN ('carried', 'carried-hold')
                  AND task IN (SELECT value FROM json_each(:carried))),
       EXISTS (SELECT 1 FROM duly_carried_lanes
                WHERE task NOT IN (SELECT value FROM json_each(:carried))),
       (SELECT min((SELECT min(stale_at) FROM duly_handed WHERE task = known.value))
          FROM json_each(:carried) AS known) - :now,
       EXISTS (SELECT 1 FROM duly_runs INDEXED BY duly_runs_limited
                WHERE state = 'queued' AND lane >= '~'),
       NULL, 0
  FROM duly_ready_lanes

-- :name columns_of
SELECT name FROM pragma_table_info(:table)

-- :name schema
SELECT max(version), max(oldest_code) FROM duly_schema
