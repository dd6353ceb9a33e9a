-- Limits: the numbers of runs of a queue, a task or a key of a task that may run at the same time,
-- over all workers.

-- The limit of a queue, which an operator sets.
ALTER TABLE duly_queues ADD COLUMN running_limit integer CHECK (running_limit >= 1);

-- Runs under a limit of their task are in lanes that begin with '~', which sorts after all others.
-- These indexes contain only such runs, so other runs cost no more.
CREATE INDEX duly_runs_limited ON duly_runs (lane, priority DESC, due_at, id)
    WHERE state = 'queued' AND lane >= '~';
CREATE INDEX duly_runs_slots ON duly_runs (lane) WHERE state = 'running' AND lane >= '~';

-- As before, but all limited lanes are skipped in one step, and at most one of them is named for
-- each queue.
CREATE OR REPLACE VIEW duly_ready_lanes AS
WITH RECURSIVE head(queue, lane) AS (
    (SELECT queue, lane FROM duly_runs WHERE state = 'queued' ORDER BY queue, lane LIMIT 1)
    UNION ALL
    SELECT next.queue, next.lane
      FROM head
     CROSS JOIN LATERAL (
           (SELECT run.queue, run.lane
              FROM duly_runs AS run
             WHERE run.state = 'queued' AND run.queue = head.queue AND run.lane > head.lane
               AND run.lane < '~'
             ORDER BY run.lane LIMIT 1)
           UNION ALL
           (SELECT run.queue, run.lane
              FROM duly_runs AS run
             WHERE run.state = 'queued' AND run.queue > head.queue
             ORDER BY run.queue, run.lane LIMIT 1)
           LIMIT 1) AS next
)
SELECT head.queue, head.lane, coalesce(known.paused, false) AS paused, known.running_limit
  FROM head
  LEFT JOIN duly_queues AS known ON known.name = head.queue;
