-- Dead letters are kept for longer than other finished runs. They are few, and have an index of
-- their own. The other runs are still found by the block ranges of duly_history_finished, which on
-- SQLite is an index without dead letters.

CREATE INDEX duly_history_died ON duly_history (finished_at)
    WHERE state IN ('failed', 'interrupted');
