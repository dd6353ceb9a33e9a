-- Limits: how many runs of a queue, a task or a key of it are running at once, over all workers.

-- Of a queue, as an operator sets it.
ALTER TABLE duly_queues ADD COLUMN running_limit integer CHECK (running_limit >= 1);

-- Runs that count against a limit of their task wait in lanes that begin with '~' and sort behind all
-- others. These indexes hold nothing of other runs, and cost them nothing.
CREATE INDEX duly_runs_limited ON duly_runs (lane, priority DESC, due_at, id)
    WHERE state = 'queued' AND lane >= '~';
CREATE INDEX duly_runs_slots ON duly_runs (lane) WHERE state = 'running' AND lane >= '~';

-- As before, but past limited lanes, of which it names one at most of each queue, in one step.
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
