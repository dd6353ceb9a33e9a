-- bulk: acts on many runs, one page of runs for each transaction.

-- :name drop_old
DELETE FROM duly_bulk_acts WHERE ended_at <= :now - :retention

-- :name start
-- Guard: the same form starts only one act, and no act starts while the same act is in progress.
INSERT INTO duly_bulk_acts
       (id, verb, selection, digest, actor, reason, total, owner, created_at, renewed_at)
VALUES (:id, :verb, :selection, :digest, :actor, :reason, :total, :owner, :now, :now)
    ON CONFLICT DO NOTHING

-- :name known
SELECT id FROM duly_bulk_acts
 WHERE id = :id OR (digest = :digest AND ended_at IS NULL)
 ORDER BY id <> :id
 LIMIT 1

-- :name take
-- Guard: an act changes its owner only after its process has been silent for too long.
UPDATE duly_bulk_acts SET owner = :owner, renewed_at = :now
 WHERE ended_at IS NULL AND renewed_at <= :now - :lease
RETURNING id

-- :name advance
-- Guard: only the owner, and only from the position at which it expects the act.
UPDATE duly_bulk_acts
   SET reached = :reached, renewed_at = :now, ended_at = CASE WHEN :is_over THEN :now END,
       error = :error
 WHERE id = :id AND owner = :owner AND reached IS :after AND ended_at IS NULL
RETURNING refused

-- :name count
UPDATE duly_bulk_acts
   SET done = done + :done, skipped = skipped + :skipped, refused = :refused
 WHERE id = :id

-- :name one
SELECT id, verb, selection, actor, reason, total, done, skipped, refused, reached, owner, created_at,
       renewed_at, ended_at, error
  FROM duly_bulk_acts
 WHERE id = :id

-- :name has_silent
SELECT EXISTS (SELECT 1 FROM duly_bulk_acts WHERE ended_at IS NULL AND renewed_at <= :now - :lease)
