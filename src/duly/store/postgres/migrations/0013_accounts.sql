-- Accounts: the numbers of accepted and of pruned runs, so that an audit can find a missing one.
-- How long the runs of a task are kept. How many runs may wait in a queue.

-- Rows are only added, one by each transaction that accepts or prunes, so that transactions do not
-- wait for each other. Upkeep adds the rows up. A sum over all rows is correct at any time. SQLite
-- has one row.
CREATE TABLE duly_accounts (
    accepted bigint NOT NULL DEFAULT 0,
    pruned bigint NOT NULL DEFAULT 0,
    -- The latest end of a pruned run.
    pruned_until timestamptz
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
INSERT INTO duly_accounts (accepted, pruned_until)
SELECT (SELECT pg_catalog.count(*) FROM duly_every_run),
       (SELECT pg_catalog.max(fired_at) FROM duly_firings);

-- The retention of tasks that have their own, in microseconds.
CREATE TABLE duly_retentions (
    task text COLLATE "C" NOT NULL PRIMARY KEY,
    kept bigint NOT NULL CHECK (kept >= 0)
);

-- If a run is kept for another time than the default, because of its task or its key, a prune skips
-- it until this instant. Block ranges could not leave such runs out.
ALTER TABLE duly_history ADD COLUMN kept_until timestamptz;
DROP INDEX duly_history_finished;
CREATE INDEX duly_history_ended ON duly_history (finished_at)
    WHERE state NOT IN ('failed', 'interrupted') AND kept_until IS NULL;
DROP INDEX duly_history_died;
CREATE INDEX duly_history_died ON duly_history (finished_at)
    WHERE state IN ('failed', 'interrupted') AND kept_until IS NULL;
CREATE INDEX duly_history_kept ON duly_history (kept_until) WHERE kept_until IS NOT NULL;

-- How many runs may wait in a queue. An operator sets it.
ALTER TABLE duly_queues ADD COLUMN max_size bigint CHECK (max_size >= 1);

-- As before, and counts a new run.
CREATE OR REPLACE FUNCTION duly_enqueue(
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
    INSERT INTO duly_accounts (accepted) VALUES (1);
    PERFORM pg_catalog.pg_notify(duly_channel(), '');
    RETURN QUERY SELECT new_id, true, false;
END
$$;
