-- Dead letters are kept for longer than other finished runs. They are few, and are found by an index
-- of their own; the others still by the block ranges of duly_history_finished, which on SQLite are an
-- index without the dead.

CREATE INDEX duly_history_died ON duly_history (finished_at)
    WHERE state IN ('failed', 'interrupted');
