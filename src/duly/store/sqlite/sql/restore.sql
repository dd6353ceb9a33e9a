-- restore: after a backup was put back. What was live in it and came due since may have run before
-- the database was lost, and nobody knows; so may what waited for an event, or for other runs.

-- :name in_doubt
SELECT id FROM duly_runs WHERE state = 'queued' AND created_at <= :since
UNION ALL
SELECT id FROM duly_waiting
 WHERE created_at <= :since
   AND (due_at <= :now OR EXISTS (SELECT 1 FROM duly_steps
                                   WHERE run_id = duly_waiting.id AND kind IN ('wait', 'gather')
                                     AND NOT done))
 LIMIT :limit

-- :name newer
-- Made after the backup was put back; or in it, if that was made later than somebody says.
SELECT (SELECT count(*) FROM duly_runs WHERE state = 'queued' AND created_at > :since)
     + (SELECT count(*) FROM duly_waiting WHERE created_at > :since AND due_at <= :now)

-- :name pause_schedules
-- What comes due before somebody resumes them is recorded as skipped, and not fired again.
UPDATE duly_schedules
   SET state = 'paused', reason = 'restored from a backup', updated_at = :now
 WHERE state = 'active' AND next_at <= :now AND created_at <= :since
