-- audit: invariants. Each statement sees one moment, so its findings also hold for a live database.
-- It returns the subjects of the findings. core/audit.py describes each kind of finding.

-- :name count
SELECT (SELECT pg_catalog.count(*) FROM duly_runs WHERE state = 'queued'),
       (SELECT pg_catalog.count(*) FROM duly_runs WHERE state = 'running'),
       (SELECT pg_catalog.count(*) FROM duly_waiting),
       (SELECT pg_catalog.count(*) FROM duly_history),
       (SELECT coalesce(pg_catalog.sum(accepted), 0)::bigint FROM duly_accounts),
       (SELECT coalesce(pg_catalog.sum(pruned), 0)::bigint FROM duly_accounts)

-- :name runs_missing
-- Runs that were accepted, and that are neither live nor finished nor pruned.
SELECT missing::text || CASE missing WHEN 1 THEN ' run' ELSE ' runs' END
  FROM (SELECT (SELECT coalesce(pg_catalog.sum(accepted - pruned), 0)::bigint FROM duly_accounts)
               - (SELECT pg_catalog.count(*) FROM duly_runs)
               - (SELECT pg_catalog.count(*) FROM duly_waiting)
               - (SELECT pg_catalog.count(*) FROM duly_history) AS missing) AS balance
 WHERE missing > 0

-- :name runs_unaccounted
SELECT found::text || CASE found WHEN 1 THEN ' run' ELSE ' runs' END
  FROM (SELECT (SELECT pg_catalog.count(*) FROM duly_runs)
               + (SELECT pg_catalog.count(*) FROM duly_waiting)
               + (SELECT pg_catalog.count(*) FROM duly_history)
               - (SELECT coalesce(pg_catalog.sum(accepted - pruned), 0)::bigint FROM duly_accounts)
               AS found) AS balance
 WHERE found > 0

-- :name in_two_places
SELECT id::text FROM duly_runs WHERE EXISTS (SELECT 1 FROM duly_waiting WHERE id = duly_runs.id)
UNION
SELECT id::text FROM duly_runs WHERE EXISTS (SELECT 1 FROM duly_history WHERE id = duly_runs.id)
UNION
SELECT id::text FROM duly_waiting WHERE EXISTS (SELECT 1 FROM duly_history WHERE id = duly_waiting.id)
 LIMIT %(limit)s

-- :name held_by_nobody
-- The runs of a worker that died just now will soon be recovered, so they are left out.
SELECT run.id::text
  FROM duly_runs AS run
  LEFT JOIN duly_workers AS worker ON worker.id = run.worker_id
 WHERE run.state = 'running'
   AND (worker.id IS NULL OR (worker.state <> 'live' AND worker.stopped_at < duly_now() - interval '1 minute'))
 LIMIT %(limit)s

-- :name settled_twice
SELECT ended.id::text
  FROM duly_history AS ended
  JOIN duly_attempts AS attempt
    ON attempt.run_id = ended.id AND attempt.claim_number = ended.claim_number
 WHERE ended.outcome IS NOT NULL
 LIMIT %(limit)s

-- :name settled_while_held
SELECT run.id::text
  FROM duly_runs AS run
  JOIN duly_attempts AS attempt
    ON attempt.run_id = run.id AND attempt.claim_number = run.claim_number
 WHERE run.state = 'running'
 LIMIT %(limit)s

-- :name claim_ahead
SELECT DISTINCT run.id::text
  FROM (SELECT run_id, claim_number, generation FROM duly_attempts
        UNION ALL SELECT run_id, claim_number, 0 FROM duly_steps) AS said
  JOIN duly_every_run AS run ON run.id = said.run_id
 WHERE said.claim_number > run.claim_number OR said.generation > run.generation
 LIMIT %(limit)s

-- :name ended_without_claim
SELECT id::text FROM duly_history WHERE outcome IS NOT NULL AND claim_number < 1 LIMIT %(limit)s

-- :name succeeded_twice
SELECT run_id::text
  FROM (SELECT run_id, generation FROM duly_attempts WHERE outcome = 'returned'
        UNION ALL
        SELECT id, generation FROM duly_history WHERE outcome = 'returned') AS ended
 GROUP BY run_id, generation
HAVING pg_catalog.count(*) > 1
 LIMIT %(limit)s

-- :name attempts_of_no_run
SELECT DISTINCT run_id::text FROM duly_attempts AS said
 WHERE NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = said.run_id)
 LIMIT %(limit)s

-- :name logs_of_no_run
SELECT DISTINCT run_id::text FROM duly_logs AS said
 WHERE NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = said.run_id)
 LIMIT %(limit)s

-- :name steps_of_no_run
SELECT DISTINCT run_id::text FROM duly_steps AS said
 WHERE NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = said.run_id)
 LIMIT %(limit)s

-- :name tags_of_no_run
SELECT DISTINCT run_id::text FROM duly_tags AS said
 WHERE NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = said.run_id)
 LIMIT %(limit)s

-- :name tags_missing
SELECT DISTINCT run.id::text
  FROM duly_every_run AS run
 CROSS JOIN LATERAL pg_catalog.json_each_text(run.tags::json) AS tag
 WHERE run.tags IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM duly_tags
                    WHERE name = tag.key AND value = tag.value AND run_id = run.id)
 LIMIT %(limit)s

-- :name key_of_no_run
-- A key without a time limit stays without one after the end of its run. All other keys get one then.
SELECT run_id::text FROM duly_keys
 WHERE expires_at IS NULL AND (ttl IS NOT NULL OR active_only)
   AND NOT EXISTS (SELECT 1 FROM duly_runs WHERE id = duly_keys.run_id)
   AND NOT EXISTS (SELECT 1 FROM duly_waiting WHERE id = duly_keys.run_id)
 LIMIT %(limit)s

-- :name key_outlived_run
SELECT run_id::text FROM duly_keys
 WHERE (expires_at IS NULL OR expires_at > duly_now())
   AND NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = duly_keys.run_id)
 LIMIT %(limit)s

-- :name key_expiring
SELECT run_id::text FROM duly_keys
 WHERE expires_at IS NOT NULL
   AND (EXISTS (SELECT 1 FROM duly_runs WHERE id = duly_keys.run_id)
        OR EXISTS (SELECT 1 FROM duly_waiting WHERE id = duly_keys.run_id))
 LIMIT %(limit)s

-- :name fired_without_run
-- Only firings after the end of every run that was pruned, since their runs cannot be among these.
SELECT run_id::text FROM duly_firings
 WHERE run_id IS NOT NULL
   AND fired_at > coalesce((SELECT pg_catalog.max(pruned_until) FROM duly_accounts),
                           timestamptz '-infinity')
   AND NOT EXISTS (SELECT 1 FROM duly_every_run WHERE id = duly_firings.run_id)
 LIMIT %(limit)s

-- :name firings_miscounted
SELECT name FROM duly_schedules
 WHERE waiting <> (SELECT pg_catalog.count(*) FROM duly_firings
                    WHERE schedule = duly_schedules.name AND outcome = 'waiting')
 LIMIT %(limit)s

-- :name fence_behind
SELECT key FROM duly_guarded WHERE fence > (SELECT last_value FROM duly_guard_fences) LIMIT %(limit)s
