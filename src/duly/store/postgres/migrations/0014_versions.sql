-- Versions: which one of the application a worker runs, if it tells one, and of duly and Python.

ALTER TABLE duly_workers ADD COLUMN version text;
ALTER TABLE duly_workers ADD COLUMN engine text;
