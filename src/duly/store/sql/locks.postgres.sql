-- locks: take, renew and release a named lock, and list the holders of locks.

-- :name acquire
-- Guard: only a lock that is free, or whose time is over, gets a new owner. Its fence then grows. The
-- fence of a new lock is larger than those of all locks that were pruned. If another owner holds a
-- lock, it is only read. A conflict would lock its row until the end of this transaction, and its owner
-- could not renew it during that time. So the statement returns the lock if it acquired it, or if the
-- lock is held. It returns nothing if the lock got another owner since the statement began: its snapshot
-- shows the owner before, which may be the one that asks again.
WITH attempt AS (
    INSERT INTO duly_locks (name, owner, holder, fence, expires_at)
    SELECT %(name)s, %(owner)s, %(holder)s,
           1 + coalesce((SELECT fence FROM duly_locks WHERE name = ''), 0),
           duly_now() + %(ttl)s::float8 * interval '1 microsecond'
     WHERE NOT EXISTS (SELECT FROM duly_locks
                        WHERE name = %(name)s AND owner IS NOT NULL AND expires_at > duly_now())
        ON CONFLICT (name) DO UPDATE
       SET owner = excluded.owner, holder = excluded.holder, fence = duly_locks.fence + 1,
           expires_at = excluded.expires_at
     WHERE duly_locks.owner IS NULL OR duly_locks.expires_at <= duly_now()
    RETURNING owner, holder, fence, expires_at
)
SELECT owner, holder, fence,
       greatest(0, duly_microseconds(expires_at) - duly_microseconds(duly_now()))
  FROM (SELECT owner, holder, fence, expires_at FROM attempt
         UNION ALL
        SELECT owner, holder, fence, expires_at FROM duly_locks
         WHERE name = %(name)s AND owner IS NOT NULL AND expires_at > duly_now()
           AND NOT EXISTS (SELECT FROM attempt)) AS lock

-- :name standing
SELECT owner, holder, fence,
       greatest(0, duly_microseconds(expires_at) - duly_microseconds(duly_now()))
  FROM duly_locks
 WHERE name = %(name)s

-- :name raise_fence
-- The fence of a new lock is larger than those of all locks that were pruned. A prune may have deleted
-- the lock while its new row waited for the prune. The statement before did not see the fence of that
-- prune.
UPDATE duly_locks SET fence = 1 + (SELECT fence FROM duly_locks WHERE name = '')
 WHERE name = %(name)s AND owner = %(owner)s
   AND fence <= (SELECT fence FROM duly_locks WHERE name = '')
RETURNING fence

-- :name renew
-- Guard: only the owner, by its fence. Its time may be over, as long as the lock has no new owner.
UPDATE duly_locks SET expires_at = duly_now() + %(ttl)s::float8 * interval '1 microsecond'
 WHERE name = %(name)s AND owner = %(owner)s AND fence = %(fence)s
RETURNING true

-- :name release
UPDATE duly_locks SET owner = NULL
 WHERE name = %(name)s AND owner = %(owner)s AND fence = %(fence)s

-- :name held
SELECT name, holder, fence, duly_microseconds(expires_at) - duly_microseconds(duly_now())
  FROM duly_locks
 WHERE name > %(after)s AND owner IS NOT NULL AND expires_at > duly_now()
 ORDER BY name LIMIT %(limit)s
