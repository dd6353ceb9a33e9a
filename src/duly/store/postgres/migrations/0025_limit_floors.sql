-- Counting the running runs of a limit costs little while dead rows cannot be removed.

-- Ordered by the time of the claim within each limit, so that a count can begin at its oldest run.
-- The name of a limited lane is "~task key slot".
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_by_slot;
CREATE INDEX CONCURRENTLY duly_runs_by_slot
    ON duly_runs (pg_catalog.split_part(lane, ' ', 1), pg_catalog.split_part(lane, ' ', 2), claimed_at)
    WHERE state = 'running' AND lane >= '~';
DROP INDEX CONCURRENTLY IF EXISTS duly_runs_slots;

-- No running run of the limit was claimed before `claimed_at`. A claim writes the row while it
-- holds the lock of the limit, and every later claim under that lock takes its runs at or after
-- that time. A count uses the row for some seconds, so that the floor follows the runs.
CREATE TABLE duly_limit_floors (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    claimed_at timestamptz NOT NULL,
    noted_at timestamptz NOT NULL
);

CREATE FUNCTION duly_limit_floor(of_name text)
    RETURNS TABLE (claimed_at timestamptz, in_force timestamptz, is_ahead boolean)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT floor.claimed_at,
           CASE WHEN floor.noted_at <= duly_now() AND floor.noted_at > duly_now() - interval '5 seconds'
                THEN floor.claimed_at END,
           floor.noted_at > duly_now() IS TRUE
      FROM (SELECT 1) AS one
      LEFT JOIN duly_limit_floors AS floor ON floor.name = of_name;
END;
