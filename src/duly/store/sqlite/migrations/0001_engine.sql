-- The engine's tables. Times are microseconds since 1970, UTC.
-- duly_runs contains only runs that can run now or are running. Delayed, paused and unregistered
-- runs are in duly_waiting, and finished runs are in duly_history. So a claim costs the same for
-- any number of them.

CREATE TABLE duly_runs (
    id TEXT NOT NULL PRIMARY KEY,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running')),
    priority INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 1 CHECK (generation >= 1),
    claim_number INTEGER NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    attempt INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    retries_used INTEGER NOT NULL DEFAULT 0 CHECK (retries_used >= 0),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER,
    worker_id TEXT,
    claimed_at INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    key TEXT,
    tags TEXT,
    progress REAL,
    progress_text TEXT,
    arguments TEXT NOT NULL,
    CHECK ((state = 'running') = (worker_id IS NOT NULL)),
    CHECK ((state = 'running') = (claimed_at IS NOT NULL)),
    CHECK (state = 'queued' OR claim_number >= 1)
);
CREATE INDEX duly_runs_ready ON duly_runs (queue, lane, priority DESC, due_at, id, task, expires_at)
    WHERE state = 'queued';
CREATE INDEX duly_runs_held ON duly_runs (worker_id, claimed_at) WHERE state = 'running';
CREATE INDEX duly_runs_expiring ON duly_runs (expires_at)
    WHERE state = 'queued' AND expires_at IS NOT NULL;

CREATE TABLE duly_waiting (
    id TEXT NOT NULL PRIMARY KEY,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    priority INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 1 CHECK (generation >= 1),
    claim_number INTEGER NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    attempt INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    retries_used INTEGER NOT NULL DEFAULT 0 CHECK (retries_used >= 0),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER,
    parked TEXT CHECK (parked IN ('paused', 'unregistered')),
    key TEXT,
    tags TEXT,
    arguments TEXT NOT NULL
);
CREATE INDEX duly_waiting_due ON duly_waiting (due_at) WHERE parked IS NULL;
CREATE INDEX duly_waiting_parked ON duly_waiting (parked, queue, task) WHERE parked IS NOT NULL;
CREATE INDEX duly_waiting_expiring ON duly_waiting (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE duly_history (
    id TEXT NOT NULL PRIMARY KEY,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('succeeded', 'failed', 'interrupted', 'cancelled')),
    cause TEXT,
    outcome TEXT,
    priority INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    claim_number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    retries_used INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER,
    worker_id TEXT,
    started_at INTEGER,
    finished_at INTEGER NOT NULL,
    key TEXT,
    tags TEXT,
    arguments TEXT NOT NULL,
    result TEXT,
    error TEXT,
    traceback TEXT,
    fingerprint TEXT,
    CHECK (state <> 'succeeded' OR outcome = 'returned')
);
CREATE INDEX duly_history_dead ON duly_history (task, fingerprint, id)
    WHERE state IN ('failed', 'interrupted');
CREATE INDEX duly_history_finished ON duly_history (finished_at);

-- The record of the attempt that ended a run is in the history row. All other attempts are here.
CREATE TABLE duly_attempts (
    run_id TEXT NOT NULL,
    claim_number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    worker_id TEXT,
    started_at INTEGER,
    finished_at INTEGER NOT NULL,
    error TEXT,
    traceback TEXT,
    PRIMARY KEY (run_id, claim_number)
) WITHOUT ROWID;

CREATE TABLE duly_keys (
    task TEXT NOT NULL,
    key TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    run_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    ttl INTEGER,
    active_only INTEGER NOT NULL CHECK (active_only IN (0, 1)),
    expires_at INTEGER,
    PRIMARY KEY (task, key)
) WITHOUT ROWID;
CREATE INDEX duly_keys_expiring ON duly_keys (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE duly_tags (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (name, value, run_id)
) WITHOUT ROWID;
CREATE INDEX duly_tags_of_run ON duly_tags (run_id);

CREATE TABLE duly_logs (
    run_id TEXT NOT NULL,
    claim_number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    level TEXT NOT NULL,
    message TEXT NOT NULL
);
CREATE INDEX duly_logs_of_run ON duly_logs (run_id);

CREATE TABLE duly_acts (
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX duly_acts_on_subject ON duly_acts (subject);

CREATE TABLE duly_queues (
    name TEXT NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1))
) WITHOUT ROWID;

CREATE TABLE duly_workers (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('live', 'dead', 'stopped')),
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    stopped_at INTEGER,
    lease_seconds REAL NOT NULL,
    queues TEXT NOT NULL,
    tasks TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX duly_workers_live ON duly_workers (id) WHERE state = 'live';

-- Every run, in any table. Reads use this view and are one statement.
CREATE VIEW duly_every_run AS
SELECT id, task, queue, lane, state, NULL AS cause, priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, claimed_at, NULL AS finished_at,
       worker_id, cancel_requested, NULL AS parked, key, tags, arguments, NULL AS result,
       NULL AS error, NULL AS traceback, NULL AS fingerprint, progress, progress_text
  FROM duly_runs
UNION ALL
SELECT id, task, queue, lane, 'queued', NULL, priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, NULL, NULL,
       NULL, 0, parked, key, tags, arguments, NULL,
       NULL, NULL, NULL, NULL, NULL
  FROM duly_waiting
UNION ALL
SELECT id, task, queue, lane, state, cause, priority, generation, claim_number, attempt,
       retries_used, crashes, created_at, due_at, expires_at, started_at, finished_at,
       worker_id, 0, NULL, key, tags, arguments, result,
       error, traceback, fingerprint, NULL, NULL
  FROM duly_history;

-- Loose index scans: one probe per queue and lane that has ready runs, for any number of runs.
CREATE VIEW duly_ready_lanes AS
WITH RECURSIVE head(queue, lane) AS (
    SELECT * FROM (SELECT queue, lane FROM duly_runs INDEXED BY duly_runs_ready
                    WHERE state = 'queued' ORDER BY queue, lane LIMIT 1)
    UNION ALL
    SELECT next.queue, next.lane
      FROM head
      JOIN duly_runs AS next
        ON next.rowid = coalesce(
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND queue = head.queue AND lane > head.lane
             ORDER BY lane LIMIT 1),
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND queue > head.queue
             ORDER BY queue, lane LIMIT 1))
)
SELECT queue, lane, coalesce((SELECT paused FROM duly_queues WHERE name = queue), 0) AS paused
  FROM head;

CREATE VIEW duly_parked_lanes AS
WITH RECURSIVE head(parked, queue, task) AS (
    SELECT * FROM (SELECT parked, queue, task FROM duly_waiting INDEXED BY duly_waiting_parked
                    WHERE parked IS NOT NULL ORDER BY parked, queue, task LIMIT 1)
    UNION ALL
    SELECT next.parked, next.queue, next.task
      FROM head
      JOIN duly_waiting AS next
        ON next.rowid = coalesce(
           (SELECT rowid FROM duly_waiting INDEXED BY duly_waiting_parked
             WHERE parked = head.parked AND queue = head.queue AND task > head.task
             ORDER BY task LIMIT 1),
           (SELECT rowid FROM duly_waiting INDEXED BY duly_waiting_parked
             WHERE parked = head.parked AND queue > head.queue
             ORDER BY queue, task LIMIT 1),
           (SELECT rowid FROM duly_waiting INDEXED BY duly_waiting_parked
             WHERE parked > head.parked
             ORDER BY parked, queue, task LIMIT 1))
)
SELECT parked, queue, task,
       coalesce((SELECT paused FROM duly_queues WHERE name = queue), 0) AS paused
  FROM head;

-- Accepts a run on a connection of the caller, in any transaction. It is one statement, so that it
-- is atomic on a connection that commits after each statement. If the key is taken, no run is
-- created, and the holder of the key is read afterwards.
CREATE VIEW duly_enqueue AS
SELECT run.id, run.task, run.queue, run.lane, run.priority, run.created_at AS now, run.due_at,
       run.expires_at, run.arguments, run.tags, run.key, known.fingerprint, known.ttl,
       known.active_only
  FROM duly_every_run AS run
  LEFT JOIN duly_keys AS known ON known.run_id = run.id;

CREATE TRIGGER duly_enqueue_accepts INSTEAD OF INSERT ON duly_enqueue
BEGIN
    INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
    SELECT NEW.task, NEW.key, NEW.id, NEW.fingerprint, NEW.ttl, NEW.active_only
     WHERE NEW.key IS NOT NULL
        ON CONFLICT (task, key) DO UPDATE
       SET run_id = excluded.run_id, fingerprint = excluded.fingerprint, ttl = excluded.ttl,
           active_only = excluded.active_only, expires_at = NULL
     WHERE duly_keys.expires_at <= NEW.now;
    INSERT INTO duly_runs
        (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
    SELECT NEW.id, NEW.task, NEW.queue, NEW.lane, NEW.priority, NEW.now, NEW.due_at,
           NEW.expires_at, NEW.key, NEW.tags, NEW.arguments
     WHERE NEW.due_at <= NEW.now
       AND (NEW.key IS NULL OR EXISTS (
            SELECT 1 FROM duly_keys
             WHERE task = NEW.task AND key = NEW.key AND run_id = NEW.id));
    INSERT INTO duly_waiting
        (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
    SELECT NEW.id, NEW.task, NEW.queue, NEW.lane, NEW.priority, NEW.now, NEW.due_at,
           NEW.expires_at, NEW.key, NEW.tags, NEW.arguments
     WHERE NEW.due_at > NEW.now
       AND (NEW.key IS NULL OR EXISTS (
            SELECT 1 FROM duly_keys
             WHERE task = NEW.task AND key = NEW.key AND run_id = NEW.id));
    INSERT INTO duly_tags (name, value, run_id)
    SELECT tag.key, tag.value, NEW.id
      FROM json_each(NEW.tags) AS tag
     WHERE NEW.key IS NULL OR EXISTS (
           SELECT 1 FROM duly_keys
            WHERE task = NEW.task AND key = NEW.key AND run_id = NEW.id);
END;
