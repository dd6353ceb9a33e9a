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

-- :name drop_workers
DELETE FROM duly_workers WHERE state <> 'live' AND stopped_at < :before
