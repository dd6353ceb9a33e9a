-- Duties: upkeep that one worker does for all, at a cost that does not grow with the number of workers.

-- Beats change no indexed column, so they still write to no index.
DROP INDEX CONCURRENTLY IF EXISTS duly_workers_registrations;
CREATE INDEX CONCURRENTLY duly_workers_registrations
    ON duly_workers (pg_catalog.hashtextextended((tasks || lanes) COLLATE "C", 0)) WHERE state = 'live';
-- Ordered by the end of the ids, which is random. Their beginning is the start time of the worker.
DROP INDEX CONCURRENTLY IF EXISTS duly_workers_shuffled;
CREATE INDEX CONCURRENTLY duly_workers_shuffled
    ON duly_workers (pg_catalog.reverse(id)) WHERE state = 'live';
DROP INDEX CONCURRENTLY IF EXISTS duly_workers_live;

-- A loose index scan, as duly_ready_lanes: the distinct lists that live workers have registered. A
-- thousand workers of one program have the same list.
CREATE VIEW duly_registrations AS
WITH RECURSIVE known(hash, tasks, lanes) AS (
    (SELECT pg_catalog.hashtextextended((tasks || lanes) COLLATE "C", 0), tasks, lanes
       FROM duly_workers
      WHERE state = 'live'
      ORDER BY pg_catalog.hashtextextended((tasks || lanes) COLLATE "C", 0) LIMIT 1)
    UNION ALL
    SELECT next.hash, next.tasks, next.lanes
      FROM known
     CROSS JOIN LATERAL (
           SELECT pg_catalog.hashtextextended((worker.tasks || worker.lanes) COLLATE "C", 0) AS hash,
                  worker.tasks, worker.lanes
             FROM duly_workers AS worker
            WHERE worker.state = 'live'
              AND pg_catalog.hashtextextended((worker.tasks || worker.lanes) COLLATE "C", 0) > known.hash
            ORDER BY pg_catalog.hashtextextended((worker.tasks || worker.lanes) COLLATE "C", 0)
            LIMIT 1) AS next
)
SELECT tasks, lanes FROM known;

-- When each duty was last done. A row is written at most once in the interval of its duty.
CREATE TABLE duly_duties (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    done_at timestamptz NOT NULL,
    -- The server's row counters when the last complete recheck of all waits began.
    counted text
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
