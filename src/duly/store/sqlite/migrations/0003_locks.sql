-- Locks. The row of a released lock is kept, because its fence must only grow.

CREATE TABLE duly_locks (
    name TEXT NOT NULL PRIMARY KEY,
    owner TEXT,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL CHECK (fence >= 1),
    -- Time since the start of the machine, and an id of that start. So the wall clock cannot end a
    -- lock.
    expires_at INTEGER NOT NULL,
    boot TEXT NOT NULL
) WITHOUT ROWID;
