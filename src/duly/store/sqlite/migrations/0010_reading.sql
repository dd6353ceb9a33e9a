-- Every run, as before, but the columns have one type in all three parts. Only then can SQLite use
-- the indexes of the parts and read the newest runs of each by its key. Otherwise a page, or the
-- states of a few runs, would need a scan of the whole history.

DROP VIEW duly_every_run;
CREATE VIEW duly_every_run AS
SELECT id, task, queue, lane, state, CAST(NULL AS TEXT) AS cause, priority, generation,
       claim_number, attempt, retries_used, crashes, created_at, due_at, expires_at, claimed_at,
       CAST(NULL AS INTEGER) AS finished_at, worker_id, cancel_requested,
       CAST(NULL AS TEXT) AS parked, key, tags, arguments, CAST(NULL AS TEXT) AS result,
       CAST(NULL AS TEXT) AS error, CAST(NULL AS TEXT) AS traceback,
       CAST(NULL AS TEXT) AS fingerprint, progress, progress_text
  FROM duly_runs
UNION ALL
SELECT id, task, queue, lane, CAST('queued' AS TEXT), CAST(NULL AS TEXT), priority, generation,
       claim_number, attempt, retries_used, crashes, created_at, due_at, expires_at,
       CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), CAST(NULL AS TEXT), CAST(0 AS INTEGER),
       parked, key, tags, arguments, CAST(NULL AS TEXT), CAST(NULL AS TEXT), CAST(NULL AS TEXT),
       CAST(NULL AS TEXT), CAST(NULL AS REAL), CAST(NULL AS TEXT)
  FROM duly_waiting
UNION ALL
SELECT id, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, started_at, finished_at,
       worker_id, CAST(0 AS INTEGER), CAST(NULL AS TEXT), key, tags, arguments, result,
       error, traceback, fingerprint, CAST(NULL AS REAL), CAST(NULL AS TEXT)
  FROM duly_history;
