-- Wake-ups: an event is sent in one transaction, and the runs that wait for it are woken in another.
-- A sender that woke them itself locked them until its transaction ended, which may be a caller's.

-- Events whose waiting runs no tick has woken yet. Rows are only added and deleted.
CREATE TABLE duly_wakeups (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Taken by a transaction that suspends runs (shared) and by one that wakes them (alone), so that
-- neither overlooks the other. One of 64, so that a batch of any size takes no more than 64 entries
-- of the server's lock table; the number above keeps duly's locks away from the application's.
CREATE OR REPLACE FUNCTION duly_wait_lock(awaited text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (1685417082::bigint << 32)
       + (pg_catalog.hashtextextended(awaited, 1685417082) & 63::bigint);
