-- Indexes of ended schedules and of locks that have not been used for long, so that both can be
-- pruned.

DROP INDEX CONCURRENTLY IF EXISTS duly_schedules_over;
CREATE INDEX CONCURRENTLY duly_schedules_over
    ON duly_schedules (updated_at) WHERE state IN ('ended', 'removed');
DROP INDEX CONCURRENTLY IF EXISTS duly_locks_idle;
CREATE INDEX CONCURRENTLY duly_locks_idle ON duly_locks (expires_at);
