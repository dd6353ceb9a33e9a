-- Keys: taking one no longer takes an advisory lock. A transaction with thousands of keys used to
-- fill the lock table that all sessions of the server share. The primary key of duly_keys is enough
-- to give a key to one run.

-- As before, without that lock. This is a function because each statement in it sees what was
-- committed while it waited for the key.
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
        LOOP
            -- This read must take no lock, because a settle of the run that holds the key writes
            -- the row.
            SELECT known.run_id, known.fingerprint INTO held_by, held_fingerprint
              FROM duly_keys AS known
             WHERE known.task = of_task AND known.key = with_key
               AND (known.expires_at IS NULL OR known.expires_at > now);
            EXIT WHEN FOUND;
            -- This waits for another open transaction that is taking the key.
            INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only)
            VALUES (of_task, with_key, new_id, with_fingerprint, key_ttl, key_active_only)
                ON CONFLICT (task, key) DO UPDATE
               SET run_id = excluded.run_id, fingerprint = excluded.fingerprint,
                   ttl = excluded.ttl, active_only = excluded.active_only, expires_at = NULL
             WHERE duly_keys.expires_at <= now;
            EXIT WHEN FOUND;
            -- The key was taken between the two statements. The next iteration finds its run.
        END LOOP;
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
