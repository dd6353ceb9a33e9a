-- Steps: the recorded results and the waits of runs. They are kept after attempts and redrives.

CREATE TABLE duly_steps (
    run_id uuid NOT NULL,
    name text COLLATE "C" NOT NULL,
    kind text NOT NULL CHECK (kind IN ('step', 'sleep', 'wait', 'gather', 'epoch')),
    done boolean NOT NULL,
    -- The awaited event's name, or the ids of the awaited child runs as JSON.
    awaited text COLLATE "C",
    -- The end of a sleep, or the timeout of a wait.
    wake_at timestamptz,
    result text,
    claim_number bigint NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (run_id, name),
    CHECK (done = (ended_at IS NOT NULL))
);
-- The name of an event has at most 255 bytes; lists of children are not in this index.
CREATE INDEX duly_steps_awaiting ON duly_steps (awaited, run_id) WHERE kind = 'wait' AND NOT done;
CREATE INDEX duly_steps_pending ON duly_steps (run_id) WHERE kind IN ('wait', 'gather') AND NOT done;

-- The values of `send_event`. Only the first value of an event is kept.
CREATE TABLE duly_events (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    payload text NOT NULL,
    sent_at timestamptz NOT NULL
);
CREATE INDEX duly_events_sent ON duly_events (sent_at);

-- Waits that are satisfied: their event was sent, or all of their children have ended.
CREATE VIEW duly_awake AS
SELECT step.run_id, step.name
  FROM duly_steps AS step
 WHERE step.kind = 'wait' AND NOT step.done
   AND EXISTS (SELECT 1 FROM duly_events WHERE name = step.awaited)
UNION ALL
SELECT step.run_id, step.name
  FROM duly_steps AS step
 WHERE step.kind = 'gather' AND NOT step.done
   AND NOT EXISTS (
       SELECT 1
         FROM pg_catalog.json_array_elements_text(step.awaited::json) AS child(id)
        WHERE EXISTS (SELECT 1 FROM duly_runs WHERE id = child.id::uuid)
           OR EXISTS (SELECT 1 FROM duly_waiting WHERE id = child.id::uuid));

-- A transaction that suspends a run takes this lock, and so does one that wakes it. So neither
-- misses the other.
CREATE FUNCTION duly_wait_lock(awaited text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.hashtextextended(awaited, 1685417082);
