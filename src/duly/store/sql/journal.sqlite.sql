-- journal: the progress and the log lines of a running attempt.
-- Guard: claim_number, as for settle. A report of an attempt that has lost its claim is dropped.

-- :name progress
UPDATE duly_runs
   SET progress = coalesce(:fraction, progress), progress_text = coalesce(:text, progress_text)
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name holds
SELECT 1 FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name log
INSERT INTO duly_logs (run_id, claim_number, at, level, message)
SELECT :run_id, :claim_number, json_extract(value, '$[0]'), json_extract(value, '$[1]'),
       json_extract(value, '$[2]')
  FROM json_each(:lines)

-- :name lock
-- As `holds`. SQLite has one writer at a time, so this only reads.
SELECT 1 FROM duly_runs
 WHERE id = :run_id AND claim_number = :claim_number AND state = 'running'

-- :name known
SELECT at, level, message FROM duly_logs
 WHERE run_id = :run_id AND claim_number = :claim_number
