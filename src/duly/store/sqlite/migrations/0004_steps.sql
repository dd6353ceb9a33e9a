-- Steps: the recorded results and the waits of runs. They are kept after attempts and redrives.

CREATE TABLE duly_steps (
    run_id TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('step', 'sleep', 'wait', 'gather', 'epoch')),
    done INTEGER NOT NULL CHECK (done IN (0, 1)),
    -- The awaited event's name, or the ids of the awaited child runs as JSON.
    awaited TEXT,
    -- The end of a sleep, or the timeout of a wait.
    wake_at INTEGER,
    result TEXT,
    claim_number INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    ended_at INTEGER,
    PRIMARY KEY (run_id, name),
    CHECK (done = (ended_at IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX duly_steps_awaiting ON duly_steps (awaited, run_id) WHERE kind = 'wait' AND NOT done;
CREATE INDEX duly_steps_pending ON duly_steps (run_id) WHERE kind IN ('wait', 'gather') AND NOT done;

-- The values of `send_event`. Only the first value of an event is kept.
CREATE TABLE duly_events (
    name TEXT NOT NULL PRIMARY KEY,
    payload TEXT NOT NULL,
    sent_at INTEGER NOT NULL
) WITHOUT ROWID;
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
         FROM json_each(step.awaited) AS child
        WHERE EXISTS (SELECT 1 FROM duly_runs WHERE id = child.value)
           OR EXISTS (SELECT 1 FROM duly_waiting WHERE id = child.value));
