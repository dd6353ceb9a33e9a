-- audit: check invariants. Each statement reads one moment, so its findings also hold for a live
-- database. It returns the subjects of the findings. core/audit.py describes each kind of finding.

-- :name count
SELECT (SELECT count(*) FROM duly_runs WHERE state = 'queued'),
       (SELECT count(*) FROM duly_runs WHERE state = 'running'),
       (SELECT count(*) FROM duly_waiting),
       (SELECT count(*) FROM duly_history),
       (SELECT coalesce(sum(accepted), 0) FROM duly_accounts),
       (SELECT coalesce(sum(pruned), 0) FROM duly_accounts)

-- :name runs_missing
-- Accepted runs that are neither live nor finished nor pruned.
SELECT missing || CASE missing WHEN 1 THEN ' run' ELSE ' runs' END
  FROM (SELECT (SELECT coalesce(sum(accepted - pruned), 0) FROM duly_accounts)
               - (SELECT count(*) FROM duly_runs) - (SELECT count(*) FROM duly_waiting)
               - (SELECT count(*) FROM duly_history) AS missing) AS balance
 WHERE missing > 0

-- :name runs_unaccounted
SELECT found || CASE found WHEN 1 THEN ' run' ELSE ' runs' END
  FROM (SELECT (SELECT count(*) FROM duly_runs) + (SELECT count(*) FROM duly_waiting)
               + (SELECT count(*) FROM duly_history)
               - (SELECT coalesce(sum(accepted - pruned), 0) FROM duly_accounts) AS found) AS balance
 WHERE found > 0

-- :name in_two_places
SELECT id FROM duly_runs WHERE EXISTS (SELECT 1 FROM duly_waiting WHERE id = duly_runs.id)
UNION
SELECT id FROM duly_runs WHERE EXISTS (SELECT 1 FROM duly_history WHERE id = duly_runs.id)
UNION
SELECT id FROM duly_waiting WHERE EXISTS (SELECT 1 FROM duly_history WHERE id = duly_waiting.id)
 LIMIT :limit

-- :name held_by_nobody
-- Runs of a worker that ended in the last minute are not listed, since recovery is about to settle
-- them.
SELECT run.id
  FROM duly_runs AS run
  LEFT JOIN duly_workers AS worker ON worker.id = run.worker_id
 WHERE run.state = 'running'
   AND (worker.id IS NULL OR (worker.state <> 'live' AND worker.stopped_at < :now - 60000000))
 LIMIT :limit

-- :name settled_twice
SELECT ended.id
  FROM duly_history AS ended
  JOIN duly_attempts AS attempt
    ON attempt.run_id = ended.id AND attempt.claim_number = ended.claim_number
 WHERE ended.outcome IS NOT NULL
 LIMIT :limit

-- :name settled_while_held
SELECT run.id
  FROM duly_runs AS run
  JOIN duly_attempts AS attempt
    ON attempt.run_id = run.id AND attempt.claim_number = run.claim_number
 WHERE run.state = 'running'
 LIMIT :limit

-- :name claim_ahead
SELECT DISTINCT run.id
  FROM (SELECT run_id, claim_number, generation FROM duly_attempts
        UNION ALL SELECT run_id, claim_number, 0 FROM duly_steps) AS said
  JOIN duly_every_run AS run ON run.id = said.run_id
 WHERE said.claim_number > run.claim_number OR said.generation > run.generation
 LIMIT :limit

-- :name ended_without_claim
SELECT id FROM duly_history WHERE outcome IS NOT NULL AND claim_number < 1 LIMIT :limit

-- :name succeeded_twice
SELECT run_id
  FROM (SELECT run_id, generation FROM duly_attempts WHERE outcome = 'returned'
        UNION ALL
        SELECT id, generation FROM duly_history WHERE outcome = 'returned')
 GROUP BY run_id, generation
HAVING count(*) > 1
 LIMIT :limit

-- :name attempts_of_no_run
SELECT DISTINCT run_id FROM duly_attempts
 WHERE run_id NOT IN (SELECT id FROM duly_every_run)
 LIMIT :limit

-- :name logs_of_no_run
SELECT DISTINCT run_id FROM duly_logs
 WHERE run_id NOT IN (SELECT id FROM duly_every_run)
 LIMIT :limit

-- :name steps_of_no_run
SELECT DISTINCT run_id FROM duly_steps
 WHERE run_id NOT IN (SELECT id FROM duly_every_run)
 LIMIT :limit

-- :name tags_of_no_run
SELECT DISTINCT run_id FROM duly_tags
 WHERE run_id NOT IN (SELECT id FROM duly_every_run)
 LIMIT :limit

-- :name tags_missing
SELECT DISTINCT run.id
  FROM duly_every_run AS run, json_each(run.tags) AS tag
 WHERE run.tags IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM duly_tags
                    WHERE name = tag.key AND value = tag.value AND run_id = run.id)
 LIMIT :limit

-- :name key_of_no_run
-- A key that is kept for ever has no expiry, even after the end of its run. Other keys get one then.
SELECT run_id FROM duly_keys
 WHERE expires_at IS NULL AND (ttl IS NOT NULL OR active_only)
   AND run_id NOT IN (SELECT id FROM duly_runs UNION ALL SELECT id FROM duly_waiting)
 LIMIT :limit

-- :name key_outlived_run
SELECT run_id FROM duly_keys
 WHERE (expires_at IS NULL OR expires_at > :now)
   AND NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = duly_keys.run_id)
 LIMIT :limit

-- :name key_expiring
SELECT run_id FROM duly_keys
 WHERE expires_at IS NOT NULL
   AND run_id IN (SELECT id FROM duly_runs UNION ALL SELECT id FROM duly_waiting)
 LIMIT :limit

-- :name fired_without_run
-- The firing is later than the end of every pruned run, so its run cannot have been pruned.
SELECT run_id FROM duly_firings
 WHERE run_id IS NOT NULL
   AND fired_at > coalesce((SELECT max(pruned_until) FROM duly_accounts), 0)
   AND NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = duly_firings.run_id)
 LIMIT :limit

-- :name firings_miscounted
SELECT name FROM duly_schedules
 WHERE waiting <> (SELECT count(*) FROM duly_firings
                    WHERE schedule = duly_schedules.name AND outcome = 'waiting')
 LIMIT :limit

-- :name fence_behind
SELECT key FROM duly_guarded WHERE fence > (SELECT latest FROM duly_guard_fences) LIMIT :limit
