-- enqueue: accept runs. Runs that are due go to the table that claims read, all others wait.

-- :name ready_one
-- A single run that is due at once and has neither tags nor a key: one plain row, and its count.
WITH counted AS (
    INSERT INTO duly_accounts (accepted) VALUES (1)
)
INSERT INTO duly_runs
    (id, task, queue, lane, priority, created_at, due_at, expires_at, arguments)
VALUES (%(id)s, %(task)s, %(queue)s, %(lane)s, %(priority)s, duly_now(), duly_now(),
        duly_now() + %(expires)s::float8 * interval '1 microsecond', %(arguments)s)

-- :name ready_one_and_hint
-- The same with a hint, which is sent at the commit.
WITH counted AS (
    INSERT INTO duly_accounts (accepted) VALUES (1)
)
INSERT INTO duly_runs
    (id, task, queue, lane, priority, created_at, due_at, expires_at, arguments)
VALUES (%(id)s, %(task)s, %(queue)s, %(lane)s, %(priority)s, duly_now(), duly_now(),
        duly_now() + %(expires)s::float8 * interval '1 microsecond', %(arguments)s)
RETURNING pg_catalog.pg_notify(%(channel)s, %(payload)s)

-- :name ready
-- Many such runs. SQLite takes rows, PostgreSQL columns. There is one parameter per column for any
-- number of rows, so that one plan serves all.
WITH counted AS (
    INSERT INTO duly_accounts (accepted) VALUES (pg_catalog.cardinality(%(ids)s::uuid[]))
)
INSERT INTO duly_runs
    (id, task, queue, lane, priority, created_at, due_at, expires_at, arguments)
SELECT id, task, queue, lane, priority, duly_now(), duly_now(),
       duly_now() + expires::float8 * interval '1 microsecond', arguments
  FROM unnest(%(ids)s::uuid[], %(tasks)s::text[], %(queues)s::text[], %(lanes)s::text[],
              %(priorities)s::integer[], %(arguments)s::text[], %(expires)s::bigint[])
       AS op(id, task, queue, lane, priority, arguments, expires)

-- :name accept
-- Runs of any kind. The server's clock decides which of them are due. If a row already exists, an
-- earlier try wrote it and its reply was lost.
WITH op AS MATERIALIZED (
    SELECT id, task, queue, lane, priority, arguments, tags, key, clock.now,
           CASE WHEN at IS NULL THEN clock.now + delay::float8 * interval '1 microsecond'
                ELSE duly_time(greatest(at, 0)) END AS due_at,
           clock.now + expires::float8 * interval '1 microsecond' AS expires_at
      FROM (SELECT duly_now() AS now) AS clock
     CROSS JOIN unnest(%(ids)s::uuid[], %(tasks)s::text[], %(queues)s::text[], %(lanes)s::text[],
                       %(priorities)s::integer[], %(arguments)s::text[], %(expires)s::bigint[],
                       %(delays)s::bigint[], %(ats)s::bigint[], %(tags)s::text[], %(keys)s::text[])
           AS op(id, task, queue, lane, priority, arguments, expires, delay, at, tags, key)
), ready AS (
    INSERT INTO duly_runs
        (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
    SELECT id, task, queue, lane, priority, now, due_at, expires_at, key, tags, arguments
      FROM op
     WHERE due_at <= now
        ON CONFLICT (id) DO NOTHING
    RETURNING id
), later AS (
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
    SELECT id, task, queue, lane, priority, now, due_at, expires_at, key, tags, arguments
      FROM op
     WHERE due_at > now
        ON CONFLICT (id) DO NOTHING
    RETURNING id
), counted AS (
    INSERT INTO duly_accounts (accepted)
    SELECT pg_catalog.count(*) FROM (TABLE ready UNION ALL TABLE later) AS accepted
    HAVING pg_catalog.count(*) > 0
)
INSERT INTO duly_tags (name, value, run_id)
SELECT tag.key, tag.value, op.id
  FROM op
 CROSS JOIN LATERAL pg_catalog.json_each_text(op.tags::json) AS tag
    ON CONFLICT (name, value, run_id) DO NOTHING

-- :name known
-- The runs among these that exist. Used after a connection was lost while it accepted them.
SELECT id::text FROM duly_every_run WHERE id = ANY (%(ids)s::uuid[])

-- :name take_key
-- Guard: a key that is still in force stays with its run. Only for keys that `read_key` did not find,
-- because a conflict locks the row of a key, and settles write the rows of keys in force. A run of a
-- task with aliases takes its key under each name.
INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
SELECT task, key, run_id, fingerprint, ttl, active_only
  FROM unnest(%(tasks)s::text[], %(keys)s::text[], %(ids)s::uuid[], %(fingerprints)s::text[],
              %(ttls)s::bigint[], %(active_only)s::boolean[])
       AS op(task, key, run_id, fingerprint, ttl, active_only)
    ON CONFLICT (task, key) DO UPDATE
   SET run_id = excluded.run_id, fingerprint = excluded.fingerprint, ttl = excluded.ttl,
       active_only = excluded.active_only, expires_at = NULL
 WHERE duly_keys.expires_at <= duly_now()
RETURNING task, key

-- :name read_key
SELECT op.task, op.key, known.run_id::text, known.fingerprint
  FROM unnest(%(tasks)s::text[], %(keys)s::text[]) AS op(task, key)
 CROSS JOIN LATERAL (
       SELECT run_id, fingerprint FROM duly_keys
        WHERE duly_keys.task = op.task AND duly_keys.key = op.key
          AND (duly_keys.expires_at IS NULL OR duly_keys.expires_at > duly_now())
       OFFSET 0) AS known

-- :name give_up_keys
-- For runs that got their key under only some names of their task, because another run has it.
DELETE FROM duly_keys WHERE run_id = ANY (%(ids)s::uuid[])

-- :name max_size
SELECT max_size FROM duly_queues WHERE name = %(queue)s AND max_size IS NOT NULL

-- :name size
-- Counts only runs that wait for a worker, and stops at the limit.
SELECT pg_catalog.count(*)
  FROM (SELECT 1
          FROM duly_lanes_of(NULL::bigint) AS own
         CROSS JOIN LATERAL (
               SELECT 1 FROM duly_runs
                WHERE state = 'queued' AND duly_runs.lane < '~'
                  AND duly_runs.lane = own.lane AND queue = %(queue)s
               OFFSET 0) AS run
        UNION ALL
        SELECT 1 FROM duly_runs
         WHERE state = 'queued' AND lane >= '~' AND queue > '' AND queue = %(queue)s
        UNION ALL
        SELECT 1 FROM duly_waiting WHERE parked IN ('paused', 'unregistered') AND queue = %(queue)s
         LIMIT %(limit)s) AS waiting

-- :name key_in_force
-- Returns keys that expired lately too. This may let one run too many into a full queue.
SELECT run_id::text FROM duly_keys WHERE task = %(task)s AND key = %(key)s

-- :name database
SELECT pg_catalog.current_database()::text

-- :name enqueue_in_callers_transaction
-- The function duly_enqueue in the migrations describes its steps, and why it is a function.
SELECT pg_catalog.current_database()::text, run_id::text AS run_id, is_new AS new, conflict,
       (SELECT pg_catalog.pg_notify(duly_channel(), %(hint)s::text)
         WHERE is_new AND %(hint)s::text IS NOT NULL) AS hint
  FROM duly_enqueue(
       %(run_id)s::uuid, %(task)s::text, %(queue)s::text, %(lane)s::text, %(priority)s::integer,
       %(arguments)s::text, %(delay)s::bigint, %(at)s::bigint, %(expires)s::bigint,
       %(tags)s::text, %(key)s::text, %(fingerprint)s::text, %(ttl)s::bigint,
       %(active_only)s::boolean, pg_catalog.string_to_array(%(other_names)s::text, ' '))
