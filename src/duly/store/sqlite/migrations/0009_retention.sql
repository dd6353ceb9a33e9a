-- Dead letters are kept for longer than other finished runs. Each kind has an index of its own, so
-- that a prune does not read the rows that are kept.

DROP INDEX duly_history_finished;
CREATE INDEX duly_history_ended ON duly_history (finished_at)
    WHERE state NOT IN ('failed', 'interrupted');
CREATE INDEX duly_history_died ON duly_history (finished_at)
    WHERE state IN ('failed', 'interrupted');
