-- diagnose: facts about the engine and its settings for `duly doctor`.

-- :name facts
SELECT sqlite_version(),
       (SELECT journal_mode FROM pragma_journal_mode),
       (SELECT synchronous FROM pragma_synchronous),
       (SELECT count(*) FROM sqlite_master WHERE tbl_name NOT LIKE 'duly\_%' ESCAPE '\')

-- :name unregistered
SELECT task, queue,
       (SELECT count(*) FROM (SELECT 1 FROM duly_waiting INDEXED BY duly_waiting_parked
                               WHERE parked = 'unregistered' AND duly_waiting.queue = lane.queue
                                 AND duly_waiting.task = lane.task
                               LIMIT :cap))
  FROM duly_parked_lanes AS lane
 WHERE parked = 'unregistered'
 ORDER BY task, queue
