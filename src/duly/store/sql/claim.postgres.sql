-- claim: claim ready runs for a live worker.
-- PostgreSQL has many writers. A claim locks the worker's row, and recovery locks that row FOR UPDATE.
-- So a claim is entirely before or entirely after the recovery of its worker. A claim that waited for
-- recovery finds the worker dead and takes nothing. An earlier claim is committed when recovery reads
-- the worker's runs. SQLite has one writer and queries queue by queue instead.
-- No statement joins a growing table with the rows that it picked. If the statistics show an empty
-- table, the planner would read the whole table for each row. An array of ids leaves no other plan.

-- :name take
-- Guard: only queued rows that no other transaction is taking. claim_number grows by one and is the
-- fence. Each want reads the queues of its lane, starting at the last claim's queue, and stops when it
-- is full. The inner LIMITs produce rows one by one, so no more rows are locked than taken. Every claim
-- of a worker gets a later claimed_at than its last one. This shows which runs it took if the reply to
-- its commit is lost. A claim stops at the run with which its arguments reach a number of bytes, but
-- takes at least one run of each lane. A running sum is computed only if the total exceeds that number.
-- The runs beyond it stay queued, and their locks end with the transaction.
WITH live AS MATERIALIZED (
    SELECT 1 FROM duly_workers WHERE id = %(worker_id)s AND state = 'live' FOR KEY SHARE
), look AS MATERIALIZED (
    SELECT number FROM duly_look
), lanes AS MATERIALIZED (
    SELECT own.lane FROM look CROSS JOIN LATERAL duly_lanes_of(look.number) AS own
), picked AS MATERIALIZED (
    SELECT taken.id, taken.bytes, want.number
      FROM unnest(%(queues)s::text[], %(lanes)s::text[], %(limits)s::bigint[])
           WITH ORDINALITY AS want(queue, lane, room, number)
     CROSS JOIN LATERAL (
           SELECT run.id, run.bytes
             FROM look
            CROSS JOIN LATERAL (
                  SELECT want.queue WHERE want.queue IS NOT NULL
                  UNION ALL
                  SELECT walk.queue
                    FROM duly_queues_of(look.number, want.lane, %(after_queue)s) AS walk
                   WHERE want.queue IS NULL
                     AND walk.queue <> ALL (%(excluded)s::text[])) AS asked
            CROSS JOIN LATERAL duly_parts(look.number, want.lane, asked.queue) AS part
            CROSS JOIN LATERAL (
                  SELECT id, pg_catalog.octet_length(arguments) AS bytes
                    FROM duly_runs
                   WHERE state = 'queued' AND lane < '~'
                     AND lane = want.lane
                     AND queue = asked.queue
                     AND (-priority, due_at) >= (part.first, part.due_at)
                     AND -priority < part.last
                     AND task = ANY (%(tasks)s::text[])
                     AND (expires_at IS NULL OR expires_at > duly_now())
                   ORDER BY -priority, due_at, id
                   LIMIT want.room
                     FOR UPDATE SKIP LOCKED) AS run
            WHERE NOT EXISTS (SELECT 1 FROM duly_queues AS known
                               WHERE known.name = asked.queue
                                 AND (known.paused OR known.running_limit IS NOT NULL)
                              OFFSET 0)
            LIMIT want.room) AS taken
     WHERE EXISTS (SELECT 1 FROM live) AND want.lane IN (SELECT lane FROM lanes)
), total AS MATERIALIZED (
    SELECT pg_catalog.sum(bytes) AS bytes FROM picked
), summed AS (
    SELECT id, number, pg_catalog.row_number() OVER () AS place,
           pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
      FROM picked
), chosen AS (
    SELECT id FROM picked WHERE (SELECT bytes FROM total) <= %(bytes)s::bigint
    UNION ALL
    SELECT id
      FROM summed
     WHERE (SELECT bytes FROM total) > %(bytes)s::bigint
       AND (bytes_before < %(bytes)s::bigint
            OR place IN (SELECT pg_catalog.min(place) FROM summed GROUP BY number))
)
UPDATE duly_runs AS run
   SET state = 'running', claim_number = claim_number + 1, worker_id = %(worker_id)s,
       claimed_at = greatest(duly_now(), duly_time(%(last)s::bigint + 1)),
       progress = NULL, progress_text = NULL
 WHERE run.id = ANY (ARRAY(SELECT id FROM chosen))
RETURNING run.id::text, claim_number, task, queue, lane, priority, duly_microseconds(due_at),
          attempt, retries_used, crashes, generation, key IS NOT NULL, tags, arguments,
          duly_microseconds(claimed_at)

-- :name limited_queues
-- Queues with a limit that have a ready run. One probe for each such queue and each lane in use.
WITH look AS MATERIALIZED (
    SELECT number FROM duly_look
)
SELECT known.name, own.lane, known.running_limit
  FROM look
 CROSS JOIN (SELECT name, running_limit FROM duly_queues
              WHERE NOT paused AND running_limit IS NOT NULL
             OFFSET 0) AS known
 CROSS JOIN LATERAL duly_lanes_of(look.number) AS own
 WHERE EXISTS (SELECT 1
                 FROM duly_parts(look.number, own.lane, known.name) AS part
                CROSS JOIN LATERAL (
                      SELECT 1 FROM duly_runs
                       WHERE state = 'queued' AND lane < '~'
                         AND lane = own.lane AND queue = known.name
                         AND (-priority, due_at) >= (part.first, part.due_at)
                         AND -priority < part.last
                       LIMIT 1) AS run
               OFFSET 0)

-- :name queues
SELECT name, paused, running_limit FROM duly_queues WHERE paused OR running_limit IS NOT NULL

-- :name limited_lanes
WITH look AS MATERIALIZED (
    SELECT number FROM duly_look
)
SELECT found.lane
  FROM look
 CROSS JOIN LATERAL duly_limited_lanes(look.number, %(after)s) AS found
 LIMIT %(most)s

-- :name lock_limit
-- The count of runs under a limit is valid only until another claim commits. So the claim that counts
-- takes this lock, and keeps it until its runs are committed. The count is a later statement, so it
-- sees all commits of earlier holders. No task name contains a blank, so no key has this lock.
SELECT pg_catalog.pg_advisory_xact_lock(duly_key_lock(' limit', %(name)s))

-- :name running_in_queue
-- How many runs of a queue are running, the floor of its limit, when the oldest of them was claimed,
-- and how long the count took. While a floor is in force, the runs of each worker are read from the
-- floor onwards. This includes workers that have ended, because their runs count until they are
-- recovered.
WITH floor AS MATERIALIZED (
    SELECT claimed_at, in_force, is_ahead FROM duly_limit_floor('queue ' || %(queue)s::text)
), counted AS MATERIALIZED (
    SELECT pg_catalog.count(*) AS number, pg_catalog.min(running.claimed_at) AS oldest
      FROM floor
     CROSS JOIN LATERAL (
           SELECT claimed_at
             FROM duly_runs
            WHERE floor.in_force IS NULL
              AND worker_id IS NOT NULL AND state = 'running' AND queue = %(queue)s
           UNION ALL
           SELECT own.claimed_at
             FROM duly_workers AS worker
            CROSS JOIN LATERAL (
                  SELECT claimed_at
                    FROM duly_runs
                   WHERE worker_id = worker.id AND claimed_at >= floor.in_force
                     AND worker_id IS NOT NULL AND state = 'running' AND queue = %(queue)s
                  OFFSET 0) AS own
            WHERE floor.in_force IS NOT NULL
           OFFSET 0) AS running
)
SELECT counted.number, duly_microseconds(floor.claimed_at), floor.in_force IS NOT NULL, floor.is_ahead,
       duly_microseconds(counted.oldest),
       (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp())
        * 1000000::numeric)::bigint
  FROM counted CROSS JOIN floor

-- :name running_in_limit
-- The same for the limit of a task, or for one key of that limit.
WITH floor AS MATERIALIZED (
    SELECT claimed_at, in_force, is_ahead FROM duly_limit_floor(%(name)s::text)
), counted AS MATERIALIZED (
    SELECT pg_catalog.count(*) AS number, pg_catalog.min(running.claimed_at) AS oldest
      FROM floor
     CROSS JOIN LATERAL (
           SELECT claimed_at
             FROM duly_runs
            WHERE state = 'running' AND lane >= '~'
              AND pg_catalog.split_part(lane, ' ', 1) = pg_catalog.split_part(%(name)s::text, ' ', 1)
              AND pg_catalog.split_part(lane, ' ', 2) = pg_catalog.split_part(%(name)s::text, ' ', 2)
              AND claimed_at >= coalesce(floor.in_force, '-infinity')
           OFFSET 0) AS running
)
SELECT counted.number, duly_microseconds(floor.claimed_at), floor.in_force IS NOT NULL, floor.is_ahead,
       duly_microseconds(counted.oldest),
       (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp())
        * 1000000::numeric)::bigint
  FROM counted CROSS JOIN floor

-- :name note_limit_floor
-- Guard: the caller holds the lock of the limit and has just counted, so no claim under that lock is in
-- progress. A worker that does not know the limit claims without the lock, so the floor stays some
-- seconds in the past. A prune removes unused floors, because a delete here could wait for another
-- limit.
INSERT INTO duly_limit_floors (name, claimed_at, noted_at)
VALUES (%(name)s,
        least(duly_time(%(oldest)s::bigint),
              duly_now() - %(margin)s::float8 * interval '1 microsecond'),
        duly_now())
ON CONFLICT (name) DO UPDATE SET claimed_at = excluded.claimed_at, noted_at = excluded.noted_at

-- :name take_from_queue
-- Guard: as in take. The caller holds the lock of the queue's limit and has counted.
WITH live AS MATERIALIZED (
    SELECT 1 FROM duly_workers WHERE id = %(worker_id)s AND state = 'live' FOR KEY SHARE
), look AS MATERIALIZED (
    SELECT number FROM duly_look
), picked AS MATERIALIZED (
    SELECT run.id, run.bytes
      FROM look
     CROSS JOIN LATERAL duly_parts(look.number, %(lane)s, %(queue)s) AS part
     CROSS JOIN LATERAL (
           SELECT id, pg_catalog.octet_length(arguments) AS bytes
             FROM duly_runs
            WHERE state = 'queued' AND lane < '~'
              AND lane = %(lane)s
              AND queue = %(queue)s
              AND (-priority, due_at) >= (part.first, part.due_at) AND -priority < part.last
              AND task = ANY (%(tasks)s::text[])
              AND (expires_at IS NULL OR expires_at > duly_now())
            ORDER BY -priority, due_at, id
            LIMIT %(room)s
              FOR UPDATE SKIP LOCKED) AS run
     WHERE EXISTS (SELECT 1 FROM live)
     LIMIT %(room)s
), summed AS (
    SELECT id, pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
      FROM picked
)
UPDATE duly_runs AS run
   SET state = 'running', claim_number = claim_number + 1, worker_id = %(worker_id)s,
       claimed_at = greatest(duly_now(), duly_time(%(last)s::bigint + 1)),
       progress = NULL, progress_text = NULL
 WHERE run.id = ANY (ARRAY(SELECT id FROM summed WHERE bytes_before < %(bytes)s::bigint))
RETURNING run.id::text, claim_number, task, queue, lane, priority, duly_microseconds(due_at),
          attempt, retries_used, crashes, generation, key IS NOT NULL, tags, arguments,
          duly_microseconds(claimed_at)

-- :name take_limited
-- Guard: as in take. The caller holds the lock of each limit and has counted.
WITH live AS MATERIALIZED (
    SELECT 1 FROM duly_workers WHERE id = %(worker_id)s AND state = 'live' FOR KEY SHARE
), look AS MATERIALIZED (
    SELECT number FROM duly_look
), picked AS MATERIALIZED (
    SELECT run.id, run.bytes
      FROM look
     CROSS JOIN LATERAL duly_parts(look.number, %(lane)s, '') AS part
     CROSS JOIN LATERAL (
           SELECT id, pg_catalog.octet_length(arguments) AS bytes
             FROM duly_runs
            WHERE state = 'queued'
              AND lane >= '~'
              AND lane = %(lane)s
              AND (-priority, due_at) >= (part.first, part.due_at) AND -priority < part.last
              AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
              AND queue <> ALL (%(closed)s::text[])
              AND (expires_at IS NULL OR expires_at > duly_now())
            ORDER BY -priority, due_at, id
            LIMIT %(room)s
              FOR UPDATE SKIP LOCKED) AS run
     WHERE EXISTS (SELECT 1 FROM live)
     LIMIT %(room)s
), summed AS (
    SELECT id, pg_catalog.sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
      FROM picked
)
UPDATE duly_runs AS run
   SET state = 'running', claim_number = claim_number + 1, worker_id = %(worker_id)s,
       claimed_at = greatest(duly_now(), duly_time(%(last)s::bigint + 1)),
       progress = NULL, progress_text = NULL
 WHERE run.id = ANY (ARRAY(SELECT id FROM summed WHERE bytes_before < %(bytes)s::bigint))
RETURNING run.id::text, claim_number, task, queue, lane, priority, duly_microseconds(due_at),
          attempt, retries_used, crashes, generation, key IS NOT NULL, tags, arguments,
          duly_microseconds(claimed_at)

-- :name take_carried
-- Guard: as above, and only for the claim that was handed over. In a queue with a limit, the caller
-- must also hold the lock of the limit and have counted. The state is compared in a form that matches
-- no partial index, since the planner reads all of such an index if it was empty when last counted.
WITH live AS MATERIALIZED (
    SELECT 1 FROM duly_workers WHERE id = %(worker_id)s AND state = 'live' FOR KEY SHARE
), picked AS MATERIALIZED (
    SELECT run.id
      FROM duly_runs AS run
     WHERE run.id = %(run_id)s AND run.claim_number = %(claim_number)s AND run.state <> 'running'
       AND run.lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
       AND (run.expires_at IS NULL OR run.expires_at > duly_now())
       AND NOT EXISTS (SELECT 1 FROM duly_queues
                        WHERE name = run.queue
                          AND (paused OR (running_limit IS NOT NULL AND NOT %(counted)s)))
       AND EXISTS (SELECT 1 FROM live)
       FOR UPDATE OF run
), dropped AS (
    DELETE FROM duly_handed WHERE run_id = ANY (ARRAY(SELECT id FROM picked))
)
UPDATE duly_runs AS run
   SET state = 'running', claim_number = claim_number + 1, worker_id = %(worker_id)s,
       claimed_at = greatest(duly_now(), duly_time(%(last)s::bigint)),
       progress = NULL, progress_text = NULL
 WHERE run.id = ANY (ARRAY(SELECT id FROM picked)) AND run.state <> 'running'
RETURNING run.id::text, claim_number, task, queue, lane, priority, duly_microseconds(due_at),
          attempt, retries_used, crashes, generation, key IS NOT NULL, tags, arguments,
          duly_microseconds(claimed_at)

-- :name queue_of_carried
SELECT name, running_limit
  FROM duly_queues
 WHERE name = (SELECT queue FROM duly_runs
                WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state <> 'running')
   AND NOT paused AND running_limit IS NOT NULL

-- :name put_off_handed
-- For a run of a full queue, which is handed over again soon.
UPDATE duly_handed SET stale_at = duly_now() + %(after)s::float8 * interval '1 microsecond'
 WHERE run_id = %(run_id)s

-- :name carried
-- The run of such a claim whose reply was lost.
SELECT id::text, claim_number, task, queue, lane, priority, duly_microseconds(due_at),
       attempt, retries_used, crashes, generation, key IS NOT NULL, tags, arguments,
       duly_microseconds(claimed_at)
  FROM duly_runs
 WHERE id = %(run_id)s AND worker_id = %(worker_id)s AND claim_number = %(claim_number)s + 1

-- :name taken
-- The runs of a claim whose reply was lost.
SELECT id::text, claim_number, task, queue, lane, priority, duly_microseconds(due_at),
       attempt, retries_used, crashes, generation, key IS NOT NULL, tags, arguments,
       duly_microseconds(claimed_at)
  FROM duly_runs
 WHERE worker_id = %(worker_id)s AND claimed_at > duly_time(%(last)s::bigint)

-- :name latest_claim
SELECT coalesce(pg_catalog.max(duly_microseconds(claimed_at)), 0)
  FROM duly_runs
 WHERE worker_id = %(worker_id)s
