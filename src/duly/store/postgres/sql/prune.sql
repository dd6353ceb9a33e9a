-- prune: forget finished runs and keys whose time is over.

-- :name brief
-- Runs that ended lately: of tasks that keep them for less than the usual time, until then.
WITH lately AS MATERIALIZED (
    SELECT id, task, finished_at FROM duly_history
     WHERE finished_at >= duly_time(%(after)s::bigint) AND state NOT IN ('failed', 'interrupted')
       AND kept_until IS NULL
     ORDER BY finished_at
     LIMIT %(limit)s
), kept AS (
    UPDATE duly_history AS ended
       SET kept_until = lately.finished_at + own.kept * interval '1 microsecond'
      FROM lately
      JOIN duly_retentions AS own ON own.task = lately.task AND own.kept < %(older_than)s::bigint
     WHERE ended.id = lately.id AND ended.finished_at = lately.finished_at
)
SELECT count(*), coalesce(duly_microseconds(max(finished_at)), 0) FROM lately

-- :name shortest
-- Whether a task keeps its runs for less than the usual time.
SELECT min(kept), duly_microseconds(duly_now()) FROM duly_retentions

-- :name drop_runs
-- One statement, where SQLite deletes run by run. Each is kept as its task says, or for the usual
-- time, and never less than its key; a task can have dead letters kept for longer only. One that is
-- kept though its usual time is over is out of the way until it is not.
WITH ended AS MATERIALIZED (
    SELECT id, task, key, finished_at, false AS dead FROM duly_history
     WHERE finished_at < duly_now() - %(older_than)s::bigint * interval '1 microsecond'
       AND state NOT IN ('failed', 'interrupted') AND kept_until IS NULL
     ORDER BY finished_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), died AS MATERIALIZED (
    SELECT id, task, key, finished_at, true AS dead FROM duly_history
     WHERE finished_at < duly_now() - %(dead_older_than)s::bigint * interval '1 microsecond'
       AND state IN ('failed', 'interrupted') AND kept_until IS NULL
     ORDER BY finished_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), kept AS MATERIALIZED (
    SELECT id, task, key, finished_at, state IN ('failed', 'interrupted') AS dead FROM duly_history
     WHERE kept_until <= duly_now()
     ORDER BY kept_until
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT old.id,
           CASE WHEN old.dead
                THEN old.finished_at + %(dead_older_than)s::bigint * interval '1 microsecond'
                WHEN own.kept IS NULL
                THEN old.finished_at + %(older_than)s::bigint * interval '1 microsecond' END
               AS usual_until,
           greatest(old.finished_at + own.kept * interval '1 microsecond',
                    CASE WHEN known.run_id IS NOT NULL
                         THEN coalesce(known.expires_at, timestamptz 'infinity') END)
               AS own_until
      FROM (TABLE ended UNION ALL TABLE died UNION ALL TABLE kept) AS old
      LEFT JOIN duly_retentions AS own ON own.task = old.task
      LEFT JOIN duly_keys AS known
        ON known.task = old.task AND known.key = old.key AND known.run_id = old.id
), runs AS (
    DELETE FROM duly_history USING judged
     WHERE duly_history.id = judged.id AND greatest(usual_until, own_until) <= duly_now()
    RETURNING duly_history.id,
              greatest(duly_history.finished_at, duly_history.created_at) AS gone_at
), stay AS (
    UPDATE duly_history
       SET kept_until = CASE WHEN own_until > duly_now()
                             THEN least(own_until,
                                        duly_now() + %(look)s::bigint * interval '1 microsecond')
                             END
      FROM judged
     WHERE duly_history.id = judged.id AND greatest(usual_until, own_until) > duly_now()
), counted AS (
    INSERT INTO duly_accounts (pruned, pruned_until)
    SELECT count(*), max(gone_at) FROM runs HAVING count(*) > 0
), attempts AS (
    DELETE FROM duly_attempts USING runs WHERE duly_attempts.run_id = runs.id
), logs AS (
    DELETE FROM duly_logs USING runs WHERE duly_logs.run_id = runs.id
), tags AS (
    DELETE FROM duly_tags USING runs WHERE duly_tags.run_id = runs.id
), steps AS (
    DELETE FROM duly_steps USING runs WHERE duly_steps.run_id = runs.id
)
SELECT (SELECT count(*) FROM runs),
       greatest((SELECT count(*) FROM ended), (SELECT count(*) FROM died),
                (SELECT count(*) FROM kept))

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

-- :name drop_acts
WITH old AS MATERIALIZED (
    SELECT number FROM duly_acts
     WHERE at < duly_now() - %(acts_older_than)s::bigint * interval '1 microsecond'
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_acts USING old WHERE duly_acts.number = old.number

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
              AND stale_at < duly_now() - %(others_older_than)s::bigint * interval '1 microsecond'
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
   AND stopped_at < duly_now() - %(others_older_than)s::bigint * interval '1 microsecond'

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

-- :name fold_accounts
-- Only here: SQLite, which has one writer, counts in one row.
WITH gone AS (
    DELETE FROM duly_accounts
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM duly_accounts LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
       AND (SELECT count(*) FROM (SELECT 1 FROM duly_accounts LIMIT 2) AS few) > 1
    RETURNING accepted, pruned, pruned_until
), added AS (
    INSERT INTO duly_accounts (accepted, pruned, pruned_until)
    SELECT sum(accepted), sum(pruned), max(pruned_until) FROM gone HAVING count(*) > 0
)
SELECT count(*) FROM gone

-- :name now
SELECT duly_microseconds(duly_now())
