-- Parking, and moving runs between lanes, read a bounded number of queues per round. The next round
-- continues after the last of them.

-- The queue after which a duty continues when it is done next.
ALTER TABLE duly_duties ADD COLUMN reached text COLLATE "C" NOT NULL DEFAULT '';

-- As duly_ready_lanes, for the next queues of each lane after `after`, and for the next queues that
-- have runs under a limit. Plain SQL, which the planner inlines into the statements that use it.
CREATE FUNCTION duly_next_lanes(by_look bigint, after text, most bigint)
    RETURNS TABLE (queue text, lane text)
    LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    WITH RECURSIVE limited(queue, lane) AS (
        (SELECT run.queue, run.lane FROM duly_runs AS run
          WHERE run.state = 'queued' AND run.lane >= '~' AND run.queue > '' AND run.queue > after
          ORDER BY run.queue, run.lane LIMIT 1)
        UNION ALL
        SELECT next.queue, next.lane
          FROM limited
         CROSS JOIN LATERAL (
               SELECT run.queue, run.lane FROM duly_runs AS run
                WHERE run.state = 'queued' AND run.lane >= '~' AND run.queue > ''
                  AND run.queue > limited.queue
                ORDER BY run.queue, run.lane LIMIT 1) AS next
    )
    SELECT walk.queue, own.lane
      FROM duly_lanes_of(by_look) AS own
     CROSS JOIN LATERAL (
           SELECT next.queue FROM duly_queues_of(by_look, own.lane, after) AS next LIMIT most) AS walk
        -- After the last queue, the scan begins again with the first.
     WHERE walk.queue > after
    UNION ALL
    (SELECT limited.queue, limited.lane FROM limited LIMIT most);
END;
