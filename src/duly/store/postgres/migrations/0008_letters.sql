-- Letters get the name of their guard, the application that can send them again, their error, and
-- the reason for which an operator ended them.

ALTER TABLE duly_letters
    ADD COLUMN namespace text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN application text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN fingerprint text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN reason text;
