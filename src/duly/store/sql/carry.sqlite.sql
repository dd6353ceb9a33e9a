-- carry: hand runs over to another engine when they are ready, and again if no worker claims them.

-- :part fresh_runs
-- In a queue with a limit, no more runs are handed over than may be running.
WITH turn AS MATERIALIZED (
    SELECT queue,
           CASE WHEN running_limit IS NULL THEN :limit
                ELSE running_limit
                     - (SELECT count(*) FROM duly_runs AS other INDEXED BY duly_runs_held
                         WHERE other.state = 'running' AND other.queue = known.queue)
                     - (SELECT count(*) FROM duly_runs AS other INDEXED BY duly_runs_ready
                         WHERE other.state = 'queued' AND other.queue = known.queue
                           AND other.lane IN ('handed', 'handed-hold')) END AS room
      FROM (SELECT DISTINCT queue, running_limit
              FROM duly_ready_lanes
             WHERE NOT paused AND lane IN ('carried', 'carried-hold')) AS known
)
SELECT run.id
  FROM turn
 CROSS JOIN duly_runs AS run
 WHERE run.id IN (
       SELECT id
         FROM (SELECT id, row_number() OVER () AS number
                 FROM (SELECT * FROM (
                              SELECT id FROM duly_runs INDEXED BY duly_runs_ready
                               WHERE state = 'queued' AND queue = turn.queue AND lane = 'carried'
                                 AND task IN (SELECT value FROM json_each(:tasks))
                                 AND (expires_at IS NULL OR expires_at > :now)
                               ORDER BY priority DESC, due_at, id
                               LIMIT :limit)
                        UNION ALL
                       SELECT * FROM (
                              SELECT id FROM duly_runs INDEXED BY duly_runs_ready
                               WHERE state = 'queued' AND queue = turn.queue AND lane = 'carried-hold'
                                 AND task IN (SELECT value FROM json_each(:tasks))
                                 AND (expires_at IS NULL OR expires_at > :now)
                               ORDER BY priority DESC, due_at, id
                               LIMIT :limit)))
        WHERE number <= turn.room)
 LIMIT :limit

-- :part carried_runs
-- The runs of the tasks in `lanes`.
SELECT run.id
  FROM json_each(:lanes) AS home
 CROSS JOIN duly_runs AS run
 WHERE run.id IN (SELECT id
                    FROM duly_runs INDEXED BY duly_runs_carried
                   WHERE state = 'queued'
                     AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
                     AND task = json_extract(home.value, '$[0]')
                   LIMIT :limit)
 LIMIT :limit

-- :part new_lane
-- A run that must be held after a crash keeps this property.
(SELECT CASE WHEN substr(lane, -5) = '-hold'
             THEN replace(json_extract(home.value, '$[1]'), '-hold', '') || '-hold'
             ELSE json_extract(home.value, '$[1]') END
   FROM json_each(:lanes) AS home
  WHERE json_extract(home.value, '$[0]') = task)

-- :name fresh
-- Guard: only a run that no worker runs. Both statements find the same runs, since the first one
-- changes none.
-- :stop-if-none
INSERT INTO duly_handed (run_id, task, times, stale_at)
SELECT id, task, 1, :now + :stale FROM duly_runs WHERE id IN (:part(fresh_runs))
    ON CONFLICT (run_id) DO UPDATE SET times = 1, stale_at = excluded.stale_at
-- :then
UPDATE duly_runs SET lane = replace(lane, 'carried', 'handed')
 WHERE state = 'queued' AND id IN (:part(fresh_runs))
RETURNING id, claim_number, task, queue, priority

-- :name stale
-- The claim number is NULL if the run no longer waits for its engine. The caller then deletes the mark
-- of such a run, and of a run that was handed over as often as allowed.
UPDATE duly_handed
   SET times = times + 1,
       stale_at = :now + CASE WHEN times + 1 = :most THEN :longest
                              ELSE min(:stale * (1 << min(times, 30)), :longest) END
 WHERE run_id IN (
       SELECT mark.run_id
         FROM json_each(:tasks) AS known
        CROSS JOIN duly_handed AS mark
        WHERE mark.run_id IN (SELECT run_id
                                FROM duly_handed
                               WHERE task = known.value AND stale_at <= :now
                               ORDER BY stale_at
                               LIMIT :limit)
        LIMIT :limit)
RETURNING run_id,
          (SELECT claim_number FROM duly_runs
            WHERE id = run_id AND state = 'queued' AND lane IN ('handed', 'handed-hold')),
          task,
          (SELECT queue FROM duly_runs WHERE id = run_id),
          (SELECT priority FROM duly_runs WHERE id = run_id),
          times - 1

-- :name drop_marks
DELETE FROM duly_handed WHERE run_id IN (SELECT value FROM json_each(:run_ids)) RETURNING run_id

-- :name unsent
-- A message that could not be sent does not count, unless it was the first: a mark counts at least one.
UPDATE duly_handed
   SET times = max(times - 1, 1), stale_at = :now + :after
 WHERE run_id IN (SELECT value FROM json_each(:run_ids))

-- :name resume
-- A worker that received a message while the queue was paused has consumed the message. It does not
-- count.
UPDATE duly_handed SET times = 1, stale_at = :now
 WHERE run_id IN (SELECT id FROM duly_runs INDEXED BY duly_runs_ready
                   WHERE state = 'queued' AND queue = :queue AND lane IN ('handed', 'handed-hold'))

-- :name seen_to
SELECT DISTINCT seen.key, seen.value
  FROM duly_workers, json_each(duly_workers.lanes) AS seen
 WHERE state = 'live'

-- :name carried_tasks
SELECT DISTINCT task FROM duly_carried_lanes

-- :name bring_back
-- Guard: only a run that no worker runs. A message about it that arrives later claims nothing. Both
-- statements find the same runs, since the first one changes none.
DELETE FROM duly_handed WHERE run_id IN (:part(carried_runs))
-- :then
UPDATE duly_runs SET lane = :part(new_lane)
 WHERE state = 'queued' AND id IN (:part(carried_runs))
-- :then
SELECT changes()

-- :name send_away
-- Guard: as above. Like parking, it reads the runs that a claim would read first. It reads every
-- queue, so the next op need not continue after a queue.
UPDATE duly_runs SET lane = :part(new_lane)
 WHERE state = 'queued'
   AND id IN (SELECT run.id
                FROM (SELECT queue, lane
                        FROM duly_ready_lanes
                       WHERE lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')) AS own
               CROSS JOIN duly_runs AS run
               WHERE run.id IN (SELECT id
                                  FROM duly_runs INDEXED BY duly_runs_ready
                                 WHERE state = 'queued' AND queue = own.queue AND lane = own.lane
                                 ORDER BY priority DESC, due_at, id
                                 LIMIT :limit)
                 AND run.task IN (SELECT json_extract(value, '$[0]') FROM json_each(:lanes))
               LIMIT :limit)
-- :then
SELECT changes(), '', ''
