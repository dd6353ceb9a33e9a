-- The numbers of ended runs, counted as they end, so that no reader has to count the history. They
-- are counted by task, queue and end, by their durations and by their waiting times, each up to a
-- bound. The settle that ends runs adds rows of span 0, one for each kind of end among them. Upkeep
-- adds those up by minutes, then by hours, and at last in one row of each kind for everything
-- earlier. A sum over all rows is correct at any time.

CREATE TABLE duly_tallies (
    at INTEGER NOT NULL,
    span INTEGER NOT NULL CHECK (span IN (0, 60, 3600, 86400)),
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    took INTEGER NOT NULL,
    waited INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    elapsed INTEGER NOT NULL,
    delay INTEGER NOT NULL
);
CREATE INDEX duly_tallies_by_span ON duly_tallies (span, at);
CREATE UNIQUE INDEX duly_tallies_folded ON duly_tallies (span, at, task, queue, state, took, waited)
    WHERE span > 0;

-- Lists of dead letters are ordered by their ids.
CREATE INDEX duly_history_dead_by_id ON duly_history (id) WHERE state IN ('failed', 'interrupted');
CREATE INDEX duly_history_dead_by_task ON duly_history (task, id)
    WHERE state IN ('failed', 'interrupted');

-- Groups of dead letters are counted in their index only.
DROP INDEX duly_history_dead;
CREATE INDEX duly_history_dead ON duly_history (task, fingerprint, id, created_at, queue)
    WHERE state IN ('failed', 'interrupted');
