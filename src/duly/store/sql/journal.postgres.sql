-- journal: progress and log lines of a running attempt.
-- Guard: claim_number, as for settle. A report of an attempt that has lost its claim is dropped.

-- :name progress
UPDATE duly_runs
   SET progress = coalesce(%(fraction)s, progress),
       progress_text = coalesce(%(text)s, progress_text)
 WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running'

-- :name holds
-- The lock prevents a concurrent settle or recovery. On SQLite, the only writer excludes both.
SELECT 1 FROM duly_runs
 WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running'
   FOR KEY SHARE

-- :name log
INSERT INTO duly_logs (run_id, claim_number, at, level, message)
SELECT %(run_id)s, %(claim_number)s, duly_time(line.at), line.level, line.message
  FROM unnest(%(ats)s::bigint[], %(levels)s::text[], %(messages)s::text[])
       AS line(at, level, message)

-- :name lock
-- As `holds`, with a stronger lock. Two processes may restore the lines of one worker at once. The
-- second waits here, so that its next statement reads the lines that the first has written.
SELECT 1 FROM duly_runs
 WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running'
   FOR UPDATE

-- :name known
SELECT duly_microseconds(at), level, message FROM duly_logs
 WHERE run_id = %(run_id)s AND claim_number = %(claim_number)s
