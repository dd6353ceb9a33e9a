-- prune: delete finished runs, keys and other rows after their retention.

-- :name shortest
-- The shortest retention of all tasks.
SELECT min(kept) FROM duly_retentions

-- :name brief
-- Sets the end of the retention of runs that ended lately, if their tasks keep runs for less than the
-- usual time. Returns the number of runs read, the end of the last one, the start of the search, and
-- the time.
-- :answer
SELECT count(*), coalesce(max(finished_at), 0), max(:after, :now - :older_than), :now
  FROM (SELECT finished_at FROM duly_history INDEXED BY duly_history_ended
         WHERE finished_at >= max(:after, :now - :older_than)
           AND state NOT IN ('failed', 'interrupted') AND kept_until IS NULL
         ORDER BY finished_at LIMIT :limit)
-- :then
UPDATE duly_history
   SET kept_until = finished_at + (SELECT kept FROM duly_retentions AS own
                                    WHERE own.task = duly_history.task)
 WHERE id IN (SELECT lately.id
                FROM (SELECT id, task FROM duly_history INDEXED BY duly_history_ended
                       WHERE finished_at >= max(:after, :now - :older_than)
                         AND state NOT IN ('failed', 'interrupted') AND kept_until IS NULL
                       ORDER BY finished_at LIMIT :limit) AS lately
                JOIN duly_retentions AS own ON own.task = lately.task
               WHERE own.kept < :older_than)

-- :name drop_runs
-- Each run is kept for the retention of its task, or else for the usual time, and at least as long as
-- its key. So each has two instants: the end of its usual retention, and the end of the retention by
-- its task or its key. A task's own retention can only lengthen that of its dead letters. A child is
-- kept while its parent may still read its result, that is while the parent is live or a dead letter.
-- A run with a longer retention is not read again until that may be over. The last run is the one whose
-- payloads reach a number of bytes. SQLite reads a payload to find its length, so the payloads of later
-- runs are not read. Returns the number of runs to delete, the largest number of any kind, whether runs
-- are left because the payloads are large, where the next prune begins, and then what the other parts
-- need. The next prune begins at the start, since SQLite removes index entries with their rows. Without
-- a run there is no group, and so no row.
-- :answer
-- :bind
-- :stop-if-none
WITH RECURSIVE ended AS MATERIALIZED (
    SELECT rowid AS place, id, task, key, tags, finished_at, created_at, false AS dead
      FROM duly_history INDEXED BY duly_history_ended
     WHERE finished_at < :now - :older_than AND state NOT IN ('failed', 'interrupted')
       AND kept_until IS NULL
     ORDER BY finished_at LIMIT :limit
), died AS MATERIALIZED (
    SELECT rowid AS place, id, task, key, tags, finished_at, created_at, true AS dead
      FROM duly_history INDEXED BY duly_history_died
     WHERE finished_at < :now - :dead_older_than AND state IN ('failed', 'interrupted')
       AND kept_until IS NULL
     ORDER BY finished_at LIMIT :limit
), kept AS MATERIALIZED (
    SELECT rowid AS place, id, task, key, tags, finished_at, created_at,
           state IN ('failed', 'interrupted') AS dead
      FROM duly_history INDEXED BY duly_history_kept
     WHERE kept_until <= :now
     ORDER BY kept_until LIMIT :limit
), old AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY id) AS number
      FROM (SELECT * FROM ended UNION ALL SELECT * FROM died UNION ALL SELECT * FROM kept)
), fitting(number, bytes) AS (
    SELECT 0, 0
    UNION ALL
    SELECT old.number,
           fitting.bytes + length(CAST(run.arguments AS BLOB))
           + coalesce(length(CAST(run.result AS BLOB)), 0)
           + coalesce(length(CAST(run.traceback AS BLOB)), 0)
      FROM fitting
     CROSS JOIN old ON old.number = fitting.number + 1
     CROSS JOIN duly_history AS run ON run.rowid = old.place
     WHERE fitting.bytes < :bytes
), judged AS MATERIALIZED (
    SELECT old.place, old.id, max(old.finished_at, old.created_at) AS gone_at,
           CASE WHEN old.dead THEN old.finished_at + :dead_older_than
                WHEN own.kept IS NULL THEN old.finished_at + :older_than
                ELSE 0 END AS usual_until,
           max(coalesce(old.finished_at + own.kept, 0),
               coalesce((SELECT coalesce(expires_at, :now + :never) FROM duly_keys
                          WHERE task = old.task AND key = old.key AND run_id = old.id), 0),
               CASE WHEN old.tags IS NOT NULL AND EXISTS (
                         SELECT 1 FROM duly_every_run AS parent
                          WHERE parent.id = json_extract(old.tags, '$."' || :parent_tag || '"')
                            AND parent.state NOT IN ('succeeded', 'cancelled'))
                    THEN :now + :parent_look ELSE 0 END) AS own_until
      FROM old
      LEFT JOIN duly_retentions AS own ON own.task = old.task
     WHERE old.number <= (SELECT max(number) FROM fitting)
)
SELECT count(*) FILTER (WHERE is_over) AS pruned,
       max((SELECT count(*) FROM ended), (SELECT count(*) FROM died), (SELECT count(*) FROM kept)),
       (SELECT count(*) FROM judged) < (SELECT count(*) FROM old), 0, 0,
       max(gone_at) FILTER (WHERE is_over) AS pruned_until,
       json_group_array(place) FILTER (WHERE is_over) AS places,
       json_group_array(id) FILTER (WHERE is_over) AS ids,
       json_group_array(json_array(place, CASE WHEN own_until > :now
                                               THEN min(own_until, :now + :look) END))
           FILTER (WHERE NOT is_over) AS others
  FROM (SELECT *, max(usual_until, own_until) <= :now AS is_over FROM judged)
 GROUP BY :now
-- :then
UPDATE duly_history
   SET kept_until = json_extract(other.value, '$[1]')
  FROM json_each(:others) AS other
 WHERE duly_history.rowid = json_extract(other.value, '$[0]')
-- :then
UPDATE duly_accounts
   SET pruned = pruned + :pruned, pruned_until = max(coalesce(pruned_until, 0), :pruned_until)
 WHERE :pruned > 0
-- :then
DELETE FROM duly_attempts WHERE run_id IN (SELECT value FROM json_each(:ids))
-- :then
DELETE FROM duly_logs WHERE run_id IN (SELECT value FROM json_each(:ids))
-- :then
DELETE FROM duly_tags WHERE run_id IN (SELECT value FROM json_each(:ids))
-- :then
DELETE FROM duly_steps WHERE run_id IN (SELECT value FROM json_each(:ids))
-- :then
DELETE FROM duly_history WHERE rowid IN (SELECT value FROM json_each(:places))

-- :name drop_events
DELETE FROM duly_events
 WHERE name IN (SELECT name FROM duly_events WHERE sent_at < :now - :older_than ORDER BY sent_at LIMIT :limit)

-- :name drop_keys
DELETE FROM duly_keys
 WHERE (task, key) IN (SELECT task, key FROM duly_keys
                        WHERE expires_at IS NOT NULL AND expires_at <= :now LIMIT :limit)

-- :name drop_firings
DELETE FROM duly_firings
 WHERE (schedule, instant) IN (SELECT schedule, instant FROM duly_firings
                                WHERE fired_at < :now - :older_than AND outcome <> 'waiting' LIMIT :limit)

-- :name drop_schedules
-- Ended schedules of code stay. The code bounds their number, and a schedule that ran once must not run
-- again because its row was deleted.
DELETE FROM duly_schedules
 WHERE name IN (SELECT name FROM duly_schedules
                 WHERE state IN ('ended', 'removed') AND (state = 'removed' OR source = 'runtime')
                   AND updated_at < :now - :others_older_than
                 ORDER BY updated_at LIMIT :limit)

-- :name drop_locks
-- Locks that were last held before the machine's boot, or long ago. The row without a name keeps the
-- largest fence of the deleted locks, so that fences only grow. The locks are one group, because SQLite
-- has no HAVING without groups before 3.39.
INSERT INTO duly_locks (name, owner, holder, fence, expires_at, boot)
SELECT '', NULL, '', max(fence), 0, ''
  FROM (SELECT name, fence FROM duly_locks
         WHERE (boot <> :boot OR expires_at < :uptime - :others_older_than) AND name <> ''
         ORDER BY name LIMIT :limit)
 WHERE true
 GROUP BY name = ''
    ON CONFLICT (name) DO UPDATE SET fence = max(fence, excluded.fence)
-- :then
DELETE FROM duly_locks
 WHERE name IN (SELECT name FROM duly_locks
                 WHERE (boot <> :boot OR expires_at < :uptime - :others_older_than) AND name <> ''
                 ORDER BY name LIMIT :limit)

-- :name drop_acts
-- Acts are stored in their order of time. So the statement reads only the oldest ones.
DELETE FROM duly_acts
 WHERE rowid IN (SELECT rowid FROM (SELECT rowid, at FROM duly_acts ORDER BY rowid LIMIT :limit)
                  WHERE at < :now - :acts_older_than)

-- :name drop_marks
-- Marks of runs that another engine no longer has, and of tasks that no worker hands over. The search
-- goes by task, so that a prune that finds nothing reads very little.
DELETE FROM duly_handed
 WHERE run_id IN (WITH RECURSIVE known(task) AS (
                      SELECT min(task) FROM duly_handed
                      UNION ALL
                      SELECT (SELECT min(task) FROM duly_handed WHERE task > known.task)
                        FROM known
                       WHERE known.task IS NOT NULL
                  )
                  SELECT mark.run_id
                    FROM known
                    JOIN duly_handed AS mark
                      ON mark.task = known.task AND mark.stale_at < :now - :others_older_than
                   WHERE NOT EXISTS (SELECT 1 FROM duly_runs
                                      WHERE id = mark.run_id AND state = 'queued'
                                        AND lane IN ('handed', 'handed-hold'))
                   LIMIT :limit)

-- :name drop_workers
DELETE FROM duly_workers WHERE state <> 'live' AND stopped_at < :now - :others_older_than

-- :name fold
-- Adds up old tallies of one span in rows of a longer span, and deletes them. Workers of older versions
-- do not write `lasted`.
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
