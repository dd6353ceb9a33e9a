-- Limits: the numbers of runs of a queue, a task or a key of a task that may run at the same time,
-- over all workers.

-- The limit of a queue, which an operator sets.
ALTER TABLE duly_queues ADD COLUMN running_limit INTEGER CHECK (running_limit >= 1);

-- Runs under a limit of their task are in lanes that begin with '~', which sorts after all others.
-- These indexes contain only such runs, so other runs cost no more.
CREATE INDEX duly_runs_limited ON duly_runs (lane, priority DESC, due_at, id)
    WHERE state = 'queued' AND lane >= '~';
CREATE INDEX duly_runs_slots ON duly_runs (lane) WHERE state = 'running' AND lane >= '~';

-- As before, but all limited lanes are skipped in one step, and at most one of them is named for
-- each queue.
DROP VIEW duly_ready_lanes;
CREATE VIEW duly_ready_lanes AS
WITH RECURSIVE head(queue, lane) AS (
    SELECT * FROM (SELECT queue, lane FROM duly_runs INDEXED BY duly_runs_ready
                    WHERE state = 'queued' ORDER BY queue, lane LIMIT 1)
    UNION ALL
    SELECT next.queue, next.lane
      FROM head
      JOIN duly_runs AS next
        ON next.rowid = coalesce(
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND queue = head.queue AND lane > head.lane AND lane < '~'
             ORDER BY lane LIMIT 1),
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_ready
             WHERE state = 'queued' AND queue > head.queue
             ORDER BY queue, lane LIMIT 1))
)
SELECT head.queue, head.lane, coalesce(known.paused, 0) AS paused, known.running_limit
  FROM head
  LEFT JOIN duly_queues AS known ON known.name = head.queue;
