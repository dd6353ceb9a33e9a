-- The tables and triggers of fault injection in a PostgreSQL database, in addition to duly's own.
-- Here one function serves all three tables. In SQLite, every trigger has its own statements.

-- :name version
SELECT current_setting('server_version')

-- :name journal
SELECT 'fsync=' || current_setting('fsync')
       || ', synchronous_commit=' || current_setting('synchronous_commit')

-- :name ledger
-- No unique constraint: a duplicated effect must be visible.
CREATE TABLE duly_prove_ledger (
    run_id uuid NOT NULL,
    claim_number bigint NOT NULL,
    generation integer NOT NULL,
    task text NOT NULL,
    number bigint NOT NULL
)

-- :name event_table
-- Written in each transition's own transaction and under the lock on the run's row. For one run,
-- the order of the numbers is therefore the order of commits.
CREATE TABLE duly_prove_event (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_id uuid NOT NULL,
    kind text NOT NULL,
    claim_number bigint NOT NULL,
    generation integer NOT NULL,
    state text,
    worker_id text,
    outcome text
)

-- :name on_accept
CREATE FUNCTION duly_prove_on_accept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (NEW.id, 'ready', NEW.claim_number, NEW.generation, NEW.state);
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_accept AFTER INSERT ON duly_runs
    FOR EACH ROW WHEN (NEW.queue = 'duly-prove') EXECUTE FUNCTION duly_prove_on_accept()

-- :name on_wait
CREATE FUNCTION duly_prove_on_wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (NEW.id, 'wait', NEW.claim_number, NEW.generation, 'queued');
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_wait AFTER INSERT ON duly_waiting
    FOR EACH ROW WHEN (NEW.queue = 'duly-prove') EXECUTE FUNCTION duly_prove_on_wait()

-- :name on_claim
CREATE FUNCTION duly_prove_on_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state, worker_id)
    VALUES (NEW.id, 'claim', NEW.claim_number, NEW.generation, OLD.state, NEW.worker_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_claim AFTER UPDATE ON duly_runs
    FOR EACH ROW
    WHEN (NEW.queue = 'duly-prove' AND NEW.state = 'running'
          AND (OLD.state, OLD.claim_number) <> (NEW.state, NEW.claim_number))
    EXECUTE FUNCTION duly_prove_on_claim()

-- :name on_requeue
-- A run that becomes due later is deleted here and waits in another table. The checker knows that.
CREATE FUNCTION duly_prove_on_requeue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state, worker_id)
    VALUES (NEW.id, 'requeue', NEW.claim_number, NEW.generation, NEW.state, OLD.worker_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_requeue AFTER UPDATE ON duly_runs
    FOR EACH ROW
    WHEN (NEW.queue = 'duly-prove' AND OLD.state = 'running' AND NEW.state = 'queued')
    EXECUTE FUNCTION duly_prove_on_requeue()

-- :name on_end
CREATE FUNCTION duly_prove_on_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event
        (run_id, kind, claim_number, generation, state, worker_id, outcome)
    VALUES (NEW.id, 'end', NEW.claim_number, NEW.generation, NEW.state, NEW.worker_id, NEW.outcome);
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_end AFTER INSERT ON duly_history
    FOR EACH ROW WHEN (NEW.queue = 'duly-prove') EXECUTE FUNCTION duly_prove_on_end()

-- :name on_rewrite
CREATE FUNCTION duly_prove_on_rewrite() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (NEW.id, 'rewrite', NEW.claim_number, NEW.generation, NEW.state);
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_rewrite AFTER UPDATE ON duly_history
    FOR EACH ROW WHEN (NEW.queue = 'duly-prove') EXECUTE FUNCTION duly_prove_on_rewrite()

-- :name on_revive
CREATE FUNCTION duly_prove_on_revive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (OLD.id, 'revive', OLD.claim_number, OLD.generation, OLD.state);
    RETURN NULL;
END
$$;
CREATE TRIGGER duly_prove_on_revive AFTER DELETE ON duly_history
    FOR EACH ROW WHEN (OLD.queue = 'duly-prove') EXECUTE FUNCTION duly_prove_on_revive()

-- :name slot_table
-- Which runs take and release slots under a limit, written in the same transaction. A slot is taken
-- only after its release has committed, so the order of rows never shows too many running.
CREATE TABLE duly_prove_slots (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL,
    lane text NOT NULL,
    change integer NOT NULL
);
CREATE FUNCTION duly_prove_slot() RETURNS trigger LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO duly_prove_slots (run_id, lane, change)
    VALUES (OLD.id, OLD.lane, TG_ARGV[0]::integer);
    RETURN NULL;
END
$$

-- :name on_slot_taken
CREATE TRIGGER duly_prove_on_slot_taken AFTER UPDATE OF state ON duly_runs
FOR EACH ROW
WHEN (NEW.queue = 'duly-prove-limits' AND OLD.state <> 'running' AND NEW.state = 'running')
EXECUTE FUNCTION duly_prove_slot('1')

-- :name on_slot_left
CREATE TRIGGER duly_prove_on_slot_left AFTER UPDATE OF state ON duly_runs
FOR EACH ROW
WHEN (NEW.queue = 'duly-prove-limits' AND OLD.state = 'running' AND NEW.state <> 'running')
EXECUTE FUNCTION duly_prove_slot('-1')

-- :name on_slot_gone
CREATE TRIGGER duly_prove_on_slot_gone AFTER DELETE ON duly_runs
FOR EACH ROW
WHEN (OLD.queue = 'duly-prove-limits' AND OLD.state = 'running')
EXECUTE FUNCTION duly_prove_slot('-1')

-- :name slots
SELECT run_id::text, lane, change FROM duly_prove_slots ORDER BY sequence

-- :name rows
SELECT run_id::text, claim_number, generation, task FROM duly_prove_ledger

-- :name numbers
SELECT run_id::text, number FROM duly_prove_ledger

-- :name events
SELECT sequence, run_id::text, kind, claim_number, generation, state, worker_id, outcome,
       duly_microseconds(at)
  FROM duly_prove_event
 ORDER BY sequence

-- :name runs
SELECT id::text, min(task), min(state), min(cause), min(generation), min(claim_number),
       min(attempt), min(crashes), min(result), count(*)
  FROM duly_every_run
 WHERE queue = 'duly-prove'
 GROUP BY id

-- :name attempts
SELECT run_id::text, claim_number, generation, outcome, worker_id FROM duly_attempts
UNION ALL
SELECT id::text, claim_number, generation, outcome, worker_id
  FROM duly_history WHERE outcome IS NOT NULL

-- :name workers
SELECT id, state, pid FROM duly_workers

-- :name acts
SELECT subject, count(*) FROM duly_acts WHERE act = 'redrive' GROUP BY subject

-- :name simulate_time
-- The server's clock is used here. A sequence changes at once, even if the transaction rolls back.
CREATE SEQUENCE duly_prove_clock;
CREATE OR REPLACE FUNCTION duly_now() RETURNS timestamptz
    LANGUAGE sql STABLE
    AS $$ SELECT duly_time(last_value) FROM duly_prove_clock $$

-- :name set_time
SELECT setval('duly_prove_clock', %(now)s)

-- :name firings
SELECT schedule, version, duly_microseconds(instant), duly_microseconds(last_instant), instants,
       outcome, reason, run_id::text
  FROM duly_firings
 ORDER BY schedule, instant

-- :name scheduled_runs
SELECT id::text, tags::json ->> 'schedule'
  FROM duly_every_run
 WHERE tags::json ->> 'schedule' IS NOT NULL

-- :name integrity
-- The server checks its own pages if checksums are on. This checks whether an index and its table
-- have the same number of runs.
SELECT 'an index misses runs'
  FROM (SELECT count(*) AS rows FROM duly_every_run) AS every
 CROSS JOIN (SELECT count(DISTINCT id) AS rows FROM duly_every_run) AS known
 WHERE every.rows <> known.rows

-- :name crash_table
-- No unique constraint here either.
CREATE TABLE duly_prove_crash (
    run_id text NOT NULL,
    name text NOT NULL
)

-- :name crash_note
INSERT INTO duly_prove_crash (run_id, name) VALUES (%(run_id)s, %(name)s)

-- :name crash_rows
SELECT name FROM duly_prove_crash WHERE run_id = %(run_id)s

-- :name crash_event
SELECT count(*) FROM duly_events WHERE name = %(name)s

-- :name sleepers
SELECT state, attempt, count(*)
  FROM duly_every_run
 WHERE queue = 'duly-prove-sleepers'
 GROUP BY state, attempt
