-- Letters get the name of their guard, the application that can send them again, their error, and
-- the reason for which an operator ended them.

ALTER TABLE duly_letters ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE duly_letters ADD COLUMN application TEXT NOT NULL DEFAULT '';
ALTER TABLE duly_letters ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
ALTER TABLE duly_letters ADD COLUMN reason TEXT;
