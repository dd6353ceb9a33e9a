-- Versions: which one of the application a worker runs, if it tells one, and of duly and Python.

ALTER TABLE duly_workers ADD COLUMN version TEXT;
ALTER TABLE duly_workers ADD COLUMN engine TEXT;
