-- Duties: upkeep for which one of many workers suffices, at a cost that does not grow with them.

-- Beats change no column that an index is about, so they still write none of them.
DROP INDEX CONCURRENTLY IF EXISTS duly_workers_registrations;
CREATE INDEX CONCURRENTLY duly_workers_registrations
    ON duly_workers (hashtextextended((tasks || lanes) COLLATE "C", 0)) WHERE state = 'live';
-- By the last letters of the ids, which are random: the first ones tell when a worker started.
DROP INDEX CONCURRENTLY IF EXISTS duly_workers_shuffled;
CREATE INDEX CONCURRENTLY duly_workers_shuffled ON duly_workers (reverse(id)) WHERE state = 'live';
DROP INDEX CONCURRENTLY IF EXISTS duly_workers_live;

-- A loose index scan, as duly_ready_lanes: what the live workers have registered, each list once.
-- A thousand workers of one program have one.
CREATE VIEW duly_registrations AS
WITH RECURSIVE known(hash, tasks, lanes) AS (
    (SELECT hashtextextended((tasks || lanes) COLLATE "C", 0), tasks, lanes
       FROM duly_workers
      WHERE state = 'live'
      ORDER BY hashtextextended((tasks || lanes) COLLATE "C", 0) LIMIT 1)
    UNION ALL
    SELECT next.hash, next.tasks, next.lanes
      FROM known
     CROSS JOIN LATERAL (
           SELECT hashtextextended((worker.tasks || worker.lanes) COLLATE "C", 0) AS hash,
                  worker.tasks, worker.lanes
             FROM duly_workers AS worker
            WHERE worker.state = 'live'
              AND hashtextextended((worker.tasks || worker.lanes) COLLATE "C", 0) > known.hash
            ORDER BY hashtextextended((worker.tasks || worker.lanes) COLLATE "C", 0)
            LIMIT 1) AS next
)
SELECT tasks, lanes FROM known;

-- When each duty was done last. Rows are few, and written at most once in the interval of their duty.
CREATE TABLE duly_duties (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    done_at timestamptz NOT NULL,
    -- What the server had counted when the last complete look at all waits began.
    counted text
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
