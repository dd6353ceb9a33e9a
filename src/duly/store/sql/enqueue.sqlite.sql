-- enqueue: accept runs. Due runs go into duly_runs, where claims find them. The others wait.
-- An empty text or 0 means NULL, because the driver binds None ten times slower than a text.

-- :name plain
-- Inserts and counts one run that is due at once and has neither key nor tags. See the trigger of
-- duly_enqueue_plain in the migrations.
INSERT INTO duly_enqueue_plain (id, task, queue, lane, priority, now, arguments)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- :name ready
INSERT INTO duly_runs
    (id, task, queue, lane, priority, created_at, due_at, arguments, expires_at, key, tags)
SELECT column1, column2, column3, column4, column5, column6, column7, column8,
       nullif(column9, 0), nullif(column10, ''), nullif(column11, '')
  FROM (VALUES :rows(11))

-- :name later
INSERT INTO duly_waiting
    (id, task, queue, lane, priority, created_at, due_at, arguments, expires_at, key, tags)
SELECT column1, column2, column3, column4, column5, column6, column7, column8,
       nullif(column9, 0), nullif(column10, ''), nullif(column11, '')
  FROM (VALUES :rows(11))

-- :name tags
INSERT INTO duly_tags (name, value, run_id)
VALUES :rows(3)

-- :name count
UPDATE duly_accounts SET accepted = accepted + :accepted

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

-- :name held_by_name
-- The run that has the key under any name of a task with aliases. The task's own name comes first.
SELECT run_id, fingerprint
  FROM duly_keys
 WHERE task IN (SELECT value FROM json_each(:names)) AND key = :key
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY task <> :task
 LIMIT 1

-- :name max_size
SELECT max_size FROM duly_queues WHERE name = :queue AND max_size IS NOT NULL

-- :name size
-- The number of runs that wait for a worker, counted only up to the limit.
SELECT count(*)
  FROM (SELECT 1 FROM duly_runs INDEXED BY duly_runs_ready WHERE state = 'queued' AND queue = :queue
        UNION ALL
        SELECT 1 FROM duly_waiting INDEXED BY duly_waiting_parked
         WHERE parked IN ('paused', 'unregistered') AND queue = :queue
         LIMIT :limit)

-- :name key_in_force
-- The key may have expired lately. Then a full queue accepts one run too many.
SELECT run_id FROM duly_keys WHERE task = :task AND key = :key

-- :name place
-- The file that a caller's connection writes to; the first row is that of `main`. A SELECT would begin
-- to read, and a transaction that has read cannot write after another connection has written.
PRAGMA database_list

-- :name begin_to_write
-- Takes the write lock and changes no row. SQLite waits for the lock up to the connection's timeout,
-- but only if the transaction has read nothing yet.
UPDATE main.duly_queues SET paused = paused WHERE 0

-- :name exists
SELECT 1 FROM duly_every_run WHERE id = :run_id

-- :name enqueue_in_callers_transaction
-- The trigger of duly_enqueue in the migrations describes its work, and why this is one statement. A
-- run that has the key under another name of the task keeps it.
INSERT INTO main.duly_enqueue
    (id, task, queue, lane, priority, now, due_at, expires_at, arguments, tags, key, fingerprint,
     ttl, active_only)
SELECT :run_id, :task, :queue, :lane, :priority, :now, :due_at, :expires_at, :arguments, :tags, :key,
       :fingerprint, :ttl, :active_only
 WHERE NOT EXISTS (SELECT 1 FROM main.duly_keys
                    WHERE task IN (SELECT value FROM json_each(:other_names)) AND key = :key
                      AND (expires_at IS NULL OR expires_at > :now))
