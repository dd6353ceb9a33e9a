-- floors: where claims start to read while dead index entries cannot be removed.
-- SQLite has no such entries. The migration "floors" explains the tables.

-- :name lock
-- Released at the end of the transaction. No task name contains a blank, so no key has this lock.
SELECT pg_catalog.pg_try_advisory_xact_lock(duly_key_lock(' look', ''))

-- :name newest
-- The age of the newest look, and whether its floors are in force. A clock that was set back makes
-- the age negative.
SELECT duly_microseconds(duly_now()) - duly_microseconds(looked_at),
       number = (SELECT number FROM duly_look)
  FROM duly_looks
 ORDER BY number DESC
 LIMIT 1

-- :name bound
-- The whole index is read in its order, only by index scans, and for at most this time.
SELECT pg_catalog.set_config('statement_timeout', %(timeout)s, true),
       pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true)

-- :name look
-- Guard: the caller holds the lock above. This is one statement with one snapshot. Every run that is
-- ready and visible in it is at or above the floor of its lane, queue and priority. Where no run is
-- ready, the floor is slightly in the past: transactions that are about to commit may have written
-- older times. A priority gets a floor if one of its runs is ready or has ended lately, or if it had a
-- floor before, since dead entries are not visible. All other priorities are read from their beginning.
WITH RECURSIVE head(lane, queue, rank, due_at) AS (
    (SELECT lane, queue, -priority, due_at
       FROM duly_runs
      WHERE state = 'queued' AND lane < '~'
      ORDER BY lane, queue, -priority, due_at, id LIMIT 1)
    UNION ALL
    SELECT next.lane, next.queue, next.rank, next.due_at
      FROM head
     CROSS JOIN LATERAL (
           SELECT run.lane, run.queue, -run.priority AS rank, run.due_at
             FROM duly_runs AS run
            WHERE run.state = 'queued' AND run.lane < '~'
              AND (run.lane, run.queue, -run.priority) > (head.lane, head.queue, head.rank)
            ORDER BY run.lane, run.queue, -run.priority, run.due_at, run.id LIMIT 1) AS next
), limited(lane, rank, due_at) AS (
    (SELECT lane, -priority, due_at
       FROM duly_runs
      WHERE state = 'queued' AND lane >= '~'
      ORDER BY lane, -priority, due_at, id LIMIT 1)
    UNION ALL
    SELECT next.lane, next.rank, next.due_at
      FROM limited
     CROSS JOIN LATERAL (
           SELECT run.lane, -run.priority AS rank, run.due_at
             FROM duly_runs AS run
            WHERE run.state = 'queued' AND run.lane >= '~'
              AND (run.lane, -run.priority) > (limited.lane, limited.rank)
            ORDER BY run.lane, -run.priority, run.due_at, run.id LIMIT 1) AS next
), ready AS MATERIALIZED (
    (SELECT lane, queue, rank, due_at FROM head LIMIT %(most)s)
    UNION ALL
    (SELECT lane, '', rank, due_at FROM limited LIMIT %(most)s)
), waiting AS MATERIALIZED (
    SELECT due_at FROM duly_waiting WHERE parked IS NULL ORDER BY due_at LIMIT 1
), expiring AS MATERIALIZED (
    SELECT least((SELECT expires_at FROM duly_runs WHERE state = 'queued' AND expires_at IS NOT NULL
                   ORDER BY expires_at LIMIT 1),
                 (SELECT expires_at FROM duly_waiting WHERE expires_at IS NOT NULL
                   ORDER BY expires_at LIMIT 1)) AS due_at
), before AS MATERIALIZED (
    SELECT lane, queue, first AS rank, due_at
      FROM duly_floors
     WHERE look = (SELECT number FROM duly_look) AND lane > '' AND due_at > '-infinity'
), ended AS MATERIALIZED (
    SELECT lane, queue, -priority AS rank
      FROM duly_history
     WHERE state NOT IN ('failed', 'interrupted') AND kept_until IS NULL
     ORDER BY finished_at DESC
     LIMIT 1000
), known AS MATERIALIZED (
    SELECT lane, CASE WHEN lane < '~' THEN queue ELSE '' END AS queue, rank,
           pg_catalog.min(due_at) AS due_at
      FROM (SELECT lane, queue, rank, due_at FROM ready
            UNION ALL SELECT lane, queue, rank, NULL FROM before
            UNION ALL SELECT lane, queue, rank, NULL FROM ended
            UNION ALL SELECT pg_catalog.replace(lane, 'handed', 'carried'), queue, rank, NULL FROM ended
                       WHERE lane IN ('handed', 'handed-hold')) AS seen
     GROUP BY 1, 2, 3
     ORDER BY pg_catalog.min(due_at) NULLS LAST
     LIMIT %(most)s
), looked AS (
    INSERT INTO duly_looks (looked_at, until)
    SELECT duly_now(),
           duly_now() + CASE WHEN pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()
                                  > %(slow)s::float8 * interval '1 microsecond'
                             THEN %(in_force)s::float8 * interval '1 microsecond'
                             ELSE interval '0' END
      FROM (SELECT pg_catalog.count(*) FROM known) AS ready_first,
           (SELECT pg_catalog.count(*) FROM waiting) AS then_waiting,
           (SELECT pg_catalog.count(*) FROM expiring) AS then_expiring
    RETURNING number, looked_at, until
), noted AS (
    INSERT INTO duly_floors (look, lane, queue, first, due_at, last)
    SELECT looked.number, part.lane, part.queue, part.first, part.due_at, part.last
      FROM looked
     CROSS JOIN LATERAL (
           SELECT lane, queue, rank::bigint AS first,
                  least(due_at, looked.looked_at - %(margin)s::float8 * interval '1 microsecond')
                      AS due_at,
                  pg_catalog.lead(rank::bigint, 1, 2147483648)
                      OVER (PARTITION BY lane, queue ORDER BY rank) AS last
             FROM known
           UNION ALL
           SELECT lane, queue, -2147483648, '-infinity', pg_catalog.min(rank)
             FROM known GROUP BY lane, queue
           UNION ALL
           SELECT '', part.name, 0,
                  least(part.due_at,
                        looked.looked_at - %(margin)s::float8 * interval '1 microsecond'),
                  1
             FROM (VALUES ('waiting', (SELECT due_at FROM waiting)),
                          ('expiring', (SELECT due_at FROM expiring))) AS part(name, due_at))
           AS part
     WHERE looked.until > looked.looked_at
), forgotten_floors AS (
    DELETE FROM duly_floors
     WHERE look = (SELECT number FROM duly_looks ORDER BY number DESC LIMIT 1)
), forgotten AS (
    DELETE FROM duly_looks
     WHERE number = (SELECT number FROM duly_looks ORDER BY number DESC LIMIT 1)
)
SELECT looked.until > looked.looked_at,
       EXISTS (SELECT 1 FROM ready JOIN before USING (lane, queue, rank)
                WHERE ready.due_at < before.due_at)
       OR (SELECT due_at FROM waiting) < duly_floor_of('waiting')
       OR (SELECT due_at FROM expiring) < duly_floor_of('expiring')
  FROM looked
