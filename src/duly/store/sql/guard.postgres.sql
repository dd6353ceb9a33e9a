-- guard: take and renew a key, and record how its body ended. Also dead letters of other engines.
-- Leases use the server's clock.

-- :name acquire
-- Guard: a key gets a new holder only if its body failed, its holder's lease is over, or it may be
-- forgotten. The fingerprint must be the same, unless the key may be forgotten.
-- The fence is a placeholder: values are computed before the row is locked, and a number drawn then
-- may be smaller than the number of a holder in between. `draw_fence` follows in the transaction.
INSERT INTO duly_guarded AS known
       (key, state, owner, holder, fence, fingerprint, attempts, losses, lease_ends,
        began_at, kept_until)
VALUES (%(key)s, 'held', %(owner)s, %(holder)s, 1, %(fingerprint)s, 1, 0,
        duly_now() + %(lease)s::float8 * interval '1 microsecond', duly_now(),
        duly_now() + %(ttl)s::float8 * interval '1 microsecond')
    ON CONFLICT (key) DO UPDATE
   SET state = 'held', owner = excluded.owner, holder = excluded.holder,
       fingerprint = CASE WHEN known.kept_until <= duly_now() THEN excluded.fingerprint
                          ELSE coalesce(known.fingerprint, excluded.fingerprint) END,
       attempts = CASE WHEN known.kept_until <= duly_now() THEN 1 ELSE known.attempts + 1 END,
       losses = CASE WHEN known.kept_until <= duly_now() THEN 0
                     ELSE known.losses + (known.state = 'held')::integer END,
       lease_ends = excluded.lease_ends, began_at = excluded.began_at,
       ended_at = NULL, kept_until = excluded.kept_until, result = NULL, problem = NULL
 WHERE (known.state = 'failed' OR (known.state = 'done' AND known.kept_until <= duly_now())
        OR (known.state = 'held' AND known.lease_ends <= duly_now()))
   AND (known.kept_until <= duly_now() OR known.fingerprint IS NULL
        OR %(fingerprint)s::text IS NULL OR known.fingerprint = %(fingerprint)s)

-- :name draw_fence
-- The transaction that runs this holds the key's row, so numbers are drawn in the order of the
-- holders. The lease starts here too, since the statement before may have waited for the row.
UPDATE duly_guarded
   SET fence = pg_catalog.nextval('duly_guard_fences'),
       lease_ends = duly_now() + %(lease)s::float8 * interval '1 microsecond'
 WHERE key = %(key)s
RETURNING owner, state, fence, holder,
          greatest(0, duly_microseconds(lease_ends) - duly_microseconds(duly_now())),
          attempts, losses, fingerprint, result, problem

-- :name standing
SELECT owner, state, fence, holder,
       greatest(0, duly_microseconds(lease_ends) - duly_microseconds(duly_now())),
       attempts, losses, fingerprint, result, problem
  FROM duly_guarded
 WHERE key = %(key)s

-- :name renew
-- Guard: only the holder, by its fence. Its lease may be over, as long as no other holder took the key.
UPDATE duly_guarded SET lease_ends = duly_now() + %(lease)s::float8 * interval '1 microsecond'
 WHERE key = %(key)s AND owner = %(owner)s AND fence = %(fence)s AND state = 'held'
RETURNING true

-- :name finish
-- Guard: as above.
UPDATE duly_guarded
   SET state = 'done', ended_at = duly_now(), result = %(result)s, problem = %(problem)s,
       kept_until = duly_now() + %(ttl)s::float8 * interval '1 microsecond'
 WHERE key = %(key)s AND owner = %(owner)s AND fence = %(fence)s AND state = 'held'

-- :name fail
-- Guard: as above.
UPDATE duly_guarded
   SET state = 'failed', losses = 0, ended_at = duly_now(),
       attempts = attempts - CASE WHEN %(began)s::boolean THEN 0 ELSE 1 END,
       kept_until = duly_now() + %(ttl)s::float8 * interval '1 microsecond'
 WHERE key = %(key)s AND owner = %(owner)s AND fence = %(fence)s AND state = 'held'

-- :name has_ended
SELECT EXISTS (SELECT 1 FROM duly_guarded
                WHERE key = %(key)s AND owner = %(owner)s AND fence = %(fence)s
                  AND state = %(state)s)

-- :name drop_forgotten
DELETE FROM duly_guarded
 WHERE key IN (SELECT key FROM duly_guarded
                WHERE kept_until <= duly_now()
                  AND (state <> 'held' OR lease_ends <= duly_now())
                ORDER BY kept_until LIMIT %(limit)s
                  FOR UPDATE SKIP LOCKED)

-- :name forget
DELETE FROM duly_guarded
 WHERE key = %(key)s AND (state <> 'held' OR lease_ends <= duly_now())

-- :name one
SELECT key, state, holder, fence, attempts, losses,
       CASE WHEN state = 'held'
            THEN greatest(0, duly_microseconds(lease_ends) - duly_microseconds(duly_now()))
            ELSE 0 END,
       duly_microseconds(began_at), duly_microseconds(ended_at), duly_microseconds(kept_until),
       result, problem
  FROM duly_guarded
 WHERE key = %(key)s AND (kept_until IS NULL OR kept_until > duly_now()
                          OR (state = 'held' AND lease_ends > duly_now()))

-- :name put_dead_letter
INSERT INTO duly_letters
       (id, engine, task, arguments, key, cause, error, traceback, attempts, queue, options,
        namespace, application, fingerprint, created_at, kept_until)
VALUES (%(id)s, %(engine)s, %(task)s, %(arguments)s, %(key)s, %(cause)s, %(error)s,
        %(traceback)s, %(attempts)s, %(queue)s, %(options)s, %(namespace)s,
        %(application)s, %(fingerprint)s, duly_now(),
        duly_now() + %(ttl)s::float8 * interval '1 microsecond')
    ON CONFLICT (id) DO NOTHING

-- :name end_dead_letter
UPDATE duly_letters
   SET state = %(state)s, actor = %(actor)s, reason = %(reason)s, ended_at = duly_now()
 WHERE id = %(letter_id)s AND state = 'open'

-- :name drop_letters
DELETE FROM duly_letters
 WHERE id IN (SELECT id FROM duly_letters WHERE kept_until <= duly_now()
               ORDER BY kept_until LIMIT %(limit)s
                 FOR UPDATE SKIP LOCKED)

-- :name letters
SELECT id, engine, task, arguments, key, cause, error, traceback, attempts, queue, options, state,
       duly_microseconds(created_at), actor, duly_microseconds(ended_at), namespace, application,
       fingerprint, reason
  FROM duly_letters
 WHERE (%(id)s::text IS NULL OR id = %(id)s) AND (%(state)s::text IS NULL OR state = %(state)s)
   AND (%(engine)s::text IS NULL OR engine = %(engine)s)
   AND (%(task)s::text IS NULL OR task = %(task)s)
   AND (%(cause)s::text IS NULL OR cause = %(cause)s)
   AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
   AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s)
   AND (%(since)s::bigint IS NULL OR duly_microseconds(created_at) >= %(since)s)
   AND (%(before)s::text IS NULL OR id < %(before)s)
 ORDER BY id DESC LIMIT %(limit)s

-- :name letter_groups
SELECT task, fingerprint, pg_catalog.count(*), pg_catalog.max(error COLLATE "C"),
       duly_microseconds(pg_catalog.min(created_at)),
       duly_microseconds(pg_catalog.max(created_at)), pg_catalog.max(id), engine
  FROM duly_letters
 WHERE state = %(state)s AND (%(engine)s::text IS NULL OR engine = %(engine)s)
   AND (%(task)s::text IS NULL OR task = %(task)s)
   AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
   AND (%(since)s::bigint IS NULL OR duly_microseconds(created_at) >= %(since)s)
 GROUP BY engine, task, fingerprint
 ORDER BY pg_catalog.count(*) DESC, task
 LIMIT %(limit)s
