-- Schedules, and the record of each of their due instants.

CREATE TABLE duly_schedules (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    version integer NOT NULL DEFAULT 1 CHECK (version >= 1),
    source text COLLATE "C" NOT NULL CHECK (source IN ('code', 'runtime')),
    place text NOT NULL,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    arguments text NOT NULL,
    expires bigint,
    trigger text NOT NULL,
    rules text NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('active', 'paused', 'ended', 'removed')),
    reason text,
    next_at timestamptz,
    look_at timestamptz,
    waiting integer NOT NULL DEFAULT 0 CHECK (waiting >= 0),
    last_run_id uuid,
    pause_after integer,
    failures_from timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CHECK (look_at IS NULL OR state IN ('active', 'paused'))
);
CREATE INDEX duly_schedules_due ON duly_schedules (look_at) WHERE look_at IS NOT NULL;

-- One row per due instant, so that an instant is accounted for only once. Consecutive instants that
-- were skipped for one reason share a row.
CREATE TABLE duly_firings (
    schedule text COLLATE "C" NOT NULL,
    instant timestamptz NOT NULL,
    last_instant timestamptz NOT NULL,
    instants integer NOT NULL CHECK (instants >= 1),
    version integer NOT NULL,
    outcome text COLLATE "C" NOT NULL CHECK (outcome IN ('run', 'caught_up', 'waiting', 'skipped')),
    reason text,
    run_id uuid,
    fired_at timestamptz NOT NULL,
    PRIMARY KEY (schedule, instant),
    CHECK ((outcome IN ('run', 'caught_up')) = (run_id IS NOT NULL))
);
CREATE INDEX duly_firings_waiting ON duly_firings (schedule, instant) WHERE outcome = 'waiting';
CREATE INDEX duly_firings_by_time ON duly_firings (fired_at);
