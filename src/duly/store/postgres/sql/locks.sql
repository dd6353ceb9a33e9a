-- locks: take, renew and release a named lock, and say who holds which.

-- :name acquire
-- Guard: only a lock that nobody holds, or whose time is over, changes hands; the fence grows then.
-- That of a new one is larger than those of all locks that were pruned.
INSERT INTO duly_locks (name, owner, holder, fence, expires_at)
VALUES (%(name)s, %(owner)s, %(holder)s,
        1 + coalesce((SELECT fence FROM duly_locks WHERE name = ''), 0),
        duly_now() + %(ttl)s::float8 * interval '1 microsecond')
    ON CONFLICT (name) DO UPDATE
   SET owner = excluded.owner, holder = excluded.holder, fence = duly_locks.fence + 1,
       expires_at = excluded.expires_at
 WHERE duly_locks.owner IS NULL OR duly_locks.expires_at <= duly_now()

-- :name lock
-- With the largest fence of those that were pruned.
SELECT owner, holder, fence,
       greatest(0, duly_microseconds(expires_at) - duly_microseconds(duly_now())),
       coalesce((SELECT fence FROM duly_locks WHERE name = ''), 0)
  FROM duly_locks
 WHERE name = %(name)s

-- :name raise_fence
-- Only here: a prune may have deleted the lock while its new row waited for that.
UPDATE duly_locks SET fence = %(fence)s WHERE name = %(name)s AND owner = %(owner)s

-- :name renew
-- Guard: only the owner, by its fence; also when its time is over, as long as nobody took it.
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
