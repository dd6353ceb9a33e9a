-- schedules: fire due schedules, and change schedules.

-- :name due
-- Schedules that have been due for a time within the bounds, the most overdue first. Each row includes
-- whether the last run is live, the number of failures after which it pauses, and the present time.
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at,
       EXISTS (SELECT 1 FROM duly_runs WHERE id = plan.last_run_id)
       OR EXISTS (SELECT 1 FROM duly_waiting WHERE id = plan.last_run_id),
       pause_after, :now
  FROM duly_schedules AS plan
 WHERE look_at <= :now - :at_least AND look_at > :now - :less_than
 ORDER BY look_at LIMIT :limit

-- :name lock_free
-- There is one writer, so no other transaction can have locked any of these schedules.
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at
  FROM duly_schedules
 WHERE name IN (SELECT value FROM json_each(:names))
 ORDER BY name

-- :name ahead
-- Schedules that fired while the clock was ahead. The clock has been set back since then.
SELECT DISTINCT schedule FROM duly_firings WHERE fired_at > :now + :by LIMIT :limit

-- :name date_back
UPDATE duly_firings SET fired_at = :now WHERE schedule = :schedule AND fired_at > :now

-- :name failures
-- The number of the schedule's last runs that failed after it was last changed or resumed.
SELECT count(*) FROM (
       SELECT run.state
         FROM duly_schedules AS plan
         JOIN duly_firings AS fired
           ON fired.schedule = plan.name AND fired.instant > plan.failures_from
         JOIN duly_history AS run ON run.id = fired.run_id
        WHERE plan.name = :schedule
        ORDER BY fired.instant DESC LIMIT :limit) AS last
 WHERE last.state IN ('failed', 'interrupted')

-- :name live
-- Not part of `one`: PostgreSQL must read this after it has the lock.
SELECT id FROM duly_runs WHERE id = :run_id
 UNION ALL
SELECT id FROM duly_waiting WHERE id = :run_id

-- :name one
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at,
       pause_after, :now
  FROM duly_schedules
 WHERE name = :name

-- :name add_firings
-- Guard: an instant that already has a row stays unchanged. Only a backfill may run a skipped instant.
INSERT INTO duly_firings
    (schedule, instant, last_instant, instants, version, outcome, reason, run_id, fired_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       json_extract(value, '$[6]'), json_extract(value, '$[7]'), :now
  FROM json_each(:firings)
 WHERE true
    ON CONFLICT (schedule, instant) DO UPDATE
   SET outcome = excluded.outcome, reason = excluded.reason, run_id = excluded.run_id,
       fired_at = excluded.fired_at
 WHERE :replaces_skipped AND duly_firings.outcome = 'skipped' AND duly_firings.instants = 1
RETURNING schedule, instant

-- :name rows_within
SELECT schedule, instant, last_instant, instants, version, outcome, reason, run_id, fired_at
  FROM duly_firings
 WHERE schedule = :schedule AND instant <= :until AND last_instant >= :begin

-- :name write_row
INSERT INTO duly_firings
    (schedule, instant, last_instant, instants, version, outcome, reason, run_id, fired_at)
VALUES (:schedule, :instant, :last_instant, :row, :version, :outcome, :reason, :run_id, :fired_at)

-- :name drop_row
DELETE FROM duly_firings WHERE schedule = :schedule AND instant = :instant

-- :name release
UPDATE duly_firings
   SET outcome = 'run', run_id = :run_id, fired_at = :now
 WHERE schedule = :schedule
   AND instant = (SELECT min(instant) FROM duly_firings INDEXED BY duly_firings_waiting
                   WHERE schedule = :schedule AND outcome = 'waiting')

-- :name move
UPDATE duly_schedules AS plan
   SET next_at = moved.next_at, look_at = moved.look_at, waiting = moved.waiting,
       state = moved.state, reason = moved.reason,
       last_run_id = coalesce(moved.last_run_id, plan.last_run_id),
       updated_at = CASE WHEN moved.state = 'ended' THEN :now ELSE plan.updated_at END
  FROM (SELECT json_extract(value, '$[0]') AS name, json_extract(value, '$[1]') AS next_at,
               json_extract(value, '$[2]') AS look_at, json_extract(value, '$[3]') AS waiting,
               json_extract(value, '$[4]') AS state, json_extract(value, '$[5]') AS reason,
               json_extract(value, '$[6]') AS last_run_id
          FROM json_each(:positions)) AS moved
 WHERE plan.name = moved.name

-- :name put
INSERT INTO duly_schedules
    (name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at, pause_after,
     failures_from)
VALUES (:name, :version, :source, :place, :task, :queue, :lane, :priority, :arguments, :expires, :trigger,
        :rules, :state, :reason, :next_at, :look_at, :waiting, :last_run_id, :created_at,
        :updated_at, :pause_after, :updated_at)
    ON CONFLICT (name) DO UPDATE
   SET version = excluded.version, source = excluded.source, place = excluded.place,
       task = excluded.task, queue = excluded.queue, lane = excluded.lane,
       priority = excluded.priority, arguments = excluded.arguments, expires = excluded.expires,
       trigger = excluded.trigger,
       rules = excluded.rules, state = excluded.state, reason = excluded.reason,
       next_at = excluded.next_at, look_at = excluded.look_at, waiting = excluded.waiting,
       updated_at = excluded.updated_at, pause_after = excluded.pause_after,
       failures_from = excluded.failures_from

-- :name drop_waiting
UPDATE duly_firings SET outcome = 'skipped', reason = :reason, fired_at = :now
 WHERE schedule = :schedule AND outcome = 'waiting'

-- :name lock_name
-- There is one writer, so the name is locked. The answer is the time.
SELECT :now

-- :name schedules
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at
  FROM duly_schedules
 WHERE name > :after AND (:name IS NULL OR name = :name) AND (:removed OR state <> 'removed')
   AND (:source IS NULL OR source = :source) AND (:state IS NULL OR state = :state)
 ORDER BY name LIMIT :limit

-- :name next_schedules
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at
  FROM duly_schedules
 WHERE state = 'active' AND next_at IS NOT NULL
 ORDER BY next_at, name LIMIT :limit

-- :name firings
SELECT schedule, instant, last_instant, instants, version, outcome, reason, run_id, fired_at,
       coalesce((SELECT state FROM duly_history WHERE id = fired.run_id),
                (SELECT state FROM duly_runs WHERE id = fired.run_id),
                (SELECT 'queued' FROM duly_waiting WHERE id = fired.run_id))
  FROM duly_firings AS fired
 WHERE schedule = :schedule AND instant < :before
 ORDER BY instant DESC LIMIT :limit
