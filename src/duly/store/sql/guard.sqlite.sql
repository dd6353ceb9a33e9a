-- guard: take a key, renew it, and record the end of its body; and store dead letters of other engines.
-- Leases use the time since the machine's boot. A lease of an earlier boot has expired.

-- :name acquire
-- Guard: a key gets a new owner only if its body failed, its holder's lease has expired, or it may be
-- forgotten. The fingerprint must be the same unless the key may be forgotten. The fence grows.
INSERT INTO duly_guarded
       (key, state, owner, holder, fence, fingerprint, attempts, losses, lease_ends, boot, began_at,
        kept_until)
SELECT :key, 'held', :owner, :holder, latest + 1, :fingerprint, 1, 0, :uptime + :lease, :boot, :now,
       :now + :ttl
  FROM duly_guard_fences
 WHERE true
    ON CONFLICT (key) DO UPDATE
   SET state = 'held', owner = excluded.owner, holder = excluded.holder, fence = excluded.fence,
       fingerprint = CASE WHEN kept_until <= :now THEN excluded.fingerprint
                          ELSE coalesce(fingerprint, excluded.fingerprint) END,
       attempts = CASE WHEN kept_until <= :now THEN 1 ELSE attempts + 1 END,
       losses = CASE WHEN kept_until <= :now THEN 0 ELSE losses + (state = 'held') END,
       lease_ends = excluded.lease_ends, boot = excluded.boot, began_at = excluded.began_at,
       ended_at = NULL, kept_until = excluded.kept_until, result = NULL, problem = NULL
 WHERE (state = 'failed' OR (state = 'done' AND kept_until <= :now)
        OR (state = 'held' AND (boot <> :boot OR lease_ends <= :uptime)))
   AND (kept_until <= :now OR fingerprint IS NULL OR :fingerprint IS NULL
        OR fingerprint = :fingerprint)

-- :name draw_fence
-- The key already has the next fence from `acquire`. No other process writes between the statements.
UPDATE duly_guard_fences SET latest = latest + 1
-- :then
SELECT owner, state, fence, holder, max(0, lease_ends - :uptime), attempts, losses, fingerprint,
       result, problem
  FROM duly_guarded
 WHERE key = :key

-- :name standing
SELECT owner, state, fence, holder,
       CASE WHEN boot = :boot THEN max(0, lease_ends - :uptime) ELSE 0 END,
       attempts, losses, fingerprint, result, problem
  FROM duly_guarded
 WHERE key = :key

-- :name renew
-- Guard: only the holder, by its fence. Its lease may have expired if the key has no new owner.
UPDATE duly_guarded SET lease_ends = :uptime + :lease, boot = :boot
 WHERE key = :key AND owner = :owner AND fence = :fence AND state = 'held'

-- :name finish
-- Guard: as above.
UPDATE duly_guarded
   SET state = 'done', ended_at = :now, kept_until = :now + :ttl, result = :result,
       problem = :problem
 WHERE key = :key AND owner = :owner AND fence = :fence AND state = 'held'

-- :name fail
-- Guard: as above.
UPDATE duly_guarded
   SET state = 'failed', losses = 0, attempts = attempts - (NOT :began), ended_at = :now,
       kept_until = :now + :ttl
 WHERE key = :key AND owner = :owner AND fence = :fence AND state = 'held'

-- :name has_ended
SELECT EXISTS (SELECT 1 FROM duly_guarded
                WHERE key = :key AND owner = :owner AND fence = :fence AND state = :state)

-- :name drop_forgotten
DELETE FROM duly_guarded
 WHERE key IN (SELECT key FROM duly_guarded
                WHERE kept_until <= :now
                  AND (state <> 'held' OR boot <> :boot OR lease_ends <= :uptime)
                ORDER BY kept_until LIMIT :limit)

-- :name forget
DELETE FROM duly_guarded
 WHERE key = :key AND (state <> 'held' OR boot <> :boot OR lease_ends <= :uptime)

-- :name one
SELECT key, state, holder, fence, attempts, losses,
       CASE WHEN state = 'held' AND boot = :boot THEN max(0, lease_ends - :uptime) ELSE 0 END,
       began_at, ended_at, kept_until, result, problem
  FROM duly_guarded
 WHERE key = :key AND (kept_until IS NULL OR kept_until > :now
                       OR (state = 'held' AND boot = :boot AND lease_ends > :uptime))

-- :name put_dead_letter
INSERT INTO duly_letters
       (id, engine, task, arguments, key, cause, error, traceback, attempts, queue, options,
        namespace, application, fingerprint, created_at, kept_until)
VALUES (:id, :engine, :task, :arguments, :key, :cause, :error, :traceback, :attempts, :queue,
        :options, :namespace, :application, :fingerprint, :now, :now + :ttl)
    ON CONFLICT (id) DO NOTHING

-- :name end_dead_letter
UPDATE duly_letters SET state = :state, actor = :actor, reason = :reason, ended_at = :now
 WHERE id = :letter_id AND state = 'open'

-- :name drop_letters
DELETE FROM duly_letters
 WHERE id IN (SELECT id FROM duly_letters WHERE kept_until <= :now
               ORDER BY kept_until LIMIT :limit)

-- :name letters
SELECT id, engine, task, arguments, key, cause, error, traceback, attempts, queue, options, state,
       created_at, actor, ended_at, namespace, application, fingerprint, reason
  FROM duly_letters
 WHERE (:id IS NULL OR id = :id) AND (:state IS NULL OR state = :state)
   AND (:engine IS NULL OR engine = :engine) AND (:task IS NULL OR task = :task)
   AND (:cause IS NULL OR cause = :cause) AND (:since IS NULL OR created_at >= :since)
   AND (:namespace IS NULL OR namespace = :namespace)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
   AND (:before IS NULL OR id < :before)
 ORDER BY id DESC LIMIT :limit

-- :name letter_groups
SELECT task, fingerprint, count(*), max(error), min(created_at), max(created_at), max(id), engine
  FROM duly_letters
 WHERE state = :state AND (:engine IS NULL OR engine = :engine)
   AND (:task IS NULL OR task = :task) AND (:namespace IS NULL OR namespace = :namespace)
   AND (:since IS NULL OR created_at >= :since)
 GROUP BY engine, task, fingerprint
 ORDER BY count(*) DESC, task
 LIMIT :limit
