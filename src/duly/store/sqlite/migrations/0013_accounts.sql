-- Accounts: the numbers of accepted and of pruned runs, so that an audit can find a missing one.
-- How long the runs of a task are kept. How many runs may wait in a queue.

-- One row, because SQLite has one writer. PostgreSQL adds rows, and adds them up later.
CREATE TABLE duly_accounts (
    accepted INTEGER NOT NULL DEFAULT 0,
    pruned INTEGER NOT NULL DEFAULT 0,
    -- The latest end of a pruned run.
    pruned_until INTEGER
);
INSERT INTO duly_accounts (accepted, pruned_until)
SELECT (SELECT count(*) FROM duly_every_run), (SELECT max(fired_at) FROM duly_firings);

-- The retention of tasks that have their own, in microseconds.
CREATE TABLE duly_retentions (
    task TEXT NOT NULL PRIMARY KEY,
    kept INTEGER NOT NULL CHECK (kept >= 0)
) WITHOUT ROWID;

-- If a run is kept for another time than the default, because of its task or its key, a prune skips
-- it until this instant. Block ranges could not leave such runs out.
ALTER TABLE duly_history ADD COLUMN kept_until INTEGER;
DROP INDEX duly_history_ended;
CREATE INDEX duly_history_ended ON duly_history (finished_at)
    WHERE state NOT IN ('failed', 'interrupted') AND kept_until IS NULL;
DROP INDEX duly_history_died;
CREATE INDEX duly_history_died ON duly_history (finished_at)
    WHERE state IN ('failed', 'interrupted') AND kept_until IS NULL;
CREATE INDEX duly_history_kept ON duly_history (kept_until) WHERE kept_until IS NOT NULL;

-- How many runs may wait in a queue. An operator sets it.
ALTER TABLE duly_queues ADD COLUMN max_size INTEGER CHECK (max_size >= 1);

-- Accepts and counts a run that is due at once and has neither key nor tags. It is one statement,
-- so that it is its own transaction.
CREATE VIEW duly_enqueue_plain AS
SELECT id, task, queue, lane, priority, created_at AS now, arguments FROM duly_runs;

CREATE TRIGGER duly_enqueue_plain_accepts INSTEAD OF INSERT ON duly_enqueue_plain
BEGIN
    INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at, arguments)
    VALUES (NEW.id, NEW.task, NEW.queue, NEW.lane, NEW.priority, NEW.now, NEW.now, NEW.arguments);
    UPDATE duly_accounts SET accepted = accepted + 1;
END;

-- As before, and counts a new run.
DROP TRIGGER duly_enqueue_accepts;
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
    UPDATE duly_accounts
       SET accepted = accepted + 1
     WHERE NEW.key IS NULL OR EXISTS (
           SELECT 1 FROM duly_keys
            WHERE task = NEW.task AND key = NEW.key AND run_id = NEW.id);
END;
