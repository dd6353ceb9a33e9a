-- Letters say which guard keeps them, whose application can send them again, which error they have,
-- and why somebody ended them.

ALTER TABLE duly_letters ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE duly_letters ADD COLUMN application TEXT NOT NULL DEFAULT '';
ALTER TABLE duly_letters ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
ALTER TABLE duly_letters ADD COLUMN reason TEXT;
