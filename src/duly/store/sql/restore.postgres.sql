-- restore: after a backup was put back. Runs that were live in the backup and have become due since may
-- have run before the database was lost. So may runs that waited for an event, or for other runs.

-- :name in_doubt
SELECT id::text FROM duly_runs
 WHERE state = 'queued' AND created_at <= duly_time(%(since)s::bigint)
UNION ALL
SELECT id::text FROM duly_waiting
 WHERE created_at <= duly_time(%(since)s::bigint)
   AND (due_at <= duly_now() OR EXISTS (SELECT 1 FROM duly_steps
                                         WHERE run_id = duly_waiting.id
                                           AND kind IN ('wait', 'gather') AND NOT done))
 LIMIT %(limit)s

-- :name newer
-- Runs that were made after the backup was put back. They may also be in the backup, if it was made later
-- than the operator believes.
SELECT (SELECT pg_catalog.count(*) FROM duly_runs
         WHERE state = 'queued' AND created_at > duly_time(%(since)s::bigint))
     + (SELECT pg_catalog.count(*) FROM duly_waiting
         WHERE created_at > duly_time(%(since)s::bigint) AND due_at <= duly_now())

-- :name pause_schedules
-- Instants that come due before an operator resumes the schedules are recorded as skipped.
UPDATE duly_schedules
   SET state = 'paused', reason = 'restored from a backup', updated_at = duly_now()
 WHERE state = 'active' AND next_at <= duly_now()
   AND created_at <= duly_time(%(since)s::bigint)

-- :name end_bulk_acts
-- These acts would change runs that were acted on after the backup was made.
UPDATE duly_bulk_acts SET ended_at = duly_now(), error = 'restored from a backup'
 WHERE ended_at IS NULL
