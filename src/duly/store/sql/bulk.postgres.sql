-- bulk: acts on many runs, one page of runs for each transaction.

-- :name drop_old
DELETE FROM duly_bulk_acts
 WHERE ended_at <= duly_now() - %(retention)s::float8 * interval '1 microsecond'

-- :name start
-- Guard: if the same form was sent before, or the same act is in progress, no other act starts.
INSERT INTO duly_bulk_acts
       (id, verb, selection, digest, actor, reason, total, owner, created_at, renewed_at)
VALUES (%(id)s, %(verb)s, %(selection)s, %(digest)s, %(actor)s, %(reason)s, %(total)s, %(owner)s,
        duly_now(), duly_now())
    ON CONFLICT DO NOTHING

-- :name known
SELECT id FROM duly_bulk_acts
 WHERE id = %(id)s::text OR (digest = %(digest)s::text AND ended_at IS NULL)
 ORDER BY id <> %(id)s::text
 LIMIT 1

-- :name take
-- Only acts whose process has been silent for too long change owners. Of two processes that try, the
-- second waits for the first, and then finds that the act was renewed.
UPDATE duly_bulk_acts SET owner = %(owner)s, renewed_at = duly_now()
 WHERE ended_at IS NULL
   AND renewed_at <= duly_now() - %(lease)s::float8 * interval '1 microsecond'
RETURNING id

-- :name advance
-- Guard: only the owner, and only from where it believes the act to be.
UPDATE duly_bulk_acts
   SET reached = %(reached)s, renewed_at = duly_now(),
       ended_at = CASE WHEN %(is_over)s::boolean THEN duly_now() END, error = %(error)s
 WHERE id = %(id)s AND owner = %(owner)s AND reached IS NOT DISTINCT FROM %(after)s::text
   AND ended_at IS NULL
RETURNING refused

-- :name count
UPDATE duly_bulk_acts
   SET done = done + %(done)s::bigint, skipped = skipped + %(skipped)s::bigint,
       refused = %(refused)s
 WHERE id = %(id)s

-- :name one
SELECT id, verb, selection, actor, reason, total, done, skipped, refused, reached, owner,
       duly_microseconds(created_at), duly_microseconds(renewed_at), duly_microseconds(ended_at),
       error
  FROM duly_bulk_acts
 WHERE id = %(id)s

-- :name has_silent
SELECT EXISTS (SELECT 1 FROM duly_bulk_acts
                WHERE ended_at IS NULL
                  AND renewed_at <= duly_now() - %(lease)s::float8 * interval '1 microsecond')
