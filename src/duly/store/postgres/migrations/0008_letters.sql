-- Letters say which guard keeps them, whose application can send them again, which error they have,
-- and why somebody ended them.

ALTER TABLE duly_letters
    ADD COLUMN namespace text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN application text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN fingerprint text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN reason text;
