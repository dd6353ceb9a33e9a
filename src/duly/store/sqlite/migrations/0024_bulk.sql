-- Acts on many runs. The rows let every server process show their progress and continue them.

CREATE TABLE duly_bulk_acts (
    -- Also the ticket of the form that started it: a form that is sent twice starts one act.
    id TEXT NOT NULL PRIMARY KEY,
    verb TEXT NOT NULL CHECK (verb IN ('retry', 'discard', 'cancel')),
    -- The selection of runs as JSON, and a digest that is equal for the same act on the same runs.
    selection TEXT NOT NULL,
    digest TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    total INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    refused TEXT NOT NULL DEFAULT '[]',
    -- The last run that was handled, newest first. A page of runs and this column change in one
    -- transaction, and only from the value that the writer has read.
    reached TEXT,
    owner TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    ended_at INTEGER,
    error TEXT
) WITHOUT ROWID;
CREATE UNIQUE INDEX duly_bulk_acts_open ON duly_bulk_acts (digest) WHERE ended_at IS NULL;

-- How long runs lasted, from their first start to their end. `took` is the bound of that from now
-- on. Attempts that were followed by another one are counted too, in rows of the state "retried".
ALTER TABLE duly_tallies ADD COLUMN lasted INTEGER NOT NULL DEFAULT 0;
UPDATE duly_tallies SET lasted = elapsed;
