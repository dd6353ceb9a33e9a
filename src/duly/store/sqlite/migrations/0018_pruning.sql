-- Indexes of ended schedules and of locks that have not been used for long, so that both can be
-- pruned.

CREATE INDEX duly_schedules_over ON duly_schedules (updated_at) WHERE state IN ('ended', 'removed');
CREATE INDEX duly_locks_idle ON duly_locks (boot, expires_at);
