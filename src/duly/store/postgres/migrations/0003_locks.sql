-- Locks. A row stays when its lock is released, since the fence must only grow.

CREATE TABLE duly_locks (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    owner text COLLATE "C",
    holder text NOT NULL,
    fence bigint NOT NULL CHECK (fence >= 1),
    -- By the server's clock, which all who ask share.
    expires_at timestamptz NOT NULL
);
