-- diagnose: what `duly doctor` wants to know of the server and its settings.

-- :name facts
SELECT current_setting('server_version'), current_setting('fsync'),
       current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('autovacuum'), pg_is_in_recovery(),
       current_setting('max_connections')::integer,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')

-- :name oldest_transaction
-- Rows that were deleted since it began cannot be vacuumed, and claims step over them.
SELECT pid, coalesce(usename, ''), coalesce(application_name, ''),
       coalesce(host(client_addr), 'this machine'),
       extract(epoch FROM clock_timestamp() - xact_start)::float8,
       (SELECT number FROM duly_look) IS NOT NULL
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%%')
 ORDER BY xact_start
 LIMIT 1

-- :name unregistered
SELECT DISTINCT task FROM duly_parked_lanes WHERE parked = 'unregistered' ORDER BY task

-- :name broken_indexes
SELECT index.indexrelid::regclass::text
  FROM pg_index AS index
  JOIN pg_class AS owner ON owner.oid = index.indrelid
 WHERE owner.relname LIKE 'duly\_%%' AND NOT (index.indisvalid AND index.indisready)

-- :name has_amcheck
SELECT 1 FROM pg_extension WHERE extname = 'amcheck'

-- :name check_indexes
SELECT count(bt_index_check(index.indexrelid, true))
  FROM pg_index AS index
  JOIN pg_class AS owner ON owner.oid = index.indrelid
  JOIN pg_class AS itself ON itself.oid = index.indexrelid
  JOIN pg_am AS method ON method.oid = itself.relam
 WHERE owner.relname LIKE 'duly\_%%' AND method.amname = 'btree'
