-- move: read all stored data, to write it into another database. Instants are microseconds.

-- :name duly_queues
SELECT * FROM duly_queues

-- :name duly_runs
SELECT * FROM duly_runs

-- :name duly_waiting
SELECT * FROM duly_waiting

-- :name duly_history
SELECT * FROM duly_history

-- :name duly_attempts
SELECT * FROM duly_attempts

-- :name duly_keys
SELECT * FROM duly_keys

-- :name duly_tags
SELECT * FROM duly_tags

-- :name duly_logs
SELECT * FROM duly_logs ORDER BY rowid

-- :name duly_acts
SELECT * FROM duly_acts ORDER BY rowid

-- :name duly_bulk_acts
SELECT * FROM duly_bulk_acts

-- :name duly_schedules
SELECT * FROM duly_schedules

-- :name duly_firings
SELECT * FROM duly_firings

-- :name duly_steps
SELECT * FROM duly_steps

-- :name duly_events
SELECT * FROM duly_events

-- :name duly_handed
SELECT * FROM duly_handed

-- :name duly_letters
SELECT * FROM duly_letters

-- :name duly_tallies
SELECT * FROM duly_tallies

-- :name duly_guarded
-- Leases use the time since this machine's boot, so no key is held after the move.
SELECT key, state, owner, holder, fence, fingerprint, attempts, losses, 0 AS lease_ends, began_at,
       ended_at, kept_until, result, problem
  FROM duly_guarded

-- :name duly_locks
-- As above. The fence is kept, since it must only grow.
SELECT name, NULL AS owner, holder, fence, 0 AS expires_at FROM duly_locks

-- :name row_count
-- The approximate number of rows to move: the rows of the tables that grow.
SELECT (SELECT count(*) FROM duly_runs) + (SELECT count(*) FROM duly_waiting)
       + (SELECT count(*) FROM duly_history) + (SELECT count(*) FROM duly_attempts)
       + (SELECT count(*) FROM duly_keys) + (SELECT count(*) FROM duly_tags)
       + (SELECT count(*) FROM duly_logs) + (SELECT count(*) FROM duly_acts)
       + (SELECT count(*) FROM duly_firings) + (SELECT count(*) FROM duly_steps)
       + (SELECT count(*) FROM duly_letters) + (SELECT count(*) FROM duly_guarded)

-- :name duly_accounts
SELECT * FROM duly_accounts

-- :name duly_retentions
SELECT * FROM duly_retentions

-- :name latest_fence
SELECT latest FROM duly_guard_fences
