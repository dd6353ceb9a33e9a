-- prune: forget finished runs and keys whose time is over.

-- :name old_runs
SELECT id FROM duly_history
 WHERE finished_at < :before AND state NOT IN ('failed', 'interrupted')
 ORDER BY finished_at LIMIT :limit

-- :name old_dead
SELECT id FROM duly_history
 WHERE finished_at < :before AND state IN ('failed', 'interrupted')
 ORDER BY finished_at LIMIT :limit

-- :name drop_run
DELETE FROM duly_history WHERE id = :run_id

-- :name drop_attempts
DELETE FROM duly_attempts WHERE run_id = :run_id

-- :name drop_logs
DELETE FROM duly_logs WHERE run_id = :run_id

-- :name drop_tags
DELETE FROM duly_tags WHERE run_id = :run_id

-- :name drop_steps
DELETE FROM duly_steps WHERE run_id = :run_id

-- :name drop_events
DELETE FROM duly_events
 WHERE name IN (SELECT name FROM duly_events WHERE sent_at < :before ORDER BY sent_at LIMIT :limit)

-- :name drop_keys
DELETE FROM duly_keys
 WHERE (task, key) IN (SELECT task, key FROM duly_keys
                        WHERE expires_at IS NOT NULL AND expires_at <= :now LIMIT :limit)

-- :name drop_firings
DELETE FROM duly_firings
 WHERE (schedule, instant) IN (SELECT schedule, instant FROM duly_firings
                                WHERE fired_at < :before AND outcome <> 'waiting' LIMIT :limit)

-- :name drop_marks
-- Of runs that are with another engine no more, and of tasks that nobody hands over. By tasks, so
-- that a prune that finds nothing reads next to nothing.
WITH RECURSIVE known(task) AS (
    SELECT min(task) FROM duly_handed
    UNION ALL
    SELECT (SELECT min(task) FROM duly_handed WHERE task > known.task)
      FROM known
     WHERE known.task IS NOT NULL
)
DELETE FROM duly_handed
 WHERE run_id IN (SELECT mark.run_id
                    FROM known
                    JOIN duly_handed AS mark ON mark.task = known.task AND mark.stale_at < :before
                   WHERE NOT EXISTS (SELECT 1 FROM duly_runs
                                      WHERE id = mark.run_id AND state = 'queued'
                                        AND lane IN ('handed', 'handed-hold'))
                   LIMIT :limit)

-- :name drop_workers
DELETE FROM duly_workers WHERE state <> 'live' AND stopped_at < :before

-- :name fold
-- Adds up tallies of one span, before an instant, in rows of a longer one. PostgreSQL does it and
-- fold_away in one statement.
INSERT INTO duly_tallies (at, span, task, queue, state, took, waited, runs, elapsed, delay)
SELECT at / :width * :width, :longer, task, queue, state, took, waited, sum(runs), sum(elapsed),
       sum(delay)
  FROM duly_tallies
 WHERE rowid IN (SELECT rowid FROM duly_tallies
                  WHERE span = :span AND at < :before ORDER BY at, rowid LIMIT :limit)
 GROUP BY at / :width, task, queue, state, took, waited
    ON CONFLICT (span, at, task, queue, state, took, waited) WHERE span > 0 DO UPDATE
   SET runs = runs + excluded.runs, elapsed = elapsed + excluded.elapsed,
       delay = delay + excluded.delay

-- :name fold_away
DELETE FROM duly_tallies
 WHERE rowid IN (SELECT rowid FROM duly_tallies
                  WHERE span = :span AND at < :before ORDER BY at, rowid LIMIT :limit)
