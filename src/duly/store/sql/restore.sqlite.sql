-- restore: handle a restored backup. Runs that were live in the backup and became due since then may
-- have run before the database was lost. The same applies to runs that waited for an event or for other
-- runs.

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
-- Runs that were created after the backup was restored. They may also be in the backup, if it was made
-- later than the operator assumes.
SELECT (SELECT count(*) FROM duly_runs WHERE state = 'queued' AND created_at > :since)
     + (SELECT count(*) FROM duly_waiting WHERE created_at > :since AND due_at <= :now)

-- :name pause_schedules
-- Instants that become due before an operator resumes the schedules are recorded as skipped.
UPDATE duly_schedules
   SET state = 'paused', reason = 'restored from a backup', updated_at = :now
 WHERE state = 'active' AND next_at <= :now AND created_at <= :since

-- :name end_bulk_acts
-- These acts would change runs that acts after the backup have already changed.
UPDATE duly_bulk_acts SET ended_at = :now, error = 'restored from a backup'
 WHERE ended_at IS NULL

-- :name has_identity
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'duly_store'

-- :name identity
-- The inode of this store's file, and whether it has runs or schedules that may also run in another
-- copy. On PostgreSQL, a database is not a file that can be copied.
SELECT (SELECT max(inode) FROM duly_store),
       EXISTS (SELECT 1 FROM duly_runs)
    OR EXISTS (SELECT 1 FROM duly_waiting)
    OR EXISTS (SELECT 1 FROM duly_schedules WHERE state = 'active')

-- :name adopt_file
UPDATE duly_store SET inode = :inode WHERE inode IS NOT :inode
