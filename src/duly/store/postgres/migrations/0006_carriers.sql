-- Carriers: the runs that were handed to another engine, and when to hand them over again.

CREATE TABLE duly_handed (
    run_id uuid NOT NULL PRIMARY KEY,
    times integer NOT NULL CHECK (times >= 1),
    stale_at timestamptz NOT NULL
);
CREATE INDEX duly_handed_stale ON duly_handed (stale_at);
