-- prune: delete finished runs and keys whose retention is over.
-- No statement joins a growing table with the rows that it picked. The reason is in claim.sql.

-- :name brief
-- Among runs that ended lately, those of tasks with a shorter retention than the usual one get their
-- own end of retention. Returns how many runs were read, the end of the last one, where the look began,
-- and the time.
WITH lately AS MATERIALIZED (
    SELECT id, task, finished_at FROM duly_history
     WHERE finished_at >= duly_time(greatest(%(after)s::bigint, duly_microseconds(duly_now())
                                                                - %(older_than)s::bigint))
       AND state NOT IN ('failed', 'interrupted')
       AND kept_until IS NULL
     ORDER BY finished_at
     LIMIT %(limit)s
), kept AS (
    UPDATE duly_history
       SET kept_until = finished_at
                        + (SELECT own.kept FROM duly_retentions AS own
                            WHERE own.task = duly_history.task)::float8 * interval '1 microsecond'
     WHERE id = ANY (ARRAY(SELECT lately.id
                             FROM lately
                             JOIN duly_retentions AS own ON own.task = lately.task
                            WHERE own.kept < %(older_than)s::bigint))
)
SELECT pg_catalog.count(*), coalesce(duly_microseconds(pg_catalog.max(finished_at)), 0),
       greatest(%(after)s::bigint,
                duly_microseconds(duly_now()) - %(older_than)s::bigint),
       duly_microseconds(duly_now())
  FROM lately

-- :name shortest
-- The shortest retention of all tasks.
SELECT pg_catalog.min(kept) FROM duly_retentions

-- :name drop_runs
-- This is one statement; SQLite needs a script. A run is kept for the retention of its task,
-- or for the usual time, and never for less than its key. For dead letters, a task can only set a
-- longer retention. A run that is kept although its usual time is over is excluded from this search
-- until `kept_until`. A child is kept while its parent may still read its result: as long as the parent
-- is live or a dead letter. The statement ends with the run whose payloads reach a number of bytes, and
-- returns whether it has left other runs. It also returns where it ended. The next prune begins there,
-- since the index entries of deleted runs stay until a vacuum, which a held snapshot can delay.
WITH ended AS MATERIALIZED (
    SELECT id, task, key, tags, finished_at, kept_until, false AS dead,
           pg_catalog.octet_length(arguments) + coalesce(pg_catalog.octet_length(result), 0)
               + coalesce(pg_catalog.octet_length(traceback), 0) AS bytes
      FROM duly_history
     WHERE finished_at < duly_now() - %(older_than)s::float8 * interval '1 microsecond'
       AND finished_at >= duly_time(%(ended_from)s::bigint)
       AND state NOT IN ('failed', 'interrupted') AND kept_until IS NULL
     ORDER BY finished_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), died AS MATERIALIZED (
    SELECT id, task, key, tags, finished_at, kept_until, true AS dead,
           pg_catalog.octet_length(arguments) + coalesce(pg_catalog.octet_length(result), 0)
               + coalesce(pg_catalog.octet_length(traceback), 0) AS bytes
      FROM duly_history
     WHERE finished_at < duly_now() - %(dead_older_than)s::float8 * interval '1 microsecond'
       AND state IN ('failed', 'interrupted') AND kept_until IS NULL
     ORDER BY finished_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), kept AS MATERIALIZED (
    SELECT id, task, key, tags, finished_at, kept_until,
           state IN ('failed', 'interrupted') AS dead,
           pg_catalog.octet_length(arguments) + coalesce(pg_catalog.octet_length(result), 0)
               + coalesce(pg_catalog.octet_length(traceback), 0) AS bytes
      FROM duly_history
     WHERE kept_until <= duly_now() AND kept_until >= duly_time(%(kept_from)s::bigint)
     ORDER BY kept_until
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), old AS MATERIALIZED (
    SELECT id, task, key, tags, finished_at, kept_until, dead,
           pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
      FROM (TABLE ended UNION ALL TABLE died UNION ALL TABLE kept) AS found
), judged AS MATERIALIZED (
    SELECT old.id, old.kept_until,
           CASE WHEN NOT old.dead AND old.kept_until IS NULL THEN old.finished_at END AS ended_at,
           CASE WHEN old.dead
                THEN old.finished_at + %(dead_older_than)s::float8 * interval '1 microsecond'
                WHEN own.kept IS NULL
                THEN old.finished_at + %(older_than)s::float8 * interval '1 microsecond' END
               AS usual_until,
           greatest(old.finished_at + own.kept::float8 * interval '1 microsecond',
                    CASE WHEN known.run_id IS NOT NULL
                         THEN coalesce(known.expires_at, timestamptz 'infinity') END,
                    CASE WHEN old.tags IS NOT NULL AND EXISTS (
                              SELECT 1 FROM duly_every_run AS parent
                               WHERE parent.id = (old.tags::json ->> %(parent_tag)s)::uuid
                                 AND parent.state NOT IN ('succeeded', 'cancelled')
                              OFFSET 0)
                         THEN duly_now() + %(parent_look)s::float8 * interval '1 microsecond' END)
               AS own_until
      FROM old
      LEFT JOIN duly_retentions AS own ON own.task = old.task
      LEFT JOIN LATERAL (
           SELECT run_id, expires_at FROM duly_keys
            WHERE duly_keys.task = old.task AND duly_keys.key = old.key
              AND duly_keys.run_id = old.id
           OFFSET 0) AS known ON true
     WHERE old.bytes_before < %(bytes)s::bigint
), runs AS (
    DELETE FROM duly_history
     WHERE id = ANY (ARRAY(SELECT id FROM judged
                            WHERE greatest(usual_until, own_until) <= duly_now()))
    RETURNING id, tags, greatest(finished_at, created_at) AS gone_at
), stay AS (
    UPDATE duly_history
       SET kept_until = (SELECT CASE WHEN own_until > duly_now()
                                     THEN least(own_until, duly_now() + %(look)s::float8
                                                                        * interval '1 microsecond')
                                     END
                           FROM judged WHERE judged.id = duly_history.id)
     WHERE id = ANY (ARRAY(SELECT id FROM judged
                            WHERE greatest(usual_until, own_until) > duly_now()))
), counted AS (
    INSERT INTO duly_accounts (pruned, pruned_until)
    SELECT pg_catalog.count(*), pg_catalog.max(gone_at) FROM runs HAVING pg_catalog.count(*) > 0
), attempts AS (
    DELETE FROM duly_attempts WHERE run_id = ANY (ARRAY(SELECT id FROM runs))
), logs AS (
    DELETE FROM duly_logs WHERE run_id = ANY (ARRAY(SELECT id FROM runs))
), tags AS (
    -- By the whole key and by row positions. If only the id were given, statistics of an emptied table
    -- would make the primary key, where the id is last, look as good as the index of the id.
    DELETE FROM duly_tags
     WHERE ctid = ANY (ARRAY(
           SELECT tag.place
             FROM runs
            CROSS JOIN LATERAL pg_catalog.json_each_text(
                  CASE pg_catalog.json_typeof(runs.tags::json)
                  WHEN 'object' THEN runs.tags::json ELSE '{}'::json END) AS own(name, value)
            CROSS JOIN LATERAL (
                  SELECT ctid AS place FROM duly_tags
                   WHERE name = own.name AND value = own.value AND run_id = runs.id
                  OFFSET 0) AS tag
            WHERE runs.tags IS NOT NULL))
), steps AS (
    DELETE FROM duly_steps WHERE run_id = ANY (ARRAY(SELECT id FROM runs))
)
SELECT (SELECT pg_catalog.count(*) FROM runs),
       greatest((SELECT pg_catalog.count(*) FROM ended), (SELECT pg_catalog.count(*) FROM died),
                (SELECT pg_catalog.count(*) FROM kept)),
       (SELECT pg_catalog.count(*) FROM judged) < (SELECT pg_catalog.count(*) FROM old),
       (SELECT duly_microseconds(pg_catalog.max(ended_at)) FROM judged),
       (SELECT duly_microseconds(pg_catalog.max(kept_until)) FROM judged)

-- :name drop_events
WITH old AS MATERIALIZED (
    SELECT name FROM duly_events
     WHERE sent_at < duly_now() - %(older_than)s::float8 * interval '1 microsecond'
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_events WHERE name = ANY (ARRAY(SELECT name FROM old))

-- :name drop_keys
-- Only rows that are locked already, by their positions. Waiting for another row of the same run could
-- end in a deadlock with a transaction that takes the key under several names.
DELETE FROM duly_keys
 WHERE ctid = ANY (ARRAY(
       SELECT ctid FROM duly_keys
        WHERE expires_at IS NOT NULL AND expires_at <= duly_now()
        LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))

-- :name drop_firings
-- Firings have no id. Their positions hold while the rows are locked, which is until the commit.
DELETE FROM duly_firings
 WHERE ctid = ANY (ARRAY(
       SELECT ctid FROM duly_firings
        WHERE fired_at < duly_now() - %(older_than)s::float8 * interval '1 microsecond'
          AND outcome <> 'waiting'
        ORDER BY fired_at
        LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))

-- :name drop_schedules
-- Schedules from code stay. Their number is limited by the code, and a schedule that ran once must not
-- run again because its row was deleted.
WITH old AS MATERIALIZED (
    SELECT name FROM duly_schedules
     WHERE state IN ('ended', 'removed') AND (state = 'removed' OR source = 'runtime')
       AND updated_at < duly_now() - %(others_older_than)s::float8 * interval '1 microsecond'
     ORDER BY updated_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM duly_schedules WHERE name = ANY (ARRAY(SELECT name FROM old))

-- :name drop_locks
-- The row without a name keeps the largest fence of all deleted locks, so that fences only grow.
WITH old AS MATERIALIZED (
    SELECT name FROM duly_locks
     WHERE expires_at < duly_now() - %(others_older_than)s::float8 * interval '1 microsecond'
       AND name <> ''
     ORDER BY expires_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM duly_locks WHERE name = ANY (ARRAY(SELECT name FROM old)) RETURNING fence
), kept AS (
    INSERT INTO duly_locks (name, holder, fence, expires_at)
    SELECT '', '', pg_catalog.max(fence), timestamptz 'infinity'
      FROM gone HAVING pg_catalog.count(*) > 0
        ON CONFLICT (name) DO UPDATE SET fence = greatest(duly_locks.fence, excluded.fence)
)
SELECT fence FROM gone

-- :name drop_acts
-- By row positions. An index with the number in second place would be read as a whole.
DELETE FROM duly_acts
 WHERE ctid = ANY (ARRAY(
       SELECT ctid FROM duly_acts
        WHERE at < duly_now() - %(acts_older_than)s::float8 * interval '1 microsecond'
        LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))

-- :name drop_marks
-- Marks of runs that are no longer with another engine, and of tasks that no worker hands over. The
-- search is by task, so that a prune that finds nothing reads very little.
WITH RECURSIVE known(task) AS (
    SELECT pg_catalog.min(task) FROM duly_handed
    UNION ALL
    SELECT (SELECT pg_catalog.min(task) FROM duly_handed WHERE task > known.task)
      FROM known
     WHERE known.task IS NOT NULL
), old AS MATERIALIZED (
    SELECT mark.run_id
      FROM known
     CROSS JOIN LATERAL (
           SELECT run_id
             FROM duly_handed AS mark
            WHERE task = known.task
              AND stale_at < duly_now() - %(others_older_than)s::float8 * interval '1 microsecond'
              AND NOT EXISTS (SELECT 1 FROM duly_runs
                               WHERE id = mark.run_id AND state <> 'running'
                                 AND lane IN ('handed', 'handed-hold')
                              OFFSET 0)
            ORDER BY stale_at
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED) AS mark
)
DELETE FROM duly_handed WHERE run_id = ANY (ARRAY(SELECT run_id FROM old))

-- :name drop_workers
-- It also deletes duties whose names contain settings that no worker has any more, and old floors of
-- limits. SQLite has neither.
WITH duties AS (
    DELETE FROM duly_duties WHERE done_at < pg_catalog.statement_timestamp() - interval '30 days'
), floors AS (
    DELETE FROM duly_limit_floors
     WHERE name = ANY (ARRAY(SELECT name FROM duly_limit_floors
                              WHERE noted_at < duly_now() - interval '1 hour'
                              LIMIT %(limit)s
                                FOR UPDATE SKIP LOCKED))
)
DELETE FROM duly_workers
 WHERE state <> 'live'
   AND stopped_at < duly_now() - %(others_older_than)s::float8 * interval '1 microsecond'

-- :name fold
-- Adds up old tallies of one span in rows of a longer span, and deletes them. The rows are written in
-- one order, since other workers may do this at the same time. Workers of versions that do not know
-- `lasted` leave it out. The first span also adds up accounts, which SQLite has in one row.
WITH gone AS (
    DELETE FROM duly_tallies
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM duly_tallies
                              WHERE span = %(span)s
                                AND at < duly_microseconds(duly_now()) - %(age)s::bigint
                              ORDER BY at
                              LIMIT %(limit)s
                                FOR UPDATE SKIP LOCKED))
    RETURNING at, task, queue, state, took, waited, runs, elapsed, delay, lasted
), added AS (
    INSERT INTO duly_tallies
        (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
    SELECT at / %(width)s::bigint * %(width)s::bigint, %(longer)s, task, queue, state, took, waited,
           pg_catalog.sum(runs), pg_catalog.sum(elapsed), pg_catalog.sum(delay),
           pg_catalog.sum(greatest(lasted, elapsed))
      FROM gone
     GROUP BY at / %(width)s::bigint, task, queue, state, took, waited
     ORDER BY at / %(width)s::bigint, task, queue, state, took, waited
        ON CONFLICT (span, at, task, queue, state, took, waited) WHERE span > 0 DO UPDATE
       SET runs = duly_tallies.runs + excluded.runs,
           elapsed = duly_tallies.elapsed + excluded.elapsed,
           delay = duly_tallies.delay + excluded.delay,
           lasted = greatest(duly_tallies.lasted, duly_tallies.elapsed) + excluded.lasted
), settled AS (
    DELETE FROM duly_accounts
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM duly_accounts
                              WHERE %(span)s = 0
                              LIMIT %(limit)s
                                FOR UPDATE SKIP LOCKED))
       AND (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM duly_accounts LIMIT 2) AS few) > 1
    RETURNING accepted, pruned, pruned_until
), account AS (
    INSERT INTO duly_accounts (accepted, pruned, pruned_until)
    SELECT pg_catalog.sum(accepted), pg_catalog.sum(pruned), pg_catalog.max(pruned_until)
      FROM settled HAVING pg_catalog.count(*) > 0
)
-- One row for each row that was added up: tallies or accounts, the larger number of both.
SELECT FROM pg_catalog.generate_series(1, greatest((SELECT pg_catalog.count(*) FROM gone),
                                                   (SELECT pg_catalog.count(*) FROM settled)))
