-- A run has its key under every name of its task, in one row each. So the primary key of duly_keys
-- decides between runs of two names of one task. There used to be an advisory lock for each key. On
-- a connection in autocommit mode it was released before the key was taken, and a batch took one
-- per key.

-- As before, with the other names of the task. Code from before this migration omits them.
DROP FUNCTION duly_enqueue(uuid, text, text, text, integer, text, bigint, bigint, bigint, text, text,
                           text, bigint, boolean);
CREATE FUNCTION duly_enqueue(
    new_id uuid, of_task text, in_queue text, in_lane text, with_priority integer,
    with_arguments text, delay bigint, at bigint, expires bigint, with_tags text,
    with_key text, with_fingerprint text, key_ttl bigint, key_active_only boolean,
    other_names text[] DEFAULT '{}'
) RETURNS TABLE (run_id uuid, is_new boolean, conflict boolean)
    LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := duly_now();
    due timestamptz;
    expiry timestamptz;
    held_by uuid;
    held_fingerprint text;
    names text[];
    inserted integer;
    taken_over integer;
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
    IF with_key IS NOT NULL THEN
        names := ARRAY(SELECT DISTINCT name COLLATE "C"
                         FROM pg_catalog.unnest(pg_catalog.array_prepend(of_task, other_names)) AS name
                        ORDER BY name COLLATE "C");
        LOOP
            -- This read must take no lock, because a settle of the run that holds the key writes
            -- the row.
            SELECT known.run_id, known.fingerprint INTO held_by, held_fingerprint
              FROM duly_keys AS known
             WHERE known.task = ANY (names) AND known.key = with_key
               AND (known.expires_at IS NULL OR known.expires_at > now)
             ORDER BY known.task <> of_task
             LIMIT 1;
            EXIT WHEN FOUND;
            -- This waits for another open transaction that is taking the key under one of its
            -- names. It locks no row of another run: this transaction may stay open, and the end of
            -- the run that holds the key writes its rows.
            INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
            SELECT name, with_key, new_id, with_fingerprint, key_ttl, key_active_only
              FROM pg_catalog.unnest(names) AS name
                ON CONFLICT (task, key) DO NOTHING;
            GET DIAGNOSTICS inserted = ROW_COUNT;
            EXIT WHEN inserted = pg_catalog.cardinality(names);
            BEGIN
                UPDATE duly_keys AS known
                   SET run_id = new_id, fingerprint = with_fingerprint, ttl = key_ttl,
                       active_only = key_active_only, expires_at = NULL
                 WHERE known.task = ANY (names) AND known.key = with_key
                   AND known.expires_at <= now;
                GET DIAGNOSTICS taken_over = ROW_COUNT;
                EXIT WHEN inserted + taken_over = pg_catalog.cardinality(names);
                RAISE SQLSTATE 'DU001';
            EXCEPTION WHEN SQLSTATE 'DU001' THEN
                -- Another run has the key under one of the names, and the next iteration finds it.
                -- The undone statements keep no lock.
                DELETE FROM duly_keys AS known WHERE known.run_id = new_id;
            END;
        END LOOP;
        IF held_by IS NOT NULL THEN
            RETURN QUERY SELECT held_by, false, held_fingerprint NOT IN ('', with_fingerprint);
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
    RETURN QUERY SELECT new_id, true, false;
END
$$;

-- The names in its body are resolved when it runs: in duly's schema, for any search path of the
-- caller.
DO $do$
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION duly_enqueue SET search_path = %I, pg_temp',
                              pg_catalog.current_schema());
END
$do$;
