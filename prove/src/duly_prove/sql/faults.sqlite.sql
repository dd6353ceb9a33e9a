-- The tables and triggers of fault injection in an SQLite file, in addition to duly's own. Here
-- every trigger has its own statements. In PostgreSQL, one function serves all tables.

-- :name version
SELECT sqlite_version()

-- :name journal
SELECT journal_mode FROM pragma_journal_mode

-- :name ledger
-- No unique constraint: a duplicated effect must be visible.
CREATE TABLE duly_prove_ledger (
    run_id TEXT NOT NULL,
    claim_number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    task TEXT NOT NULL,
    number INTEGER NOT NULL
)

-- :name event_table
-- Written in each transition's own transaction, so its order is the order of commits.
CREATE TABLE duly_prove_event (
    sequence INTEGER PRIMARY KEY,
    at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    run_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    claim_number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    state TEXT,
    worker_id TEXT,
    outcome TEXT
)

-- :name on_accept
CREATE TRIGGER duly_prove_on_accept AFTER INSERT ON duly_runs
WHEN NEW.queue = 'duly-prove'
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (NEW.id, 'ready', NEW.claim_number, NEW.generation, NEW.state);
END

-- :name on_wait
CREATE TRIGGER duly_prove_on_wait AFTER INSERT ON duly_waiting
WHEN NEW.queue = 'duly-prove'
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (NEW.id, 'wait', NEW.claim_number, NEW.generation, 'queued');
END

-- :name on_claim
CREATE TRIGGER duly_prove_on_claim AFTER UPDATE OF state, claim_number, worker_id ON duly_runs
WHEN NEW.queue = 'duly-prove' AND NEW.state = 'running'
 AND (OLD.state, OLD.claim_number) <> (NEW.state, NEW.claim_number)
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state, worker_id)
    VALUES (NEW.id, 'claim', NEW.claim_number, NEW.generation, OLD.state, NEW.worker_id);
END

-- :name on_requeue
CREATE TRIGGER duly_prove_on_requeue AFTER UPDATE OF state ON duly_runs
WHEN NEW.queue = 'duly-prove' AND OLD.state = 'running' AND NEW.state = 'queued'
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state, worker_id)
    VALUES (NEW.id, 'requeue', NEW.claim_number, NEW.generation, NEW.state, OLD.worker_id);
END

-- :name on_end
CREATE TRIGGER duly_prove_on_end AFTER INSERT ON duly_history
WHEN NEW.queue = 'duly-prove'
BEGIN
    INSERT INTO duly_prove_event
        (run_id, kind, claim_number, generation, state, worker_id, outcome)
    VALUES (NEW.id, 'end', NEW.claim_number, NEW.generation, NEW.state, NEW.worker_id, NEW.outcome);
END

-- :name on_rewrite
CREATE TRIGGER duly_prove_on_rewrite AFTER UPDATE ON duly_history
WHEN NEW.queue = 'duly-prove'
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (NEW.id, 'rewrite', NEW.claim_number, NEW.generation, NEW.state);
END

-- :name on_revive
CREATE TRIGGER duly_prove_on_revive AFTER DELETE ON duly_history
WHEN OLD.queue = 'duly-prove'
BEGIN
    INSERT INTO duly_prove_event (run_id, kind, claim_number, generation, state)
    VALUES (OLD.id, 'revive', OLD.claim_number, OLD.generation, OLD.state);
END

-- :name slot_table
-- Which runs take and release slots under a limit, written in the same transaction.
CREATE TABLE duly_prove_slots (
    sequence INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    lane TEXT NOT NULL,
    change INTEGER NOT NULL
)

-- :name on_slot_taken
CREATE TRIGGER duly_prove_on_slot_taken AFTER UPDATE OF state ON duly_runs
WHEN NEW.queue = 'duly-prove-limits' AND OLD.state <> 'running' AND NEW.state = 'running'
BEGIN
    INSERT INTO duly_prove_slots (run_id, lane, change) VALUES (OLD.id, OLD.lane, 1);
END

-- :name on_slot_left
CREATE TRIGGER duly_prove_on_slot_left AFTER UPDATE OF state ON duly_runs
WHEN NEW.queue = 'duly-prove-limits' AND OLD.state = 'running' AND NEW.state <> 'running'
BEGIN
    INSERT INTO duly_prove_slots (run_id, lane, change) VALUES (OLD.id, OLD.lane, -1);
END

-- :name on_slot_gone
CREATE TRIGGER duly_prove_on_slot_gone AFTER DELETE ON duly_runs
WHEN OLD.queue = 'duly-prove-limits' AND OLD.state = 'running'
BEGIN
    INSERT INTO duly_prove_slots (run_id, lane, change) VALUES (OLD.id, OLD.lane, -1);
END

-- :name slots
SELECT run_id, lane, change FROM duly_prove_slots ORDER BY sequence

-- :name rows
SELECT run_id, claim_number, generation, task FROM duly_prove_ledger

-- :name numbers
SELECT run_id, number FROM duly_prove_ledger

-- :name events
SELECT sequence, run_id, kind, claim_number, generation, state, worker_id, outcome, at
  FROM duly_prove_event
 ORDER BY sequence

-- :name runs
SELECT id, task, state, cause, generation, claim_number, attempt, crashes, result, count(*)
  FROM duly_every_run
 WHERE queue = 'duly-prove'
 GROUP BY id

-- :name attempts
SELECT run_id, claim_number, generation, outcome, worker_id FROM duly_attempts
UNION ALL
SELECT id, claim_number, generation, outcome, worker_id FROM duly_history WHERE outcome IS NOT NULL

-- :name workers
SELECT id, state, pid FROM duly_workers

-- :name acts
SELECT subject, count(*) FROM duly_acts WHERE act = 'redrive' GROUP BY subject

-- :name simulate_time
-- The host's clock is used here, and is passed in when the store is opened.
SELECT 1

-- :name set_time
SELECT :now

-- :name firings
SELECT schedule, version, instant, last_instant, instants, outcome, reason, run_id
  FROM duly_firings
 ORDER BY schedule, instant

-- :name scheduled_runs
SELECT id, json_extract(tags, '$.schedule')
  FROM duly_every_run
 WHERE json_extract(tags, '$.schedule') IS NOT NULL

-- :name integrity
SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'
UNION ALL
SELECT 'foreign key: ' || "table" FROM pragma_foreign_key_check

-- :name crash_table
-- No unique constraint here either.
CREATE TABLE duly_prove_crash (
    run_id TEXT NOT NULL,
    name TEXT NOT NULL
)

-- :name crash_note
INSERT INTO duly_prove_crash (run_id, name) VALUES (:run_id, :name)

-- :name crash_rows
SELECT name FROM duly_prove_crash WHERE run_id = :run_id

-- :name crash_event
SELECT count(*) FROM duly_events WHERE name = :name

-- :name sleepers
SELECT state, attempt, count(*)
  FROM duly_every_run
 WHERE queue = 'duly-prove-sleepers'
 GROUP BY state, attempt
