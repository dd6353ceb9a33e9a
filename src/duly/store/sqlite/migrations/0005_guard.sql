-- The guard: its keys (held, done or failed), and the dead letters of other engines.

CREATE TABLE duly_guarded (
    key TEXT NOT NULL PRIMARY KEY CHECK (key <> ''),
    state TEXT NOT NULL CHECK (state IN ('held', 'done', 'failed')),
    owner TEXT NOT NULL,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL CHECK (fence >= 1),
    fingerprint TEXT,
    attempts INTEGER NOT NULL CHECK (attempts >= 1),
    losses INTEGER NOT NULL CHECK (losses BETWEEN 0 AND attempts),
    -- Time since the start of the machine, and an id of that start. So the wall clock cannot end a
    -- lease.
    lease_ends INTEGER NOT NULL,
    boot TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    ended_at INTEGER,
    -- When the key may be forgotten. NULL means never.
    kept_until INTEGER,
    result TEXT,
    problem TEXT,
    CHECK ((state = 'held') = (ended_at IS NULL))
) WITHOUT ROWID;
CREATE INDEX duly_guarded_kept ON duly_guarded (kept_until) WHERE kept_until IS NOT NULL;

-- One counter for all keys: a fence must only grow, and rows of keys are deleted.
CREATE TABLE duly_guard_fences (latest INTEGER NOT NULL);
INSERT INTO duly_guard_fences VALUES (0);

CREATE TABLE duly_letters (
    id TEXT NOT NULL PRIMARY KEY,
    engine TEXT NOT NULL,
    task TEXT NOT NULL,
    arguments TEXT NOT NULL,
    key TEXT,
    cause TEXT NOT NULL,
    error TEXT NOT NULL,
    traceback TEXT,
    attempts INTEGER NOT NULL,
    queue TEXT,
    options TEXT,
    state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'replayed', 'discarded')),
    created_at INTEGER NOT NULL,
    actor TEXT,
    ended_at INTEGER,
    kept_until INTEGER,
    CHECK ((state = 'open') = (ended_at IS NULL))
) WITHOUT ROWID;
CREATE INDEX duly_letters_state ON duly_letters (state, id);
CREATE INDEX duly_letters_kept ON duly_letters (kept_until) WHERE kept_until IS NOT NULL;
