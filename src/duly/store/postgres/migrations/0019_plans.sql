-- Keys: settles find the keys of their runs by the ids of the runs. An array of ids is looked up in
-- an index under any statistics. Pairs of task and key can only be joined, and a join may read all
-- keys.
DROP INDEX CONCURRENTLY IF EXISTS duly_keys_of_run;
CREATE INDEX CONCURRENTLY duly_keys_of_run ON duly_keys (run_id);

-- As before, but each wait, event and child is looked up by itself, under any statistics.
CREATE OR REPLACE VIEW duly_awake AS
SELECT step.run_id, step.name
  FROM duly_steps AS step
 WHERE step.kind IN ('wait', 'gather') AND NOT step.done
   AND CASE step.kind
       WHEN 'wait' THEN EXISTS (SELECT 1 FROM duly_events WHERE name = step.awaited OFFSET 0)
       ELSE NOT EXISTS (
            SELECT 1
              FROM pg_catalog.json_array_elements_text(step.awaited::json) AS child(id)
             WHERE EXISTS (SELECT 1 FROM duly_runs WHERE id = child.id::uuid OFFSET 0)
                OR EXISTS (SELECT 1 FROM duly_waiting WHERE id = child.id::uuid OFFSET 0))
       END;

-- A session of a caller keeps the plans of this function. A plan that was made while a table had a
-- single page must not read the whole table after it has grown.
ALTER FUNCTION duly_enqueue(
    uuid, text, text, text, integer, text, bigint, bigint, bigint, text, text, text, bigint, boolean
) SET enable_seqscan = off;
