-- Claims cost the same with one queue as with thousands, and little while dead rows cannot be removed.

-- The lane is the first column: a claim for one kind of slot reads queue after queue of its lane,
-- and stops when it has enough runs. Runs under a limit have indexes of their own. All columns
-- ascend, so that a scan can begin at any priority and time by one comparison of rows.
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_by_lane;
CREATE INDEX CONCURRENTLY duly_runs_by_lane ON duly_runs (lane, queue, (-priority), due_at, id)
    WHERE state = 'queued' AND lane < '~';
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_by_limit;
CREATE INDEX CONCURRENTLY duly_runs_by_limit ON duly_runs (lane, (-priority), due_at, id)
    WHERE state = 'queued' AND lane >= '~';
-- Only statements with the condition "queue > ''" can use this index. No queue has an empty name.
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_limited_by_queue;
CREATE INDEX CONCURRENTLY duly_runs_limited_by_queue
    ON duly_runs (queue, lane, (-priority), due_at, id)
    WHERE state = 'queued' AND lane >= '~' AND queue > '';
-- A worker reads these every few moments, and they are few.
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_cancelling;
CREATE INDEX CONCURRENTLY duly_runs_cancelling ON duly_runs (worker_id)
    WHERE worker_id IS NOT NULL AND cancel_requested;
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_ready;
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_limited;

-- A transaction that holds a snapshot prevents vacuum from removing index entries of ended runs. A
-- look at the whole index records where the live entries of each lane, queue and priority begin,
-- and claims start there. Below a floor, no run was ready at the time of the look. Runs that have
-- become ready below a floor since then are found by the next look. Floors are in force until a
-- time, so they expire without a write.
-- Rows are only added and deleted. The newest look is the last entry of its index, so that reading
-- it never passes older entries.
CREATE TABLE duly_looks (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    looked_at timestamptz NOT NULL,
    until timestamptz NOT NULL
);

-- The parts of the index that can have live entries of a lane and queue: each begins at a priority
-- and a time, and ends before the next recorded priority. `first` and `last` are negated
-- priorities.
-- Runs under a limit have one index for all queues of their lane, and parts with an empty queue.
-- Two parts have an empty lane: `waiting` begins at the first run that waits for its time, and
-- `expiring` at the first run that will expire.
CREATE TABLE duly_floors (
    look bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    due_at timestamptz NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (look, lane, queue, first)
);

-- The look whose floors are in force; NULL if none are.
CREATE VIEW duly_look AS
SELECT (SELECT CASE WHEN last.looked_at <= duly_now() AND last.until > duly_now()
                    THEN last.number END
          FROM (SELECT number, looked_at, until FROM duly_looks ORDER BY number DESC LIMIT 1) AS last)
       AS number;

-- The functions below are plain SQL, which the planner inlines into the statements that use them.

-- The beginning of the runs that wait for their time, and of those that will expire.
CREATE FUNCTION duly_floor_of(part text) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT coalesce((SELECT floor.due_at FROM duly_floors AS floor
                      WHERE floor.look = (SELECT number FROM duly_look)
                        AND floor.lane = '' AND floor.queue = part),
                    '-infinity');
END;

-- The parts of one lane and queue that have to be read. Without floors it is one part with all
-- entries.
CREATE FUNCTION duly_parts(by_look bigint, of_lane text, of_queue text)
    RETURNS TABLE (first bigint, due_at timestamptz, last bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT part.first, part.due_at, part.last
      FROM (SELECT floor.first, floor.due_at, floor.last
              FROM duly_floors AS floor
             WHERE floor.look = by_look AND floor.lane = of_lane AND floor.queue = of_queue
            UNION ALL
            SELECT -2147483648, '-infinity', 2147483648
             WHERE NOT EXISTS (SELECT 1 FROM duly_floors AS floor
                                WHERE floor.look = by_look AND floor.lane = of_lane
                                  AND floor.queue = of_queue
                               OFFSET 0)) AS part
     ORDER BY part.first;
END;

-- The queues of a lane that have ready runs or floors: first those after `after` in their order,
-- then the others. There is one probe for each queue, when its row is requested.
CREATE FUNCTION duly_queues_of(by_look bigint, of_lane text, after text)
    RETURNS TABLE (queue text)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    WITH RECURSIVE walk(queue, has_turned, is_queue) AS (
        SELECT after COLLATE "C", false, false
        UNION ALL
        SELECT coalesce(next.queue, ''), walk.has_turned OR next.queue IS NULL,
               next.queue IS NOT NULL
          FROM walk
         CROSS JOIN LATERAL (
               SELECT (SELECT floor.queue FROM duly_floors AS floor
                        WHERE floor.look = by_look AND floor.lane = of_lane
                          AND floor.queue > walk.queue
                        ORDER BY floor.queue LIMIT 1) AS queue
               OFFSET 0) AS known
         CROSS JOIN LATERAL (
               SELECT coalesce(
                          CASE WHEN known.queue IS NULL
                          THEN (SELECT run.queue FROM duly_runs AS run
                                 WHERE run.state = 'queued' AND run.lane < '~'
                                   AND run.lane = of_lane AND run.queue > walk.queue
                                 ORDER BY run.queue LIMIT 1)
                          ELSE (SELECT run.queue FROM duly_runs AS run
                                 WHERE run.state = 'queued' AND run.lane < '~'
                                   AND run.lane = of_lane AND run.queue > walk.queue
                                   AND run.queue < known.queue
                                 ORDER BY run.queue LIMIT 1)
                          END, known.queue) AS queue
               OFFSET 0) AS next
         WHERE CASE WHEN walk.has_turned THEN next.queue <= after
                    ELSE next.queue IS NOT NULL OR after > '' END
    )
    SELECT walk.queue FROM walk WHERE walk.is_queue;
END;

-- The lanes without a limit that have ready runs or floors.
CREATE FUNCTION duly_lanes_of(by_look bigint) RETURNS TABLE (lane text)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    WITH RECURSIVE walk(lane) AS (
        SELECT '' COLLATE "C"
        UNION ALL
        SELECT next.lane
          FROM walk
         CROSS JOIN LATERAL (
               SELECT (SELECT floor.lane FROM duly_floors AS floor
                        WHERE floor.look = by_look AND floor.lane > walk.lane AND floor.lane < '~'
                        ORDER BY floor.lane LIMIT 1) AS lane
               OFFSET 0) AS known
         CROSS JOIN LATERAL (
               SELECT coalesce(
                          CASE WHEN known.lane IS NULL
                          THEN (SELECT run.lane FROM duly_runs AS run
                                 WHERE run.state = 'queued' AND run.lane < '~'
                                   AND run.lane > walk.lane
                                 ORDER BY run.lane LIMIT 1)
                          ELSE (SELECT run.lane FROM duly_runs AS run
                                 WHERE run.state = 'queued' AND run.lane < '~'
                                   AND run.lane > walk.lane AND run.lane < known.lane
                                 ORDER BY run.lane LIMIT 1)
                          END, known.lane) AS lane
               OFFSET 0) AS next
         WHERE next.lane IS NOT NULL
    )
    SELECT walk.lane FROM walk WHERE walk.lane <> '';
END;

-- The limited lanes after `after` that have ready runs. There is one probe for each of them and for
-- each lane with floors, when its row is requested.
CREATE FUNCTION duly_limited_lanes(by_look bigint, after text) RETURNS TABLE (lane text)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    WITH RECURSIVE walk(lane, is_lane) AS (
        -- No limited lane is less than or equal to '~'.
        SELECT greatest(after, '~') COLLATE "C", false
        UNION ALL
        SELECT next.lane, true
          FROM walk
         CROSS JOIN LATERAL (
               SELECT (SELECT floor.lane FROM duly_floors AS floor
                        WHERE floor.look = by_look AND floor.lane > walk.lane
                        ORDER BY floor.lane LIMIT 1) AS lane
               OFFSET 0) AS known
         CROSS JOIN LATERAL (
               SELECT coalesce(
                          CASE WHEN known.lane IS NULL
                          THEN (SELECT run.lane FROM duly_runs AS run
                                 WHERE run.state = 'queued' AND run.lane >= '~'
                                   AND run.lane > walk.lane
                                 ORDER BY run.lane LIMIT 1)
                          ELSE (SELECT run.lane FROM duly_runs AS run
                                 WHERE run.state = 'queued' AND run.lane >= '~'
                                   AND run.lane > walk.lane AND run.lane < known.lane
                                 ORDER BY run.lane LIMIT 1)
                          END, known.lane) AS lane
               OFFSET 0) AS next
         WHERE next.lane IS NOT NULL
    )
    SELECT walk.lane
      FROM walk
     WHERE walk.is_lane
       AND EXISTS (SELECT 1
                     FROM duly_parts(by_look, walk.lane, '') AS part
                    CROSS JOIN LATERAL (
                          SELECT 1 FROM duly_runs AS run
                           WHERE run.state = 'queued' AND run.lane >= '~' AND run.lane = walk.lane
                             AND (-run.priority, run.due_at) >= (part.first, part.due_at)
                             AND -run.priority < part.last
                           ORDER BY -run.priority, run.due_at, run.id
                           LIMIT 1) AS run
                   OFFSET 0);
END;

-- The first runs of one lane and queue, with or without a limit: a claim begins to read there.
CREATE FUNCTION duly_first_runs(by_look bigint, of_lane text, of_queue text, most bigint)
    RETURNS TABLE (id uuid, task text)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    (SELECT run.id, run.task
       FROM duly_parts(by_look, of_lane, of_queue) AS part
      CROSS JOIN LATERAL (
            SELECT ready.id, ready.task
              FROM duly_runs AS ready
             WHERE ready.state = 'queued' AND ready.lane < '~'
               AND ready.lane = of_lane AND ready.queue = of_queue
               AND (-ready.priority, ready.due_at) >= (part.first, part.due_at)
               AND -ready.priority < part.last
             ORDER BY -ready.priority, ready.due_at, ready.id
             LIMIT most) AS run
      LIMIT most)
    UNION ALL
    (SELECT ready.id, ready.task
       FROM duly_runs AS ready
      WHERE of_lane >= '~' AND ready.state = 'queued' AND ready.lane >= '~' AND ready.queue > ''
        AND ready.queue = of_queue AND ready.lane = of_lane
      ORDER BY -ready.priority, ready.due_at, ready.id
      LIMIT most);
END;

-- As before, with the new indexes: every lane and queue without a limit that has ready runs or
-- floors, and one limited lane of each queue.
CREATE OR REPLACE VIEW duly_ready_lanes AS
WITH RECURSIVE look(number) AS MATERIALIZED (
    SELECT number FROM duly_look
), limited(queue, lane) AS (
    (SELECT queue, lane FROM duly_runs WHERE state = 'queued' AND lane >= '~' AND queue > ''
      ORDER BY queue, lane LIMIT 1)
    UNION ALL
    SELECT next.queue, next.lane
      FROM limited
     CROSS JOIN LATERAL (
           SELECT run.queue, run.lane FROM duly_runs AS run
            WHERE run.state = 'queued' AND run.lane >= '~' AND run.queue > ''
              AND run.queue > limited.queue
            ORDER BY run.queue, run.lane LIMIT 1) AS next
), head(queue, lane) AS (
    SELECT walk.queue, own.lane
      FROM look
     CROSS JOIN LATERAL duly_lanes_of(look.number) AS own
     CROSS JOIN LATERAL duly_queues_of(look.number, own.lane, '') AS walk
    UNION ALL
    SELECT queue, lane FROM limited
)
SELECT head.queue COLLATE "C" AS queue, head.lane COLLATE "C" AS lane,
       coalesce(known.paused, false) AS paused, known.running_limit
  FROM head
  LEFT JOIN duly_queues AS known ON known.name = head.queue;

-- The facts that an idle worker needs. `of_tasks` are the tasks that it hands over to another
-- engine. Every term is a few probes of an index, and stops at the first run. The settings and the
-- order of each probe ensure that under any statistics. `look_age` is NULL if no floors are in
-- force.
CREATE FUNCTION duly_peek(of_tasks text[])
    RETURNS TABLE (has_ready boolean, has_suspect boolean, has_parked boolean, next_due_in bigint,
                   next_fire_in bigint, has_waits boolean, has_carried boolean,
                   has_strayed boolean, next_stale_in bigint, has_limited boolean,
                   look_age bigint, took bigint)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH look AS MATERIALIZED (
        SELECT number FROM duly_look
    ), ready AS MATERIALIZED (
        SELECT own.lane
          FROM look
         CROSS JOIN LATERAL duly_lanes_of(look.number) AS own
         CROSS JOIN LATERAL (
               SELECT 1
                 FROM duly_queues_of(look.number, own.lane, '') AS walk
                CROSS JOIN LATERAL duly_parts(look.number, own.lane, walk.queue) AS part
                CROSS JOIN LATERAL (
                      SELECT 1 FROM duly_runs
                       WHERE state = 'queued' AND duly_runs.lane < '~'
                         AND duly_runs.lane = own.lane AND queue = walk.queue
                         AND (-priority, due_at) >= (part.first, part.due_at)
                         AND -priority < part.last
                       ORDER BY -priority, due_at, id
                       LIMIT 1) AS run
                LIMIT 1) AS found
         WHERE own.lane NOT IN ('carried', 'carried-hold', 'handed', 'handed-hold')
    )
    SELECT EXISTS (SELECT 1 FROM ready WHERE lane <> 'suspect'),
           EXISTS (SELECT 1 FROM ready WHERE lane = 'suspect'),
           (SELECT parked FROM duly_waiting WHERE parked IS NOT NULL
             ORDER BY parked, queue, task LIMIT 1) IS NOT NULL,
           duly_microseconds(least(
               (SELECT due_at FROM duly_waiting
                 WHERE parked IS NULL AND due_at >= duly_floor_of('waiting')
                 ORDER BY due_at LIMIT 1),
               CASE WHEN EXISTS (SELECT 1 FROM duly_wakeups) THEN duly_now() END,
               (SELECT expires_at FROM duly_waiting
                 WHERE expires_at IS NOT NULL AND expires_at >= duly_floor_of('expiring')
                 ORDER BY expires_at LIMIT 1),
               (SELECT expires_at FROM duly_runs
                 WHERE state = 'queued' AND expires_at IS NOT NULL
                   AND expires_at >= duly_floor_of('expiring')
                 ORDER BY expires_at LIMIT 1)))
           - duly_microseconds(duly_now()),
           (SELECT duly_microseconds(look_at) FROM duly_schedules WHERE look_at IS NOT NULL
             ORDER BY look_at LIMIT 1)
           - duly_microseconds(duly_now()),
           EXISTS (SELECT 1 FROM duly_steps WHERE kind IN ('wait', 'gather') AND NOT done),
           EXISTS (SELECT 1 FROM duly_carried_lanes
                    WHERE lane IN ('carried', 'carried-hold')
                      AND task = ANY (of_tasks)),
           EXISTS (SELECT 1 FROM duly_carried_lanes WHERE task <> ALL (of_tasks)),
           (SELECT duly_microseconds(pg_catalog.min((SELECT pg_catalog.min(stale_at) FROM duly_handed
                                           WHERE task = known.task)))
              FROM pg_catalog.unnest(of_tasks) AS known(task)) - duly_microseconds(duly_now()),
           EXISTS (SELECT 1 FROM look CROSS JOIN LATERAL duly_limited_lanes(look.number, '') AS _),
           (SELECT duly_microseconds(duly_now()) - duly_microseconds(looked_at)
              FROM duly_looks WHERE duly_looks.number = (SELECT number FROM look)),
           (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp())
            * 1000000::numeric)::bigint;
END
$$;

-- The names in its body are resolved when it runs: in duly's schema, for any search path of the
-- caller.
DO $do$
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION duly_peek SET search_path = %I, pg_temp',
                              pg_catalog.current_schema());
END
$do$;
