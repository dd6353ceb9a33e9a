-- prune: forget finished runs and keys whose time is over.

-- :name shortest
-- Whether a task keeps its runs for less than the usual time.
SELECT min(kept) FROM duly_retentions

-- :name brief
-- Runs that ended lately, and until when their tasks keep them if that is less than the usual time.
SELECT ended.id, ended.finished_at,
       (SELECT ended.finished_at + kept FROM duly_retentions
         WHERE task = ended.task AND kept < :older_than)
  FROM duly_history AS ended INDEXED BY duly_history_ended
 WHERE ended.finished_at >= :after AND ended.state NOT IN ('failed', 'interrupted')
   AND ended.kept_until IS NULL
 ORDER BY ended.finished_at LIMIT :limit

-- :name old_runs
SELECT id FROM duly_history INDEXED BY duly_history_ended
 WHERE finished_at < :before AND state NOT IN ('failed', 'interrupted') AND kept_until IS NULL
 ORDER BY finished_at LIMIT :limit

-- :name old_dead
SELECT id FROM duly_history INDEXED BY duly_history_died
 WHERE finished_at < :died_before AND state IN ('failed', 'interrupted') AND kept_until IS NULL
 ORDER BY finished_at LIMIT :limit

-- :name no_longer_kept
SELECT id FROM duly_history INDEXED BY duly_history_kept
 WHERE kept_until <= :now
 ORDER BY kept_until LIMIT :limit

-- :name judged
-- Each with two instants: until when it is kept for the usual time, and until when as its task says
-- or by its key. A task can have dead letters kept for longer only. A child is kept while its parent
-- may still ask for its result: while that is live or a dead letter.
SELECT ended.id, max(ended.finished_at, ended.created_at),
       CASE WHEN ended.state IN ('failed', 'interrupted') THEN ended.finished_at + :dead_older_than
            WHEN own.kept IS NULL THEN ended.finished_at + :older_than
            ELSE 0 END,
       max(coalesce(ended.finished_at + own.kept, 0),
           coalesce((SELECT coalesce(expires_at, :never) FROM duly_keys
                      WHERE task = ended.task AND key = ended.key AND run_id = ended.id), 0),
           CASE WHEN ended.tags IS NOT NULL AND EXISTS (
                     SELECT 1 FROM duly_every_run AS parent
                      WHERE parent.id = json_extract(ended.tags, '$."' || :parent_tag || '"')
                        AND parent.state NOT IN ('succeeded', 'cancelled'))
                THEN :now + :parent_look ELSE 0 END)
  FROM json_each(:ids) AS old
  JOIN duly_history AS ended ON ended.id = old.value
  LEFT JOIN duly_retentions AS own ON own.task = ended.task

-- :name keep
UPDATE duly_history SET kept_until = :until WHERE id = :run_id

-- :name count
UPDATE duly_accounts
   SET pruned = pruned + :pruned, pruned_until = max(coalesce(pruned_until, 0), :until)

-- :name drop_run
-- Its payloads are bounded by their bytes; PostgreSQL does so in one statement.
DELETE FROM duly_history WHERE id = :run_id
RETURNING length(CAST(arguments AS BLOB)) + coalesce(length(CAST(result AS BLOB)), 0)
          + coalesce(length(CAST(traceback AS BLOB)), 0)

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

-- :name drop_schedules
-- Those of code stay: there are only as many as the code has, and one that ran once must not run
-- again because nobody knows it any more.
DELETE FROM duly_schedules
 WHERE name IN (SELECT name FROM duly_schedules
                 WHERE state IN ('ended', 'removed') AND (state = 'removed' OR source = 'runtime')
                   AND updated_at < :before
                 ORDER BY updated_at LIMIT :limit)

-- :name idle_locks
-- Only here, as keep_fence: PostgreSQL drops them in one statement. Idle since an earlier start of
-- the machine, or for long.
SELECT name, fence FROM duly_locks
 WHERE (boot < :boot OR boot > :boot OR (boot = :boot AND expires_at < :idle_since)) AND name <> ''
 LIMIT :limit

-- :name keep_fence
-- Only here: the row without a name keeps the largest fence of those that are gone, so that fences only grow.
INSERT INTO duly_locks (name, owner, holder, fence, expires_at, boot)
VALUES ('', NULL, '', :fence, 0, '')
    ON CONFLICT (name) DO UPDATE SET fence = max(fence, excluded.fence)

-- :name drop_locks
DELETE FROM duly_locks WHERE name IN (SELECT value FROM json_each(:names))

-- :name drop_acts
-- They are in the order in which they were done: the oldest are looked at.
DELETE FROM duly_acts
 WHERE rowid IN (SELECT rowid FROM (SELECT rowid, at FROM duly_acts ORDER BY rowid LIMIT :limit)
                  WHERE at < :before)

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
-- Adds up old tallies of one span in rows of a longer span, and deletes them. Workers of versions that
-- do not know `lasted` leave it out.
INSERT INTO duly_tallies
       (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
SELECT at / :width * :width, :longer, task, queue, state, took, waited, sum(runs), sum(elapsed),
       sum(delay), sum(max(lasted, elapsed))
  FROM duly_tallies
 WHERE rowid IN (SELECT rowid FROM duly_tallies
                  WHERE span = :span AND at < :now - :age ORDER BY at, rowid LIMIT :limit)
 GROUP BY at / :width, task, queue, state, took, waited
    ON CONFLICT (span, at, task, queue, state, took, waited) WHERE span > 0 DO UPDATE
   SET runs = runs + excluded.runs, elapsed = elapsed + excluded.elapsed,
       delay = delay + excluded.delay, lasted = max(lasted, elapsed) + excluded.lasted
-- :then
DELETE FROM duly_tallies
 WHERE rowid IN (SELECT rowid FROM duly_tallies
                  WHERE span = :span AND at < :now - :age ORDER BY at, rowid LIMIT :limit)
