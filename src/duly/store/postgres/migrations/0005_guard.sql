-- The guard: its keys (held, done or failed), and the dead letters of other engines.

CREATE TABLE duly_guarded (
    key text COLLATE "C" NOT NULL PRIMARY KEY CHECK (key <> ''),
    state text NOT NULL CHECK (state IN ('held', 'done', 'failed')),
    owner text COLLATE "C" NOT NULL,
    holder text NOT NULL,
    fence bigint NOT NULL CHECK (fence >= 1),
    fingerprint text COLLATE "C",
    attempts integer NOT NULL CHECK (attempts >= 1),
    losses integer NOT NULL CHECK (losses BETWEEN 0 AND attempts),
    -- The time of the server's clock, which all callers share.
    lease_ends timestamptz NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    -- When the key may be forgotten. NULL means never.
    kept_until timestamptz,
    result text,
    problem text,
    CHECK ((state = 'held') = (ended_at IS NULL))
);
CREATE INDEX duly_guarded_kept ON duly_guarded (kept_until) WHERE kept_until IS NOT NULL;

-- One counter for all keys: a fence must only grow, and rows of keys are deleted.
CREATE SEQUENCE duly_guard_fences;

CREATE TABLE duly_letters (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    engine text NOT NULL,
    task text NOT NULL,
    arguments text NOT NULL,
    key text,
    cause text NOT NULL,
    error text NOT NULL,
    traceback text,
    attempts integer NOT NULL,
    queue text,
    options text,
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'replayed', 'discarded')),
    created_at timestamptz NOT NULL,
    actor text,
    ended_at timestamptz,
    kept_until timestamptz,
    CHECK ((state = 'open') = (ended_at IS NULL))
);
CREATE INDEX duly_letters_state ON duly_letters (state, id);
CREATE INDEX duly_letters_kept ON duly_letters (kept_until) WHERE kept_until IS NOT NULL;
