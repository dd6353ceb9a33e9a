-- The numbers of ended runs, counted as they end, so that no reader has to count the history. They
-- are counted by task, queue and end, by their durations and by their waiting times, each up to a
-- bound. The settle that ends runs adds rows of span 0, one for each kind of end among them. Upkeep
-- adds those up by minutes, then by hours, and at last in one row of each kind for everything
-- earlier. A sum over all rows is correct at any time.

-- From microseconds to the smallest bound, in milliseconds, that is not below them. SQLite has no
-- functions of duly: there the statement contains this.
CREATE FUNCTION duly_bound(microseconds bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (ARRAY[5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000, 900000,
                  3600000, 21600000, 86400000, 9000000000000]::bigint[])
           [1 + pg_catalog.width_bucket(greatest(microseconds - 1, 0) / 1000,
                             ARRAY[5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000,
                                   60000, 300000, 900000, 3600000, 21600000, 86400000]::bigint[])];

CREATE TABLE duly_tallies (
    at bigint NOT NULL,
    span integer NOT NULL CHECK (span IN (0, 60, 3600, 86400)),
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    state text NOT NULL,
    took bigint NOT NULL,
    waited bigint NOT NULL,
    runs bigint NOT NULL,
    elapsed bigint NOT NULL,
    delay bigint NOT NULL
);
CREATE INDEX duly_acts_by_number ON duly_acts (number);
CREATE INDEX duly_tallies_by_span ON duly_tallies (span, at);
CREATE UNIQUE INDEX duly_tallies_folded ON duly_tallies (span, at, task, queue, state, took, waited)
    WHERE span > 0;

-- Lists of dead letters are ordered by their ids, and groups of them are counted in their index
-- only. The conditions are written as in the statements that read the indexes, so that no other
-- index is used.
CREATE INDEX duly_history_dead_by_id ON duly_history (id)
    WHERE state NOT IN ('succeeded', 'cancelled');
CREATE INDEX duly_history_dead_by_task ON duly_history (task, id)
    WHERE state NOT IN ('succeeded', 'cancelled');
DROP INDEX duly_history_dead;
CREATE INDEX duly_history_dead ON duly_history (task, fingerprint, id, created_at, queue)
    WHERE state NOT IN ('succeeded', 'cancelled');
