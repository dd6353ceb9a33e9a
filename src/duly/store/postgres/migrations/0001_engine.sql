-- The engine's tables. duly_runs contains only runs that can run now or are running. Delayed,
-- paused and unregistered runs are in duly_waiting, and finished runs are in duly_history. So a
-- claim costs the same for any number of them.
-- As on SQLite, but times are timestamptz, ids of runs uuid and flags boolean. Names are sorted by
-- code point (COLLATE "C") as in Python and SQLite, for any collation of the database.

-- The wall time for due and expiry times. Tests may replace this function.
CREATE FUNCTION duly_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN pg_catalog.statement_timestamp();

-- Microseconds since 1970. Both conversions are exact: one uses numeric, the other two small
-- products.
CREATE FUNCTION duly_microseconds(moment timestamptz) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (extract(epoch FROM moment) * 1000000::numeric)::bigint;

CREATE FUNCTION duly_time(microseconds bigint) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN timestamptz 'epoch' + (microseconds / 1000000)::float8 * interval '1 second'
                               + (microseconds % 1000000::bigint)::float8 * interval '1 microsecond';

CREATE TABLE duly_runs (
    id uuid NOT NULL PRIMARY KEY,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running')),
    priority integer NOT NULL,
    generation integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    claim_number bigint NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    attempt integer NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    retries_used integer NOT NULL DEFAULT 0 CHECK (retries_used >= 0),
    crashes integer NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    expires_at timestamptz,
    worker_id text COLLATE "C",
    claimed_at timestamptz,
    cancel_requested boolean NOT NULL DEFAULT false,
    key text COLLATE "C",
    tags text,
    progress double precision,
    progress_text text,
    arguments text NOT NULL,
    CHECK ((state = 'running') = (worker_id IS NOT NULL)),
    CHECK ((state = 'running') = (claimed_at IS NOT NULL)),
    CHECK (state = 'queued' OR claim_number >= 1)
) WITH (
    -- Every row is written, claimed and deleted within moments. So vacuum runs after thousands of
    -- dead rows, not after a fifth of the table, and without pauses.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);
-- The index of SQLite also has task and expires_at. Here a row must be visited anyway, to be
-- locked.
CREATE INDEX duly_runs_ready ON duly_runs (queue, lane, priority DESC, due_at, id)
    WHERE state = 'queued';
-- Not WHERE state = 'running' as on SQLite, although the checks above make it equivalent. The
-- planner would use such an index for statements that find a run by its id and require that state,
-- if the statistics were taken while no run was running. It would then read the index row by row.
CREATE INDEX duly_runs_held ON duly_runs (worker_id, claimed_at) WHERE worker_id IS NOT NULL;
CREATE INDEX duly_runs_expiring ON duly_runs (expires_at)
    WHERE state = 'queued' AND expires_at IS NOT NULL;

CREATE TABLE duly_waiting (
    id uuid NOT NULL PRIMARY KEY,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    generation integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    claim_number bigint NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    attempt integer NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    retries_used integer NOT NULL DEFAULT 0 CHECK (retries_used >= 0),
    crashes integer NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    expires_at timestamptz,
    parked text COLLATE "C" CHECK (parked IN ('paused', 'unregistered')),
    key text COLLATE "C",
    tags text,
    arguments text NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX duly_waiting_due ON duly_waiting (due_at) WHERE parked IS NULL;
CREATE INDEX duly_waiting_parked ON duly_waiting (parked, queue, task) WHERE parked IS NOT NULL;
CREATE INDEX duly_waiting_expiring ON duly_waiting (expires_at) WHERE expires_at IS NOT NULL;
-- PostgreSQL only: the list of queues reads one entry per queue of this index instead of the table.
CREATE INDEX duly_waiting_queue ON duly_waiting (queue);

CREATE TABLE duly_history (
    id uuid NOT NULL PRIMARY KEY,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    state text NOT NULL CHECK (state IN ('succeeded', 'failed', 'interrupted', 'cancelled')),
    cause text,
    outcome text,
    priority integer NOT NULL,
    generation integer NOT NULL,
    claim_number bigint NOT NULL,
    attempt integer NOT NULL,
    retries_used integer NOT NULL,
    crashes integer NOT NULL,
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    expires_at timestamptz,
    worker_id text COLLATE "C",
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    key text COLLATE "C",
    tags text,
    arguments text NOT NULL,
    result text,
    error text,
    traceback text,
    fingerprint text COLLATE "C",
    CHECK (state <> 'succeeded' OR outcome = 'returned')
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX duly_history_dead ON duly_history (task, fingerprint, id)
    WHERE state IN ('failed', 'interrupted');
-- PostgreSQL only: rows arrive in the order of their ends, so this index costs very little.
CREATE INDEX duly_history_finished ON duly_history
    USING brin (finished_at) WITH (pages_per_range = 32, autosummarize = on);

-- The record of the attempt that ended a run is in the history row. All other attempts are here.
CREATE TABLE duly_attempts (
    run_id uuid NOT NULL,
    claim_number bigint NOT NULL,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    worker_id text COLLATE "C",
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    error text,
    traceback text,
    PRIMARY KEY (run_id, claim_number)
);

CREATE TABLE duly_keys (
    task text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(key) BETWEEN 1 AND 255),
    run_id uuid NOT NULL,
    fingerprint text NOT NULL,
    ttl bigint,
    active_only boolean NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (task, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX duly_keys_expiring ON duly_keys (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE duly_tags (
    name text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (name, value, run_id)
);
CREATE INDEX duly_tags_of_run ON duly_tags (run_id);

-- The numbers of lines and acts replace SQLite's rowid: they keep the order within one instant.
CREATE TABLE duly_logs (
    number bigint GENERATED ALWAYS AS IDENTITY,
    run_id uuid NOT NULL,
    claim_number bigint NOT NULL,
    at timestamptz NOT NULL,
    level text NOT NULL,
    message text NOT NULL
);
CREATE INDEX duly_logs_of_run ON duly_logs (run_id);

CREATE TABLE duly_acts (
    number bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    act text NOT NULL,
    subject text COLLATE "C" NOT NULL,
    reason text NOT NULL
);
CREATE INDEX duly_acts_on_subject ON duly_acts (subject);
CREATE INDEX duly_acts_by_time ON duly_acts (at, number);

CREATE TABLE duly_queues (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    paused boolean NOT NULL
);

-- Beats update the same few rows repeatedly. With free space in the page, an update writes no
-- index.
CREATE TABLE duly_workers (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    state text NOT NULL CHECK (state IN ('live', 'dead', 'stopped')),
    host text NOT NULL,
    pid integer NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    stopped_at timestamptz,
    lease_seconds double precision NOT NULL,
    queues text NOT NULL,
    tasks text NOT NULL,
    beats bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
CREATE INDEX duly_workers_live ON duly_workers (id) WHERE state = 'live';

-- Every run, in any table. Reads use this view and are one statement.
CREATE VIEW duly_every_run AS
SELECT id, task, queue, lane, state, NULL::text AS cause, priority, generation, claim_number,
       attempt, retries_used, crashes, created_at, due_at, expires_at, claimed_at,
       NULL::timestamptz AS finished_at, worker_id, cancel_requested, NULL::text AS parked, key,
       tags, arguments, NULL::text AS result, NULL::text AS error, NULL::text AS traceback,
       NULL::text AS fingerprint, progress, progress_text
  FROM duly_runs
UNION ALL
SELECT id, task, queue, lane, 'queued', NULL, priority, generation, claim_number,
       attempt, retries_used, crashes, created_at, due_at, expires_at, NULL,
       NULL, NULL, false, parked, key,
       tags, arguments, NULL, NULL, NULL,
       NULL, NULL, NULL
  FROM duly_waiting
UNION ALL
SELECT id, task, queue, lane, state, cause, priority, generation, claim_number,
       attempt, retries_used, crashes, created_at, due_at, expires_at, started_at,
       finished_at, worker_id, false, NULL, key,
       tags, arguments, result, error, traceback,
       fingerprint, NULL, NULL
  FROM duly_history;

-- Loose index scans: one probe per queue and lane that has ready runs, for any number of runs.
CREATE VIEW duly_ready_lanes AS
WITH RECURSIVE head(queue, lane) AS (
    (SELECT queue, lane FROM duly_runs WHERE state = 'queued' ORDER BY queue, lane LIMIT 1)
    UNION ALL
    SELECT next.queue, next.lane
      FROM head
     CROSS JOIN LATERAL (
           SELECT run.queue, run.lane
             FROM duly_runs AS run
            WHERE run.state = 'queued' AND (run.queue, run.lane) > (head.queue, head.lane)
            ORDER BY run.queue, run.lane LIMIT 1) AS next
)
SELECT queue, lane,
       coalesce((SELECT known.paused FROM duly_queues AS known WHERE known.name = queue), false)
           AS paused
  FROM head;

CREATE VIEW duly_parked_lanes AS
WITH RECURSIVE head(parked, queue, task) AS (
    (SELECT parked, queue, task FROM duly_waiting WHERE parked IS NOT NULL
      ORDER BY parked, queue, task LIMIT 1)
    UNION ALL
    SELECT next.parked, next.queue, next.task
      FROM head
     CROSS JOIN LATERAL (
           SELECT run.parked, run.queue, run.task
             FROM duly_waiting AS run
            WHERE run.parked IS NOT NULL
              AND (run.parked, run.queue, run.task) > (head.parked, head.queue, head.task)
            ORDER BY run.parked, run.queue, run.task LIMIT 1) AS next
)
SELECT parked, queue, task,
       coalesce((SELECT known.paused FROM duly_queues AS known WHERE known.name = queue), false)
           AS paused
  FROM head;

-- The channel of the wake-up hints: one per schema, so that two installations in a database do not
-- receive each other's hints.
CREATE FUNCTION duly_channel() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    BEGIN ATOMIC
        SELECT 'duly_' || relnamespace::text FROM pg_class WHERE oid = 'duly_runs'::regclass;
    END;

-- A transaction that takes a key holds this lock until its end. The seed keeps duly's locks
-- separate from the application's. Transactions whose keys have the same hash only wait for each
-- other.
CREATE FUNCTION duly_key_lock(task text, key text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN pg_catalog.hashtextextended(task || pg_catalog.chr(31) || key, 1685417081);

-- Enqueue in a transaction of the caller. This is a function because each statement in it sees what
-- was committed while it waited for the key. A single statement with the lock in it would not.
CREATE FUNCTION duly_enqueue(
    new_id uuid, of_task text, in_queue text, in_lane text, with_priority integer,
    with_arguments text, delay bigint, at bigint, expires bigint, with_tags text,
    with_key text, with_fingerprint text, key_ttl bigint, key_active_only boolean
) RETURNS TABLE (run_id uuid, is_new boolean, conflict boolean)
    LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := duly_now();
    due timestamptz;
    expiry timestamptz;
    held_by uuid;
    held_fingerprint text;
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
    IF with_key IS NOT NULL THEN
        PERFORM pg_catalog.pg_advisory_xact_lock(duly_key_lock(of_task, with_key));
        -- This read must take no lock, because a settle of the run that holds the key writes the
        -- row.
        SELECT known.run_id, known.fingerprint INTO held_by, held_fingerprint
          FROM duly_keys AS known
         WHERE known.task = of_task AND known.key = with_key
           AND (known.expires_at IS NULL OR known.expires_at > now);
        IF NOT FOUND THEN
            INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
            VALUES (of_task, with_key, new_id, with_fingerprint, key_ttl, key_active_only)
                ON CONFLICT (task, key) DO UPDATE
               SET run_id = excluded.run_id, fingerprint = excluded.fingerprint,
                   ttl = excluded.ttl, active_only = excluded.active_only, expires_at = NULL
             WHERE duly_keys.expires_at <= now;
            IF NOT FOUND THEN
                -- Between the two statements, a redrive took the key again for its run.
                SELECT known.run_id, known.fingerprint INTO held_by, held_fingerprint
                  FROM duly_keys AS known
                 WHERE known.task = of_task AND known.key = with_key;
            END IF;
        END IF;
        IF held_by IS NOT NULL THEN
            RETURN QUERY SELECT held_by, false, held_fingerprint <> with_fingerprint;
            RETURN;
        END IF;
    END IF;
    due := CASE WHEN at IS NULL THEN now + delay::float8 * interval '1 microsecond'
                ELSE duly_time(greatest(at, 0)) END;
    expiry := now + expires::float8 * interval '1 microsecond';
    IF due <= now THEN
        INSERT INTO duly_runs
            (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
        VALUES (new_id, of_task, in_queue, in_lane, with_priority, now, due, expiry, with_key,
                with_tags, with_arguments);
    ELSE
        INSERT INTO duly_waiting
            (id, task, queue, lane, priority, created_at, due_at, expires_at, key, tags, arguments)
        VALUES (new_id, of_task, in_queue, in_lane, with_priority, now, due, expiry, with_key,
                with_tags, with_arguments);
    END IF;
    INSERT INTO duly_tags (name, value, run_id)
    SELECT tag.key, tag.value, new_id FROM pg_catalog.json_each_text(with_tags::json) AS tag;
    PERFORM pg_catalog.pg_notify(duly_channel(), '');
    RETURN QUERY SELECT new_id, true, false;
END
$$;
