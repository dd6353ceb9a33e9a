-- prune: forget finished runs and keys whose time is over.

-- :name drop_runs
-- One statement, where SQLite deletes run by run. The oldest are found by the block ranges of
-- duly_history_finished, so a prune that finds nothing reads next to nothing.
WITH ended AS MATERIALIZED (
    SELECT id FROM duly_history
     WHERE finished_at < duly_now() - %(older_than)s::bigint * interval '1 microsecond'
       AND state NOT IN ('failed', 'interrupted')
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), dead AS MATERIALIZED (
    SELECT id FROM duly_history
     WHERE finished_at < duly_now() - %(dead_older_than)s::bigint * interval '1 microsecond'
       AND state IN ('failed', 'interrupted')
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), runs AS (
    DELETE FROM duly_history USING (TABLE ended UNION ALL TABLE dead) AS old
     WHERE duly_history.id = old.id
    RETURNING duly_history.id
), attempts AS (
    DELETE FROM duly_attempts USING runs WHERE duly_attempts.run_id = runs.id
), logs AS (
    DELETE FROM duly_logs USING runs WHERE duly_logs.run_id = runs.id
), tags AS (
    DELETE FROM duly_tags USING runs WHERE duly_tags.run_id = runs.id
), steps AS (
    DELETE FROM duly_steps USING runs WHERE duly_steps.run_id = runs.id
)
SELECT count(*) FROM runs

-- :name drop_events
WITH old AS MATERIALIZED (
    SELECT name FROM duly_events
     WHERE sent_at < duly_now() - %(older_than)s::bigint * interval '1 microsecond'
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_events USING old WHERE duly_events.name = old.name

-- :name drop_keys
WITH old AS MATERIALIZED (
    SELECT task, key FROM duly_keys
     WHERE expires_at IS NOT NULL AND expires_at <= duly_now()
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_keys USING old WHERE duly_keys.task = old.task AND duly_keys.key = old.key

-- :name drop_firings
WITH old AS MATERIALIZED (
    SELECT schedule, instant FROM duly_firings
     WHERE fired_at < duly_now() - %(older_than)s::bigint * interval '1 microsecond'
       AND outcome <> 'waiting'
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_firings AS firing
 USING old WHERE firing.schedule = old.schedule AND firing.instant = old.instant

-- :name drop_marks
-- Of runs that are with another engine no more, and of tasks that nobody hands over. By tasks, so
-- that a prune that finds nothing reads next to nothing.
WITH RECURSIVE known(task) AS (
    SELECT min(task) FROM duly_handed
    UNION ALL
    SELECT (SELECT min(task) FROM duly_handed WHERE task > known.task)
      FROM known
     WHERE known.task IS NOT NULL
), old AS MATERIALIZED (
    SELECT mark.run_id
      FROM known
     CROSS JOIN LATERAL (
           SELECT run_id
             FROM duly_handed AS mark
            WHERE task = known.task
              AND stale_at < duly_now() - %(older_than)s::bigint * interval '1 microsecond'
              AND NOT EXISTS (SELECT 1 FROM duly_runs
                               WHERE id = mark.run_id AND state <> 'running'
                                 AND lane IN ('handed', 'handed-hold'))
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED) AS mark
)
DELETE FROM duly_handed AS mark USING old WHERE mark.run_id = old.run_id

-- :name drop_workers
DELETE FROM duly_workers
 WHERE state <> 'live'
   AND stopped_at < duly_now() - %(older_than)s::bigint * interval '1 microsecond'

-- :name fold
-- Adds up tallies of one span, before an instant, in rows of a longer one; in one order, since others
-- may do it at the same time.
WITH gone AS (
    DELETE FROM duly_tallies
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM duly_tallies
                              WHERE span = %(span)s AND at < %(before)s
                              ORDER BY at
                              LIMIT %(limit)s
                                FOR UPDATE SKIP LOCKED))
    RETURNING at, task, queue, state, took, waited, runs, elapsed, delay
), added AS (
    INSERT INTO duly_tallies (at, span, task, queue, state, took, waited, runs, elapsed, delay)
    SELECT at / %(width)s * %(width)s, %(longer)s, task, queue, state, took, waited, sum(runs),
           sum(elapsed), sum(delay)
      FROM gone
     GROUP BY at / %(width)s, task, queue, state, took, waited
     ORDER BY at / %(width)s, task, queue, state, took, waited
        ON CONFLICT (span, at, task, queue, state, took, waited) WHERE span > 0 DO UPDATE
       SET runs = duly_tallies.runs + excluded.runs,
           elapsed = duly_tallies.elapsed + excluded.elapsed,
           delay = duly_tallies.delay + excluded.delay
)
SELECT count(*) FROM gone

-- :name now
SELECT duly_microseconds(duly_now())
