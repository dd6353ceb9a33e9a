-- diagnose: facts about the server and its settings for `duly doctor`.

-- :name facts
SELECT pg_catalog.current_setting('server_version'), pg_catalog.current_setting('fsync'),
       pg_catalog.current_setting('full_page_writes'), pg_catalog.current_setting('synchronous_commit'),
       pg_catalog.current_setting('autovacuum'), pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_setting('max_connections')::integer
       - pg_catalog.current_setting('superuser_reserved_connections')::integer
       - coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::integer,
       (SELECT pg_catalog.count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT pg_catalog.count(*) FROM duly_workers WHERE state = 'live')

-- :name oldest_transaction
-- Rows that were deleted after it began cannot be vacuumed, and claims step over them.
SELECT pid, coalesce(usename, ''), coalesce(application_name, ''),
       coalesce(pg_catalog.host(client_addr), 'this machine'),
       extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::float8,
       (SELECT number FROM duly_look) IS NOT NULL
  FROM pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
   AND xact_start IS NOT NULL
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%%')
 ORDER BY xact_start
 LIMIT 1

-- :name creators
-- Roles that may create functions in the schema of duly's tables. Only roles that log in or are granted
-- to others, without superusers and roles that may act as the owner of the tables.
SELECT role.rolname::text
  FROM pg_class AS owned
 CROSS JOIN pg_roles AS role
 WHERE owned.oid = 'duly_runs'::regclass AND NOT role.rolsuper AND role.oid >= 16384::oid
   AND pg_catalog.has_schema_privilege(role.oid, owned.relnamespace, 'CREATE')
   AND NOT pg_catalog.pg_has_role(role.oid, owned.relowner, 'MEMBER')
 ORDER BY role.rolname
 LIMIT 5

-- :name unregistered
-- Because the filter has the form of ranges, the order makes the planner use the index, for any
-- statistics.
SELECT task, queue,
       (SELECT pg_catalog.count(*)
          FROM (SELECT 1 FROM duly_waiting AS run
                 WHERE run.parked IS NOT NULL AND run.parked = 'unregistered'
                   AND run.queue >= lane.queue AND run.queue <= lane.queue
                   AND run.task >= lane.task AND run.task <= lane.task
                 ORDER BY run.parked, run.queue, run.task
                 LIMIT %(cap)s) AS _)
  FROM duly_parked_lanes AS lane
 WHERE parked = 'unregistered'
 ORDER BY task, queue

-- :name broken_indexes
SELECT index.indexrelid::regclass::text
  FROM pg_index AS index
  JOIN pg_class AS owner ON owner.oid = index.indrelid
 WHERE owner.relname::text LIKE 'duly\_%%' AND NOT (index.indisvalid AND index.indisready)

-- :name schema_of_amcheck
SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'amcheck'

-- :name check_indexes
SELECT pg_catalog.count({schema}.bt_index_check(index.indexrelid::regclass, true))
  FROM pg_index AS index
  JOIN pg_class AS owner ON owner.oid = index.indrelid
  JOIN pg_class AS itself ON itself.oid = index.indexrelid
  JOIN pg_am AS method ON method.oid = itself.relam
 WHERE owner.relname::text LIKE 'duly\_%%' AND method.amname = 'btree'
