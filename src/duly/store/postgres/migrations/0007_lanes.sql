-- Lanes: the lane of each task that a worker registers. Runs can follow a task that gains or loses
-- its carrier.

-- A JSON object from task to lane.
ALTER TABLE duly_workers ADD COLUMN lanes text NOT NULL DEFAULT '{}';

-- A worker that hands over runs reads only those of its own tasks, and never skips those of others.
DROP INDEX duly_handed_stale;
ALTER TABLE duly_handed ADD COLUMN task text COLLATE "C" NOT NULL DEFAULT '';
UPDATE duly_handed SET task = run.task FROM duly_runs AS run WHERE run.id = duly_handed.run_id;
CREATE INDEX duly_handed_of_task ON duly_handed (task, stale_at);

-- Not WHERE state = 'queued' as on SQLite, for the same reason as duly_runs_held.
CREATE INDEX duly_runs_carried ON duly_runs (task, lane)
    WHERE worker_id IS NULL AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold');

-- A loose index scan, as duly_ready_lanes: the tasks that have carried runs.
CREATE VIEW duly_carried_lanes AS
WITH RECURSIVE head(task, lane) AS (
    (SELECT task, lane FROM duly_runs
      WHERE worker_id IS NULL AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
      ORDER BY task, lane LIMIT 1)
    UNION ALL
    SELECT next.task, next.lane
      FROM head
     CROSS JOIN LATERAL (
           SELECT run.task, run.lane
             FROM duly_runs AS run
            WHERE run.worker_id IS NULL
              AND run.lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
              AND (run.task, run.lane) > (head.task, head.lane)
            ORDER BY run.task, run.lane LIMIT 1) AS next
)
SELECT task, lane FROM head;
