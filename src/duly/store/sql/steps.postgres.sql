-- steps: the recorded steps of a run, and its waits.
-- Guard: a step is written only under a claim that still holds, whose row is locked until the commit.
-- No statement joins a growing table with a set of rows. The reason is in claim.sql. OFFSET 0 makes the
-- planner use a lookup for each row. The form coalesce(parked, '') = '' matches no partial index.
-- Otherwise the planner would read all of such an index if it was empty when last counted.

-- :part suspended
-- Only a run that was suspended is woken. A run that is retried later keeps its time, although a wait of
-- its last attempt may be open.
EXISTS (SELECT 1 FROM duly_attempts AS last
         WHERE last.run_id = duly_waiting.id AND last.claim_number = duly_waiting.claim_number
           AND last.outcome = 'suspended' OFFSET 0)

-- :name holds
SELECT 1 FROM duly_runs
 WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running'
   FOR SHARE

-- :name begin
INSERT INTO duly_steps (run_id, name, kind, done, awaited, wake_at, claim_number, began_at)
SELECT id, %(name)s, %(kind)s, false, %(awaited)s,
       duly_now() + %(after)s::float8 * interval '1 microsecond', claim_number, duly_now()
  FROM duly_runs
 WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running'
    ON CONFLICT (run_id, name) DO NOTHING

-- :name conclude
-- Ends a sleep or a wait whose time is over, or whose event was sent. An event's payload is never NULL.
UPDATE duly_steps
   SET done = true, ended_at = duly_now(), claim_number = %(claim_number)s,
       result = (SELECT payload FROM duly_events WHERE duly_events.name = awaited)
 WHERE run_id = %(run_id)s AND name = %(name)s AND NOT done AND kind IN ('sleep', 'wait')
   AND (wake_at <= duly_now()
        OR EXISTS (SELECT 1 FROM duly_events WHERE duly_events.name = awaited OFFSET 0))
   AND EXISTS (SELECT 1 FROM duly_runs
                WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running')

-- :name end
INSERT INTO duly_steps
       (run_id, name, kind, done, awaited, result, claim_number, began_at, ended_at)
SELECT id, %(name)s, 'step', true, %(inside)s, %(result)s, claim_number, duly_now(), duly_now()
  FROM duly_runs
 WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running'
    ON CONFLICT (run_id, name) DO UPDATE
   SET done = true, result = excluded.result, claim_number = excluded.claim_number,
       ended_at = excluded.ended_at
 WHERE NOT duly_steps.done

-- :name forget
DELETE FROM duly_steps
 WHERE run_id = %(run_id)s AND name = %(name)s AND NOT done
   AND EXISTS (SELECT 1 FROM duly_runs
                WHERE id = %(run_id)s AND claim_number = %(claim_number)s AND state = 'running')

-- :name one
SELECT run_id::text, name, kind, done, awaited, duly_microseconds(wake_at), result, claim_number,
       duly_microseconds(began_at), duly_microseconds(ended_at)
  FROM duly_steps WHERE run_id = %(run_id)s AND name = %(name)s

-- :name all
SELECT run_id::text, name, kind, done, awaited, duly_microseconds(wake_at), result, claim_number,
       duly_microseconds(began_at), duly_microseconds(ended_at)
  FROM duly_steps WHERE run_id = %(run_id)s ORDER BY began_at, name

-- :name begun
-- The open steps of a run that has ended or waits. Their outcome is unknown.
SELECT run_id::text, name, kind, done, awaited, duly_microseconds(wake_at), result, claim_number,
       duly_microseconds(began_at), duly_microseconds(ended_at)
  FROM duly_steps
 WHERE run_id = %(run_id)s AND kind = 'step' AND NOT done
 ORDER BY began_at, name

-- :name lock_ended
-- Two transactions may each resolve one of the last two steps. The second waits here, so that its next
-- statement sees the step that the first has resolved.
SELECT 1 FROM duly_history WHERE id = %(run_id)s FOR UPDATE

-- :name lock_wakes
-- The names of events and the ids of runs, sorted as in settle.lock_waits, so that no two transactions
-- wait for each other. Only duly's own transactions take these locks, each of them only once.
SELECT pg_catalog.pg_advisory_xact_lock(wait)
  FROM (SELECT DISTINCT duly_wait_lock(name) AS wait
          FROM pg_catalog.unnest(%(names)s::text[]) AS op(name)
         ORDER BY wait) AS waits

-- :name send
-- The wakeup row is for a tick, which wakes the waiting runs. A sender locks none of them, because its
-- transaction may belong to a caller and stay open. The hint is sent at the commit.
WITH news AS (
    INSERT INTO duly_events (name, payload, sent_at) VALUES (%(name)s, %(payload)s, duly_now())
        ON CONFLICT (name) DO NOTHING
    RETURNING name
), noted AS (
    INSERT INTO duly_wakeups (event) SELECT name FROM news
    RETURNING 1
)
SELECT CASE WHEN %(hint)s::boolean THEN pg_catalog.pg_notify(duly_channel(), '{"v":1}') END FROM noted

-- :name take_wakeups
WITH taken AS MATERIALIZED (
    SELECT id FROM duly_wakeups ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), dropped AS (
    DELETE FROM duly_wakeups WHERE id = ANY (ARRAY(SELECT id FROM taken))
    RETURNING event
)
SELECT pg_catalog.array_agg(event) FROM dropped

-- :name rouse_waiting
UPDATE duly_waiting
   SET due_at = duly_now()
 WHERE id = ANY (ARRAY(SELECT step.run_id
                         FROM pg_catalog.unnest(%(names)s::text[]) AS event(name)
                        CROSS JOIN LATERAL (
                              SELECT run_id FROM duly_steps
                               WHERE kind = 'wait' AND NOT done AND awaited = event.name
                              OFFSET 0) AS step))
   AND due_at > duly_now() AND coalesce(parked, '') = ''
   AND :part(suspended)

-- :name wake
UPDATE duly_waiting
   SET due_at = duly_now()
 WHERE id = ANY (%(run_ids)s::uuid[]) AND due_at > duly_now() AND coalesce(parked, '') = ''
   AND EXISTS (SELECT 1 FROM duly_awake WHERE duly_awake.run_id = duly_waiting.id OFFSET 0)
   AND :part(suspended)

-- :name counted
-- How many runs have ended and how many events were sent, by the server's row counters, and whether
-- this has changed since the last complete pass began. The server counts a transaction some seconds
-- after its commit and never before. So transactions that a pass could not see change the counters
-- later. A crash of the server resets the counters, and version 14 may miss rows. Therefore there is
-- also a longest time between two passes.
WITH now AS (
    SELECT pg_catalog.pg_stat_get_tuples_inserted('duly_history'::regclass)::text || ' '
           || pg_catalog.pg_stat_get_tuples_inserted('duly_events'::regclass)::text AS counted
)
SELECT counted,
       NOT EXISTS (SELECT 1 FROM duly_duties
                    WHERE name = 'rechecked' AND duly_duties.counted = now.counted
                      AND done_at <= pg_catalog.statement_timestamp()
                      AND done_at > pg_catalog.statement_timestamp()
                                    - %(longest)s::float8 * interval '1 second')
  FROM now

-- :name note_rechecked
INSERT INTO duly_duties (name, done_at, counted)
VALUES ('rechecked', pg_catalog.statement_timestamp(), %(counted)s)
    ON CONFLICT (name) DO UPDATE SET done_at = excluded.done_at, counted = excluded.counted

-- :name pending
-- A bounded part of all waits, page by page, so that every lost wake-up is found soon.
SELECT DISTINCT run_id FROM duly_steps
 WHERE kind IN ('wait', 'gather') AND NOT done AND run_id > %(after)s::uuid
 ORDER BY run_id
 LIMIT %(limit)s

-- :name resolve_done
-- The step, and the steps that had begun inside of it, at any depth.
WITH RECURSIVE held (name) AS (
    SELECT name FROM duly_steps WHERE run_id = %(run_id)s AND name = %(step)s
     UNION
    SELECT inner_one.name
      FROM duly_steps AS inner_one
      JOIN held ON inner_one.awaited = held.name
     WHERE inner_one.run_id = %(run_id)s AND inner_one.kind = 'step' AND NOT inner_one.done
)
UPDATE duly_steps
   SET done = true, ended_at = duly_now(), result = %(result)s
 WHERE run_id = %(run_id)s AND kind = 'step' AND NOT done
   AND name IN (SELECT name FROM held)
   AND EXISTS (SELECT 1 FROM duly_history WHERE id = %(run_id)s AND state <> 'succeeded')
RETURNING name

-- :name resolve_again
WITH RECURSIVE held (name) AS (
    SELECT name FROM duly_steps WHERE run_id = %(run_id)s AND name = %(step)s
     UNION
    SELECT inner_one.name
      FROM duly_steps AS inner_one
      JOIN held ON inner_one.awaited = held.name
     WHERE inner_one.run_id = %(run_id)s AND inner_one.kind = 'step' AND NOT inner_one.done
)
DELETE FROM duly_steps
 WHERE run_id = %(run_id)s AND kind = 'step' AND NOT done
   AND name IN (SELECT name FROM held)
   AND EXISTS (SELECT 1 FROM duly_history WHERE id = %(run_id)s AND state <> 'succeeded')
RETURNING name

-- :name next_epoch
INSERT INTO duly_steps (run_id, name, kind, done, result, claim_number, began_at, ended_at)
VALUES (%(run_id)s, '', 'epoch', true, '1', 0, duly_now(), duly_now())
    ON CONFLICT (run_id, name) DO UPDATE
   SET result = (duly_steps.result::integer + 1)::text

-- :name forget_from
-- All steps that began after the step are forgotten, and the steps inside it, which were recorded before
-- it. The steps around it that are done are forgotten too, or the run would not reach the step again. A
-- step around it that began and vanished is for a person to resolve. The step around a wait is not
-- recorded, so a wait stays if it began before the step.
WITH RECURSIVE inside (name) AS (
    SELECT name FROM duly_steps WHERE run_id = %(run_id)s AND name = %(from_step)s
     UNION
    SELECT inner_one.name
      FROM duly_steps AS inner_one
      JOIN inside ON inner_one.awaited = inside.name
     WHERE inner_one.run_id = %(run_id)s AND inner_one.kind = 'step'
), around (name) AS (
    SELECT awaited FROM duly_steps
     WHERE run_id = %(run_id)s AND name = %(from_step)s AND kind = 'step'
     UNION
    SELECT outer_one.awaited
      FROM duly_steps AS outer_one
      JOIN around ON outer_one.name = around.name
     WHERE outer_one.run_id = %(run_id)s AND outer_one.kind = 'step'
), forgotten (name) AS (
    SELECT name FROM inside
     UNION
    SELECT outer_one.name
      FROM duly_steps AS outer_one
      JOIN around ON outer_one.name = around.name
     WHERE outer_one.run_id = %(run_id)s AND outer_one.done
     UNION
    SELECT later.name
      FROM duly_steps AS later
      JOIN duly_steps AS first ON first.run_id = later.run_id AND first.name = %(from_step)s
     WHERE later.run_id = %(run_id)s AND (later.began_at, later.name) >= (first.began_at, first.name)
)
DELETE FROM duly_steps
 WHERE run_id = %(run_id)s AND kind <> 'epoch' AND name IN (SELECT name FROM forgotten)
