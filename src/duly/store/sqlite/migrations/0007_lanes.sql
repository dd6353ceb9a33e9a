-- Lanes: the lane of each task that a worker registers. Runs can follow a task that gains or loses
-- its carrier.

-- A JSON object from task to lane.
ALTER TABLE duly_workers ADD COLUMN lanes TEXT NOT NULL DEFAULT '{}';

-- A worker that hands over runs reads only those of its own tasks, and never skips those of others.
DROP INDEX duly_handed_stale;
ALTER TABLE duly_handed ADD COLUMN task TEXT NOT NULL DEFAULT '';
UPDATE duly_handed
   SET task = coalesce((SELECT task FROM duly_runs WHERE id = duly_handed.run_id), '');
CREATE INDEX duly_handed_of_task ON duly_handed (task, stale_at);

CREATE INDEX duly_runs_carried ON duly_runs (task, lane)
    WHERE state = 'queued' AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold');

-- A loose index scan, as duly_ready_lanes: the tasks that have carried runs.
CREATE VIEW duly_carried_lanes AS
WITH RECURSIVE head(task, lane) AS (
    SELECT * FROM (SELECT task, lane FROM duly_runs INDEXED BY duly_runs_carried
                    WHERE state = 'queued'
                      AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
                    ORDER BY task, lane LIMIT 1)
    UNION ALL
    SELECT next.task, next.lane
      FROM head
      JOIN duly_runs AS next
        ON next.rowid = coalesce(
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_carried
             WHERE state = 'queued'
               AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
               AND task = head.task AND lane > head.lane
             ORDER BY lane LIMIT 1),
           (SELECT rowid FROM duly_runs INDEXED BY duly_runs_carried
             WHERE state = 'queued'
               AND lane IN ('carried', 'carried-hold', 'handed', 'handed-hold')
               AND task > head.task
             ORDER BY task, lane LIMIT 1))
)
SELECT task, lane FROM head;
