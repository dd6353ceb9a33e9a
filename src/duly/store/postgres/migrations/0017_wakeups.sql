-- Wake-ups: an event is sent in one transaction, and the runs that wait for it are woken in
-- another. A sender that woke the runs itself used to lock them until its transaction ended, which
-- may be a caller's transaction.

-- Events whose waiting runs no tick has woken yet. Rows are only added and deleted.
CREATE TABLE duly_wakeups (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- A transaction that suspends runs takes this lock (shared), and so does one that wakes them
-- (exclusive). So neither misses the other. There are 64 locks, so that a batch of any size takes
-- at most 64 entries of the server's lock table. The number above keeps duly's locks separate from
-- the application's.
CREATE OR REPLACE FUNCTION duly_wait_lock(awaited text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (1685417082::bigint << 32)
       + (pg_catalog.hashtextextended(awaited, 1685417082) & 63::bigint);
