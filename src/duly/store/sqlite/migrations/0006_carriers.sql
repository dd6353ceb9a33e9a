-- Carriers: the runs that were handed to another engine, and when to hand them over again.

CREATE TABLE duly_handed (
    run_id TEXT NOT NULL PRIMARY KEY,
    times INTEGER NOT NULL CHECK (times >= 1),
    stale_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX duly_handed_stale ON duly_handed (stale_at);
