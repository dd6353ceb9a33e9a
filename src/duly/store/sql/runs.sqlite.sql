-- runs: reads of runs. One statement reads a run from the view over all three tables.

-- :part record
id, task, queue, lane, state, cause, priority, generation, claim_number, attempt, retries_used,
       crashes, created_at, due_at, expires_at, claimed_at, finished_at, worker_id,
       cancel_requested, parked, key, tags, arguments, result, error, traceback, fingerprint,
       progress, progress_text

-- :part fits
(:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:task IS NULL OR task = :task)
   AND (:queue IS NULL OR queue = :queue)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
   AND (:since IS NULL OR created_at >= :since)

-- :part dead
state IN ('failed', 'interrupted')
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND id < coalesce(:before, '~')
   AND (:queue IS NULL OR queue = :queue)
   AND (:since IS NULL OR created_at >= :since)
   AND (:tag_name IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = :tag_name AND value = :tag_value AND run_id = duly_history.id))

-- :name one
SELECT :part(record)
  FROM duly_every_run
 WHERE id = :run_id

-- :name states
SELECT id, state FROM duly_every_run WHERE id IN (SELECT value FROM json_each(:run_ids))

-- :name newest
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE id < coalesce(:before, '~')  -- No id is greater. In this form, SQLite uses the key.
   AND :part(fits)
   AND (:tag_name IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = :tag_name AND value = :tag_value AND run_id = run.id))
 ORDER BY id DESC
 LIMIT :limit

-- :name runs_with_tag
-- Runs that have a tag of this name, with any value. The + keeps SQLite from reading all tags of
-- that name.
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE id < coalesce(:before, '~')
   AND :part(fits)
   AND EXISTS (SELECT 1 FROM duly_tags WHERE +name = :tag_name AND run_id = run.id)
 ORDER BY id DESC
 LIMIT :limit

-- :name tagged
SELECT run_id
  FROM duly_tags
 WHERE name = :tag_name AND value = :tag_value AND run_id < coalesce(:before, '~')
 ORDER BY run_id DESC
 LIMIT :most

-- :name few_runs
-- The same filters for given runs. Few runs have the tag, so reading all runs would be slow.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (SELECT value FROM json_each(:run_ids))
   AND :part(fits)
 ORDER BY id DESC
 LIMIT :limit

-- :name runs_among
-- The newest runs that match, among the newest :scan of all runs.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id
         FROM (SELECT id, task, queue, state, fingerprint, created_at
                 FROM duly_every_run
                WHERE id < coalesce(:before, '~')  -- No id is greater. SQLite uses the key.
                ORDER BY id DESC
                LIMIT :scan)
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name running_runs
-- Uses the index of running runs, whose number is bounded by the workers' slots. The oldest runs of
-- all may be running.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id
         FROM duly_runs INDEXED BY duly_runs_held
        WHERE state = 'running' AND +id < coalesce(:before, '~')
          AND (:task IS NULL OR task = :task)
          AND (:queue IS NULL OR queue = :queue)
          AND :fingerprint IS NULL
          AND (:since IS NULL OR created_at >= :since)
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name live_runs
-- As above, among runs that have not ended.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id
         FROM (SELECT id, task, queue, state, created_at FROM duly_runs
                WHERE id < coalesce(:before, '~')
                UNION ALL
               SELECT id, task, queue, CAST('queued' AS TEXT), created_at FROM duly_waiting
                WHERE id < coalesce(:before, '~')
                ORDER BY id DESC
                LIMIT :scan)
        WHERE (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
          AND (:task IS NULL OR task = :task)
          AND (:queue IS NULL OR queue = :queue)
          AND :fingerprint IS NULL
          AND (:since IS NULL OR created_at >= :since)
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name dead_among
-- As above, among dead letters.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id
         FROM (SELECT id, task, queue, state, fingerprint, created_at
                 FROM duly_history INDEXED BY duly_history_dead_by_id
                WHERE state IN ('failed', 'interrupted') AND id < coalesce(:before, '~')
                ORDER BY id DESC
                LIMIT :scan)
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name tagged_runs
-- As above, among runs that have a tag.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT run.id
         FROM (SELECT run_id FROM duly_tags
                WHERE name = :tag_name AND value = :tag_value AND run_id < coalesce(:before, '~')
                ORDER BY run_id DESC
                LIMIT :scan) AS tagged
        CROSS JOIN duly_every_run AS run ON run.id = tagged.run_id
        WHERE (:states IS NULL OR run.state IN (SELECT value FROM json_each(:states)))
          AND (:task IS NULL OR run.task = :task)
          AND (:queue IS NULL OR run.queue = :queue)
          AND (:fingerprint IS NULL OR run.fingerprint = :fingerprint)
          AND (:since IS NULL OR run.created_at >= :since)
        ORDER BY run.id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name scanned
-- The last of the newest :scan runs and its creation time. A search of `runs_among` has read up to this
-- run.
SELECT id, created_at FROM duly_every_run
 WHERE id < coalesce(:before, '~')
 ORDER BY id DESC
 LIMIT 1 OFFSET :scan - 1

-- :name scanned_live
SELECT id, created_at FROM duly_runs WHERE id < coalesce(:before, '~')
UNION ALL
SELECT id, created_at FROM duly_waiting WHERE id < coalesce(:before, '~')
 ORDER BY id DESC
 LIMIT 1 OFFSET :scan - 1

-- :name scanned_dead
SELECT id, created_at FROM duly_history INDEXED BY duly_history_dead_by_id
 WHERE state IN ('failed', 'interrupted') AND id < coalesce(:before, '~')
 ORDER BY id DESC
 LIMIT 1 OFFSET :scan - 1

-- :name scanned_tagged
SELECT run_id, (SELECT created_at FROM duly_every_run WHERE id = run_id)
  FROM duly_tags
 WHERE name = :tag_name AND value = :tag_value AND run_id < coalesce(:before, '~')
 ORDER BY run_id DESC
 LIMIT 1 OFFSET :scan - 1

-- :name runs_of_key
-- One probe for each task that has keys.
WITH RECURSIVE known(task) AS (
    SELECT min(task) FROM duly_keys
    UNION ALL
    SELECT (SELECT min(task) FROM duly_keys WHERE task > known.task)
      FROM known
     WHERE known.task IS NOT NULL
)
SELECT run_id FROM known JOIN duly_keys AS held ON held.task = known.task AND held.key = :key

-- :name dead_runs
-- Only dead letters, by their own index.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id FROM duly_history INDEXED BY duly_history_dead_by_id
        WHERE :part(dead)
          AND (:task IS NULL OR task = :task)
          AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name dead_runs_of_task
-- As above, for one task.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id FROM duly_history INDEXED BY duly_history_dead_by_task
        WHERE :part(dead)
          AND task = :task
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name dead_runs_of_group
-- As above, for one group.
SELECT :part(record)
  FROM duly_every_run
 WHERE id IN (
       SELECT id FROM duly_history INDEXED BY duly_history_dead
        WHERE :part(dead)
          AND task = :task
          AND fingerprint IS nullif(:fingerprint, '')
        ORDER BY id DESC
        LIMIT :limit)
 ORDER BY id DESC

-- :name dead_count
-- Reads only their own index, and only up to a cap, because every page of the dashboard reads it.
SELECT count(*)
  FROM (SELECT id FROM duly_history INDEXED BY duly_history_dead_by_id
         WHERE state IN ('failed', 'interrupted')
         LIMIT :cap)

-- :name interrupted_count
-- Counted among the newest dead letters, because no index contains only the interrupted ones.
SELECT count(*)
  FROM (SELECT state FROM duly_history INDEXED BY duly_history_dead_by_id
         WHERE state IN ('failed', 'interrupted')
         ORDER BY id DESC
         LIMIT :cap)
 WHERE state = 'interrupted'

-- :name dead_groups
-- The statement jumps from one group to the next in their index, and counts each group up to a cap. So
-- a million runs that failed cost no more than ten thousand.
WITH RECURSIVE head(task, fingerprint, number) AS (
    SELECT * FROM (SELECT task, fingerprint, 1
                     FROM duly_history INDEXED BY duly_history_dead
                    WHERE state IN ('failed', 'interrupted')
                      AND (:task IS NULL OR task >= :task)
                    ORDER BY task, fingerprint LIMIT 1)
    UNION ALL
    SELECT next.task, next.fingerprint, head.number + 1
      FROM head
      JOIN duly_history AS next
        ON next.rowid = coalesce(
           (SELECT rowid FROM duly_history INDEXED BY duly_history_dead
             WHERE state IN ('failed', 'interrupted')
               AND task = head.task AND fingerprint > coalesce(head.fingerprint, '')
             ORDER BY fingerprint LIMIT 1),
           (SELECT rowid FROM duly_history INDEXED BY duly_history_dead
             WHERE state IN ('failed', 'interrupted') AND task > head.task
             ORDER BY task, fingerprint LIMIT 1))
     WHERE head.number < :groups
), counted AS (
    SELECT task, fingerprint,
           CASE WHEN :since IS NULL AND :queue IS NULL THEN
               (SELECT count(*)
                  FROM (SELECT 1 FROM duly_history AS one INDEXED BY duly_history_dead
                         WHERE one.state IN ('failed', 'interrupted')
                           AND one.task = head.task AND one.fingerprint IS head.fingerprint
                         LIMIT :cap))
           ELSE
               (SELECT count(*)
                  FROM (SELECT created_at, queue
                          FROM duly_history AS one INDEXED BY duly_history_dead
                         WHERE one.state IN ('failed', 'interrupted')
                           AND one.task = head.task AND one.fingerprint IS head.fingerprint
                         ORDER BY id DESC
                         LIMIT :cap)
                 WHERE (:since IS NULL OR created_at >= :since)
                   AND (:queue IS NULL OR queue = :queue))
           END AS runs,
           (SELECT min(id) FROM duly_history AS one INDEXED BY duly_history_dead
             WHERE one.state IN ('failed', 'interrupted')
               AND one.task = head.task AND one.fingerprint IS head.fingerprint) AS oldest,
           (SELECT max(id) FROM duly_history AS one INDEXED BY duly_history_dead
             WHERE one.state IN ('failed', 'interrupted')
               AND one.task = head.task AND one.fingerprint IS head.fingerprint) AS newest
      FROM head
     WHERE :task IS NULL OR task = :task
)
SELECT counted.task, coalesce(counted.fingerprint, ''), runs, last.error, first.finished_at,
       last.finished_at, last.id
  FROM counted
  JOIN duly_history AS first ON first.id = counted.oldest
  JOIN duly_history AS last ON last.id = counted.newest
 WHERE runs > 0
 ORDER BY runs DESC, counted.task, counted.fingerprint
 LIMIT :limit
