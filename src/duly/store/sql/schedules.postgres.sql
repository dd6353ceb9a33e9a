-- schedules: fire schedules that are due, and change schedules.
-- PostgreSQL has many writers. A transaction that fires a schedule locks it, and others skip it.

-- :name due
-- Schedules that have been due for a time between two bounds, the most overdue first. With each:
-- whether its last run is live, the number of failures after which it pauses, and the present time.
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, duly_microseconds(next_at), duly_microseconds(look_at), waiting,
       last_run_id::text,
       duly_microseconds(created_at), duly_microseconds(updated_at),
       EXISTS (SELECT 1 FROM duly_runs WHERE id = plan.last_run_id OFFSET 0)
       OR EXISTS (SELECT 1 FROM duly_waiting WHERE id = plan.last_run_id OFFSET 0),
       pause_after, duly_microseconds(duly_now())
  FROM duly_schedules AS plan
 WHERE look_at <= duly_now() - %(at_least)s::float8 * interval '1 microsecond'
   AND look_at > duly_now() - %(less_than)s::float8 * interval '1 microsecond'
 ORDER BY look_at LIMIT %(limit)s

-- :name lock_free
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, duly_microseconds(next_at), duly_microseconds(look_at), waiting,
       last_run_id::text,
       duly_microseconds(created_at), duly_microseconds(updated_at)
  FROM duly_schedules
 WHERE name = ANY (%(names)s::text[])
 ORDER BY name
   FOR UPDATE SKIP LOCKED

-- :name ahead
-- Schedules that fired by a clock that was ahead and has been set back since.
SELECT DISTINCT schedule FROM duly_firings
 WHERE fired_at > duly_now() + %(by)s::float8 * interval '1 microsecond' LIMIT %(limit)s

-- :name date_back
UPDATE duly_firings SET fired_at = duly_now()
 WHERE schedule = %(schedule)s AND fired_at > duly_now()

-- :name live
-- Not part of `one`, because a statement that waits for a lock reads other tables as of its start.
SELECT id FROM duly_runs WHERE id = %(run_id)s::uuid
 UNION ALL
SELECT id FROM duly_waiting WHERE id = %(run_id)s::uuid

-- :name failures
-- The number of its last runs that failed since the schedule was last changed or resumed.
SELECT pg_catalog.count(*) FROM (
       SELECT run.state
         FROM duly_schedules AS plan
         JOIN duly_firings AS fired
           ON fired.schedule = plan.name AND fired.instant > plan.failures_from
         JOIN duly_history AS run ON run.id = fired.run_id
        WHERE plan.name = %(schedule)s
        ORDER BY fired.instant DESC LIMIT %(limit)s) AS last
 WHERE last.state IN ('failed', 'interrupted')

-- :name one
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, duly_microseconds(next_at), duly_microseconds(look_at), waiting,
       last_run_id::text,
       duly_microseconds(created_at), duly_microseconds(updated_at),
       pause_after, duly_microseconds(duly_now())
  FROM duly_schedules
 WHERE name = %(name)s
   FOR UPDATE

-- :name add_firings
-- Guard: a recorded instant stays as it is. A backfill may only run an instant that was skipped.
INSERT INTO duly_firings
    (schedule, instant, last_instant, instants, version, outcome, reason, run_id, fired_at)
SELECT schedule, duly_time(instant), duly_time(last_instant), instants, version, outcome, reason,
       run_id, duly_now()
  FROM unnest(%(schedules)s::text[], %(instants)s::bigint[], %(last_instants)s::bigint[],
              %(counts)s::integer[], %(versions)s::integer[], %(outcomes)s::text[],
              %(reasons)s::text[], %(run_ids)s::uuid[])
       AS firing(schedule, instant, last_instant, instants, version, outcome, reason, run_id)
    ON CONFLICT (schedule, instant) DO UPDATE
   SET outcome = excluded.outcome, reason = excluded.reason, run_id = excluded.run_id,
       fired_at = excluded.fired_at
 WHERE %(replaces_skipped)s::boolean AND duly_firings.outcome = 'skipped'
   AND duly_firings.instants = 1
RETURNING schedule, duly_microseconds(instant)

-- :name rows_within
SELECT schedule, duly_microseconds(instant), duly_microseconds(last_instant), instants, version,
       outcome, reason, run_id::text, duly_microseconds(fired_at)
  FROM duly_firings
 WHERE schedule = %(schedule)s AND instant <= duly_time(%(until)s::bigint)
   AND last_instant >= duly_time(%(begin)s::bigint)

-- :name write_row
INSERT INTO duly_firings
    (schedule, instant, last_instant, instants, version, outcome, reason, run_id, fired_at)
VALUES (%(schedule)s, duly_time(%(instant)s::bigint), duly_time(%(last_instant)s::bigint), %(row)s,
        %(version)s, %(outcome)s, %(reason)s, %(run_id)s, duly_time(%(fired_at)s::bigint))

-- :name drop_row
DELETE FROM duly_firings WHERE schedule = %(schedule)s AND instant = duly_time(%(instant)s::bigint)

-- :name release
UPDATE duly_firings
   SET outcome = 'run', run_id = %(run_id)s, fired_at = duly_now()
 WHERE schedule = %(schedule)s
   AND instant = (SELECT pg_catalog.min(instant) FROM duly_firings
                   WHERE schedule = %(schedule)s AND outcome = 'waiting')

-- :name move
-- No join with the names: with the statistics of an emptied table, each name would read all rows.
UPDATE duly_schedules AS plan
   SET next_at = duly_time((%(next_ats)s::bigint[])
                             [pg_catalog.array_position(%(names)s::text[], plan.name)]),
       look_at = duly_time((%(look_ats)s::bigint[])
                             [pg_catalog.array_position(%(names)s::text[], plan.name)]),
       waiting = (%(waiting)s::integer[])[pg_catalog.array_position(%(names)s::text[], plan.name)],
       state = (%(states)s::text[])[pg_catalog.array_position(%(names)s::text[], plan.name)],
       reason = (%(reasons)s::text[])[pg_catalog.array_position(%(names)s::text[], plan.name)],
       last_run_id = coalesce(
           (%(last_run_ids)s::uuid[])[pg_catalog.array_position(%(names)s::text[], plan.name)],
           plan.last_run_id),
       updated_at = CASE WHEN (%(states)s::text[])
                         [pg_catalog.array_position(%(names)s::text[], plan.name)]
                              = 'ended' THEN duly_now() ELSE plan.updated_at END
 WHERE plan.name = ANY (%(names)s::text[])

-- :name put
INSERT INTO duly_schedules
    (name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, next_at, look_at, waiting, last_run_id, created_at, updated_at, pause_after,
     failures_from)
VALUES (%(name)s, %(version)s, %(source)s, %(place)s, %(task)s, %(queue)s, %(lane)s, %(priority)s,
        %(arguments)s, %(expires)s, %(trigger)s, %(rules)s, %(state)s, %(reason)s,
        duly_time(%(next_at)s::bigint), duly_time(%(look_at)s::bigint), %(waiting)s,
        %(last_run_id)s, duly_time(%(created_at)s::bigint), duly_time(%(updated_at)s::bigint),
        %(pause_after)s, duly_time(%(updated_at)s::bigint))
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
UPDATE duly_firings SET outcome = 'skipped', reason = %(reason)s, fired_at = duly_now()
 WHERE schedule = %(schedule)s AND outcome = 'waiting'

-- :name lock_name
-- If two transactions put the same new schedule, the second waits, and then finds the row of the first.
-- The answer is the time at which the wait began.
SELECT duly_microseconds(duly_now())
  FROM pg_catalog.pg_advisory_xact_lock(duly_key_lock('schedule', %(name)s))

-- :name schedules
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, duly_microseconds(next_at), duly_microseconds(look_at), waiting,
       last_run_id::text,
       duly_microseconds(created_at), duly_microseconds(updated_at)
  FROM duly_schedules
 WHERE name > %(after)s::text AND (%(name)s::text IS NULL OR name = %(name)s)
   AND (%(removed)s::boolean OR state <> 'removed')
   AND (%(source)s::text IS NULL OR source = %(source)s)
   AND (%(state)s::text IS NULL OR state = %(state)s)
 ORDER BY name LIMIT %(limit)s

-- :name next_schedules
SELECT name, version, source, place, task, queue, lane, priority, arguments, expires, trigger,
       rules, state, reason, duly_microseconds(next_at), duly_microseconds(look_at), waiting,
       last_run_id::text,
       duly_microseconds(created_at), duly_microseconds(updated_at)
  FROM duly_schedules AS plan
 WHERE state = 'active' AND plan.next_at IS NOT NULL
 ORDER BY plan.next_at, name LIMIT %(limit)s

-- :name firings
SELECT schedule, duly_microseconds(instant), duly_microseconds(last_instant), instants, version,
       outcome, reason, run_id::text, duly_microseconds(fired_at),
       coalesce((SELECT state FROM duly_history WHERE id = fired.run_id),
                (SELECT state FROM duly_runs WHERE id = fired.run_id),
                (SELECT 'queued' FROM duly_waiting WHERE id = fired.run_id))
  FROM duly_firings AS fired
 WHERE schedule = %(schedule)s AND instant < duly_time(%(before)s::bigint)
 ORDER BY instant DESC LIMIT %(limit)s
