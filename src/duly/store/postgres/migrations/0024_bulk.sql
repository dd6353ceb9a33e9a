-- Acts on many runs. The rows let every server process show their progress and continue them.

CREATE TABLE duly_bulk_acts (
    -- Also the ticket of the form that started it: a form that is sent twice starts one act.
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    verb text NOT NULL CHECK (verb IN ('retry', 'discard', 'cancel')),
    -- The selection of runs as JSON, and a digest that is equal for the same act on the same runs.
    selection text NOT NULL,
    digest text COLLATE "C" NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    total bigint NOT NULL,
    done bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    refused text NOT NULL DEFAULT '[]',
    -- The last run that was handled, newest first. A page of runs and this column change in one
    -- transaction, and only from the value that the writer has read.
    reached text COLLATE "C",
    owner text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    ended_at timestamptz,
    error text
);
CREATE UNIQUE INDEX duly_bulk_acts_open ON duly_bulk_acts (digest) WHERE ended_at IS NULL;

-- How long runs lasted, from their first start to their end. `took` is the bound of that from now
-- on. Attempts that were followed by another one are counted too, in rows of the state "retried".
ALTER TABLE duly_tallies ADD COLUMN lasted bigint NOT NULL DEFAULT 0;
UPDATE duly_tallies SET lasted = elapsed;
