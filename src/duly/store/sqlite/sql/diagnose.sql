-- diagnose: what `duly doctor` wants to know of the engine and its settings.

-- :name facts
SELECT sqlite_version(),
       (SELECT journal_mode FROM pragma_journal_mode),
       (SELECT synchronous FROM pragma_synchronous),
       (SELECT count(*) FROM sqlite_master WHERE tbl_name NOT LIKE 'duly\_%' ESCAPE '\')

-- :name backlog
-- Ids are made in the order of time, so that the oldest come first; a bounded number of them, and
-- nothing of paused queues.
SELECT queue, min(due_at)
  FROM (SELECT queue, due_at FROM duly_runs WHERE state = 'queued' ORDER BY id LIMIT :limit)
 WHERE queue NOT IN (SELECT name FROM duly_queues WHERE paused)
 GROUP BY queue
 ORDER BY queue

-- :name unregistered
SELECT DISTINCT task FROM duly_parked_lanes WHERE parked = 'unregistered' ORDER BY task
