-- Locks. The row of a released lock is kept, because its fence must only grow.

CREATE TABLE duly_locks (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    owner text COLLATE "C",
    holder text NOT NULL,
    fence bigint NOT NULL CHECK (fence >= 1),
    -- The time of the server's clock, which all callers share.
    expires_at timestamptz NOT NULL
);
