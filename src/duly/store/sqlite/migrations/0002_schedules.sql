-- Schedules, and the record of each of their due instants.

CREATE TABLE duly_schedules (
    name TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL DEFAULT 1 CHECK (version >= 1),
    source TEXT NOT NULL CHECK (source IN ('code', 'runtime')),
    place TEXT NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    priority INTEGER NOT NULL,
    arguments TEXT NOT NULL,
    expires INTEGER,
    trigger TEXT NOT NULL,
    rules TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'paused', 'ended', 'removed')),
    reason TEXT,
    next_at INTEGER,
    look_at INTEGER,
    waiting INTEGER NOT NULL DEFAULT 0 CHECK (waiting >= 0),
    last_run_id TEXT,
    pause_after INTEGER,
    failures_from INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CHECK (look_at IS NULL OR state IN ('active', 'paused'))
);
CREATE INDEX duly_schedules_due ON duly_schedules (look_at) WHERE look_at IS NOT NULL;

-- One row per due instant, so that an instant is accounted for only once. Consecutive instants that
-- were skipped for one reason share a row.
CREATE TABLE duly_firings (
    schedule TEXT NOT NULL,
    instant INTEGER NOT NULL,
    last_instant INTEGER NOT NULL,
    instants INTEGER NOT NULL CHECK (instants >= 1),
    version INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('run', 'caught_up', 'waiting', 'skipped')),
    reason TEXT,
    run_id TEXT,
    fired_at INTEGER NOT NULL,
    PRIMARY KEY (schedule, instant),
    CHECK ((outcome IN ('run', 'caught_up')) = (run_id IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX duly_firings_waiting ON duly_firings (schedule, instant) WHERE outcome = 'waiting';
CREATE INDEX duly_firings_by_time ON duly_firings (fired_at);
