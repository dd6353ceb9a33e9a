-- locks: take, renew and release a named lock, and list the held locks with their holders.
-- Times are measured since the machine's boot. A lock of an earlier boot is free.

-- :name acquire
-- Guard: a lock gets a new owner only if it is free or has expired. Then its fence grows. The fence of
-- a new lock is larger than those of all pruned locks.
INSERT INTO duly_locks (name, owner, holder, fence, expires_at, boot)
VALUES (:name, :owner, :holder,
        1 + coalesce((SELECT fence FROM duly_locks WHERE name = ''), 0), :uptime + :ttl, :boot)
    ON CONFLICT (name) DO UPDATE
   SET owner = excluded.owner, holder = excluded.holder, fence = duly_locks.fence + 1,
       expires_at = excluded.expires_at, boot = excluded.boot
 WHERE duly_locks.owner IS NULL OR duly_locks.boot <> excluded.boot
    OR duly_locks.expires_at <= :uptime
RETURNING owner, holder, fence, :ttl

-- :name standing
SELECT owner, holder, fence,
       CASE WHEN boot = :boot THEN max(0, expires_at - :uptime) ELSE 0 END
  FROM duly_locks
 WHERE name = :name

-- :name raise_fence
-- The fence of a new lock is larger than those of all pruned locks.
UPDATE duly_locks SET fence = 1 + (SELECT fence FROM duly_locks WHERE name = '')
 WHERE name = :name AND owner = :owner
   AND fence <= (SELECT fence FROM duly_locks WHERE name = '')
RETURNING fence

-- :name renew
-- Guard: only the owner, by its fence. The lock may have expired if it has no new owner.
UPDATE duly_locks SET expires_at = :uptime + :ttl, boot = :boot
 WHERE name = :name AND owner = :owner AND fence = :fence

-- :name release
UPDATE duly_locks SET owner = NULL WHERE name = :name AND owner = :owner AND fence = :fence

-- :name held
SELECT name, holder, fence, expires_at - :uptime
  FROM duly_locks
 WHERE name > :after AND owner IS NOT NULL AND boot = :boot AND expires_at > :uptime
 ORDER BY name LIMIT :limit
