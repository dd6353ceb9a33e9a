-- diagnose: what `duly doctor` wants to know of the engine and its settings.

-- :name facts
SELECT sqlite_version(),
       (SELECT journal_mode FROM pragma_journal_mode),
       (SELECT synchronous FROM pragma_synchronous),
       (SELECT count(*) FROM sqlite_master WHERE tbl_name NOT LIKE 'duly\_%' ESCAPE '\')

-- :name unregistered
SELECT DISTINCT task FROM duly_parked_lanes WHERE parked = 'unregistered' ORDER BY task
