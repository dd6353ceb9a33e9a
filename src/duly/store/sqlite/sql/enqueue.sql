-- enqueue: accept runs. Already due ones go where claims look, the others wait.

-- :name ready
INSERT INTO duly_runs
    (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
VALUES :rows(11)

-- :name later
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
VALUES :rows(11)

-- :name tags
INSERT INTO duly_tags (name, value, run_id)
VALUES :rows(3)

-- :name take_key
-- Guard: a key that is still in force stays with its run.
INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
VALUES (:task, :key, :run_id, :fingerprint, :ttl, :active_only)
    ON CONFLICT (task, key) DO UPDATE
   SET run_id = excluded.run_id, fingerprint = excluded.fingerprint, ttl = excluded.ttl,
       active_only = excluded.active_only, expires_at = NULL
 WHERE duly_keys.expires_at <= :now

-- :name read_key
SELECT run_id, fingerprint FROM duly_keys WHERE task = :task AND key = :key
