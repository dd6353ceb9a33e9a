-- Locks. A row stays when its lock is released, since the fence must only grow.

CREATE TABLE duly_locks (
    name TEXT NOT NULL PRIMARY KEY,
    owner TEXT,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL CHECK (fence >= 1),
    -- Time since the machine was started, and which start that was: no wall clock ends a lock.
    expires_at INTEGER NOT NULL,
    boot TEXT NOT NULL
) WITHOUT ROWID;
