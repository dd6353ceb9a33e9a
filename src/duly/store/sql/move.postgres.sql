-- move: reads before a move writes the rows of another database here.

-- :name columns
SELECT attribute.attname::text, pg_catalog.format_type(attribute.atttypid, NULL)
  FROM pg_attribute AS attribute
 WHERE attribute.attrelid = %(table)s::regclass AND attribute.attnum > 0
   AND NOT attribute.attisdropped

-- :name is_used
SELECT EXISTS (SELECT 1 FROM duly_every_run) OR EXISTS (SELECT 1 FROM duly_schedules)
       OR EXISTS (SELECT 1 FROM duly_keys) OR EXISTS (SELECT 1 FROM duly_guarded)
       OR EXISTS (SELECT 1 FROM duly_locks) OR EXISTS (SELECT 1 FROM duly_letters)
       OR EXISTS (SELECT 1 FROM duly_events)
       OR EXISTS (SELECT 1 FROM duly_accounts WHERE accepted > 0)

-- :name set_fence
SELECT pg_catalog.setval('duly_guard_fences', greatest(%(latest)s::bigint, 1))
