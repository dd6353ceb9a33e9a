-- Versions: that of a worker's application, if it names one, and those of duly and Python.

ALTER TABLE duly_workers ADD COLUMN version TEXT;
ALTER TABLE duly_workers ADD COLUMN engine TEXT;
