-- journal: what a running attempt says about itself.
-- Guard: claim_number, as for settle; a zombie's words are dropped.

-- :name progress
UPDATE duly_runs
   SET progress = coalesce(:fraction, progress), progress_text = coalesce(:text, progress_text)
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name holds
SELECT 1 FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name log
INSERT INTO duly_logs (run_id, claim_number, at, level, message)
VALUES :rows(5)

-- :name known
SELECT at, level, message FROM duly_logs
 WHERE run_id = :run_id AND claim_number = :claim_number
