-- runs: reads of runs. One statement reads a run from the view over all three tables.

-- :part record
id::text, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
       retries_used, crashes, duly_microseconds(created_at), duly_microseconds(due_at),
       duly_microseconds(expires_at), duly_microseconds(claimed_at),
       duly_microseconds(finished_at), worker_id, cancel_requested, parked, key, tags, arguments,
       result, error, traceback, fingerprint, progress, progress_text

-- :part fits
(%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
   AND (%(task)s::text IS NULL OR task = %(task)s::text)
   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
   AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s::text)
   AND (%(since)s::bigint IS NULL OR created_at >= duly_time(%(since)s::bigint))

-- :part dead
-- In this form, the planner cannot use the other indexes, whose cost it underestimates.
state NOT IN ('succeeded', 'cancelled')
   AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
   AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
   AND (%(since)s::bigint IS NULL OR created_at >= duly_time(%(since)s::bigint))
   AND (%(tag_name)s::text IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
           AND run_id = duly_history.id))

-- :name one
SELECT :part(record)
  FROM duly_every_run
 WHERE id = %(run_id)s

-- :name states
SELECT id::text, state FROM duly_every_run WHERE id = ANY (%(run_ids)s::uuid[])

-- :name newest
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
   AND :part(fits)
   AND (%(tag_name)s::text IS NULL OR EXISTS (
        SELECT 1 FROM duly_tags
         WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text AND run_id = run.id))
 ORDER BY run.id DESC
 LIMIT %(limit)s

-- :name runs_with_tag
-- Runs that have a tag of this name, with any value.
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
   AND :part(fits)
   AND EXISTS (SELECT 1 FROM duly_tags WHERE name = %(tag_name)s::text AND run_id = run.id)
 ORDER BY run.id DESC
 LIMIT %(limit)s

-- :name tagged
SELECT run_id::text
  FROM duly_tags
 WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
   AND (%(before)s::uuid IS NULL OR run_id < %(before)s::uuid)
 ORDER BY duly_tags.run_id DESC
 LIMIT %(most)s

-- :name few_runs
-- The same filters over known runs. Few runs have the tag, so a scan over all runs would be slow.
SELECT :part(record)
  FROM duly_every_run AS run
 WHERE id = ANY (%(run_ids)s::uuid[])
   AND :part(fits)
 ORDER BY run.id DESC
 LIMIT %(limit)s

-- :name runs_among
-- The newest runs that match the filters, among the newest `scan` of all runs.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id, task, queue, state, fingerprint, created_at
                 FROM duly_every_run
                WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                ORDER BY id DESC
                LIMIT %(scan)s) AS newest
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name running_runs
-- It uses the index of claimed runs, whose number is bounded by the slots of workers. The oldest of all
-- runs may be running. Without the inner order the planner would scan all runs by their ids.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id, task, queue, state, NULL::text AS fingerprint, created_at
                 FROM duly_runs
                WHERE worker_id IS NOT NULL
                ORDER BY worker_id, claimed_at
                LIMIT %(most)s) AS held
        WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
          AND :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name live_runs
-- As above, among runs that have not ended. Each part is bounded: the planner cannot merge two parts by
-- their keys if the types of their columns differ.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM ((SELECT id, task, queue, state, NULL::text AS fingerprint, created_at
                  FROM duly_runs
                 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                 ORDER BY id DESC
                 LIMIT %(scan)s)
                UNION ALL
               (SELECT id, task, queue, 'queued', NULL, created_at
                  FROM duly_waiting
                 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                 ORDER BY id DESC
                 LIMIT %(scan)s)
                ORDER BY id DESC
                LIMIT %(scan)s) AS newest
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_among
-- As above, among dead letters.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id, task, queue, state, fingerprint, created_at
                 FROM duly_history
                WHERE state NOT IN ('succeeded', 'cancelled')
                  AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
                ORDER BY id DESC
                LIMIT %(scan)s) AS newest
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name tagged_runs
-- As above, among runs that have a tag.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT run_id FROM duly_tags
                WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
                  AND (%(before)s::uuid IS NULL OR run_id < %(before)s::uuid)
                ORDER BY run_id DESC
                LIMIT %(scan)s) AS tagged
         JOIN duly_every_run ON id = tagged.run_id
        WHERE :part(fits)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name scanned
-- The last of the newest `scan` runs, where a search of `runs_among` has stopped, and the time when
-- it was created.
SELECT id::text, duly_microseconds(created_at) FROM duly_every_run
 WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
 ORDER BY duly_every_run.id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name scanned_live
SELECT id::text, duly_microseconds(created_at)
  FROM ((SELECT id, created_at FROM duly_runs
          WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
          ORDER BY id DESC
          LIMIT %(scan)s)
        UNION ALL
        (SELECT id, created_at FROM duly_waiting
          WHERE (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
          ORDER BY id DESC
          LIMIT %(scan)s)) AS live
 ORDER BY live.id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name scanned_dead
SELECT id::text, duly_microseconds(created_at) FROM duly_history
 WHERE state NOT IN ('succeeded', 'cancelled')
   AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
 ORDER BY duly_history.id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name scanned_tagged
SELECT run_id::text, (SELECT duly_microseconds(created_at) FROM duly_every_run WHERE id = run_id)
  FROM duly_tags
 WHERE name = %(tag_name)s::text AND value = %(tag_value)s::text
   AND (%(before)s::uuid IS NULL OR run_id < %(before)s::uuid)
 ORDER BY duly_tags.run_id DESC
 LIMIT 1 OFFSET %(scan)s - 1

-- :name runs_of_key
-- One probe for each task that has keys.
WITH RECURSIVE known(task) AS (
    SELECT pg_catalog.min(task) FROM duly_keys
    UNION ALL
    SELECT (SELECT pg_catalog.min(task) FROM duly_keys WHERE task > known.task)
      FROM known
     WHERE known.task IS NOT NULL
)
SELECT DISTINCT run_id::text
  FROM known JOIN duly_keys AS held ON held.task = known.task AND held.key = %(key)s

-- :name dead_runs
-- Only dead letters, by their own indexes. An array of ids is looked up one by one in each part of
-- the view, while a subquery may be joined with all of them.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id FROM duly_history
        WHERE :part(dead)
          AND (%(task)s::text IS NULL OR task = %(task)s::text)
          AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s::text)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_runs_of_task
-- As above, of one task.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id FROM duly_history
        WHERE :part(dead)
          AND task = %(task)s::text
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_runs_of_group
-- As above, of one group.
SELECT :part(record)
  FROM duly_every_run
 WHERE id = ANY (ARRAY(
       SELECT id FROM duly_history
        WHERE :part(dead)
          AND task = %(task)s::text
          AND (fingerprint = %(fingerprint)s::text
               OR %(fingerprint)s::text = '' AND fingerprint IS NULL)
        ORDER BY id DESC
        LIMIT %(limit)s))
 ORDER BY duly_every_run.id DESC

-- :name dead_count
-- Only by the index of dead letters and up to a cap, because every page of the dashboard reads it.
SELECT pg_catalog.count(*)
  FROM (SELECT id FROM duly_history
         WHERE state NOT IN ('succeeded', 'cancelled')
         ORDER BY id DESC
         LIMIT %(cap)s) AS newest

-- :name interrupted_count
-- Among the newest dead letters, because no index contains only the interrupted ones.
SELECT pg_catalog.count(*)
  FROM (SELECT state FROM duly_history
         WHERE state NOT IN ('succeeded', 'cancelled')
         ORDER BY id DESC
         LIMIT %(cap)s) AS newest
 WHERE state = 'interrupted'

-- :name dead_groups
-- The statement finds the groups by jumps from one to the next in their index, and counts each up to a
-- cap. So a bug that failed a million runs costs no more than one that failed ten thousand. NULL is
-- last here, and first on SQLite.
WITH RECURSIVE head(task, fingerprint, number) AS (
    (SELECT task, fingerprint, 1
       FROM duly_history
      WHERE state NOT IN ('succeeded', 'cancelled')
        AND (%(task)s::text IS NULL OR task >= %(task)s::text)
      ORDER BY task, fingerprint LIMIT 1)
    UNION ALL
    SELECT next.task, next.fingerprint, head.number + 1
      FROM head
     CROSS JOIN LATERAL (
           (SELECT task, fingerprint, 1 AS place FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled')
               AND task = head.task AND fingerprint > head.fingerprint
             ORDER BY task, fingerprint LIMIT 1)
           UNION ALL
           (SELECT task, fingerprint, 2 FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled')
               AND task = head.task AND fingerprint IS NULL AND head.fingerprint IS NOT NULL
             LIMIT 1)
           UNION ALL
           (SELECT task, fingerprint, 3 FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task > head.task
             ORDER BY task, fingerprint LIMIT 1)
           ORDER BY place
           LIMIT 1) AS next
     WHERE head.number < %(groups)s
)
SELECT head.task, coalesce(head.fingerprint, ''), counted.runs, newest.error,
       duly_microseconds(oldest.finished_at), duly_microseconds(newest.finished_at),
       newest.id::text
  FROM head
 CROSS JOIN LATERAL (
       SELECT pg_catalog.count(*) AS runs
         FROM (
           (SELECT created_at, queue FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint = head.fingerprint
             ORDER BY id DESC LIMIT %(cap)s)
           UNION ALL
           (SELECT created_at, queue FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint IS NULL
               AND head.fingerprint IS NULL
             ORDER BY id DESC LIMIT %(cap)s)) AS dead
        WHERE (%(since)s::bigint IS NULL OR created_at >= duly_time(%(since)s::bigint))
          AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)) AS counted
 CROSS JOIN LATERAL (
           (SELECT finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint = head.fingerprint
             ORDER BY id LIMIT 1)
           UNION ALL
           (SELECT finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint IS NULL
               AND head.fingerprint IS NULL
             ORDER BY id LIMIT 1)) AS oldest
 CROSS JOIN LATERAL (
           (SELECT id, error, finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint = head.fingerprint
             ORDER BY id DESC LIMIT 1)
           UNION ALL
           (SELECT id, error, finished_at FROM duly_history
             WHERE state NOT IN ('succeeded', 'cancelled') AND task = head.task AND fingerprint IS NULL
               AND head.fingerprint IS NULL
             ORDER BY id DESC LIMIT 1)) AS newest
 WHERE counted.runs > 0 AND (%(task)s::text IS NULL OR head.task = %(task)s::text)
 ORDER BY counted.runs DESC, head.task, head.fingerprint
 LIMIT %(limit)s
