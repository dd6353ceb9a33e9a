-- testing: separate databases for users' tests. Their time advances only when a test advances it.

-- :name clock_table
CREATE TABLE duly_test_clock (now timestamptz NOT NULL)

-- :name clock_begins
INSERT INTO duly_test_clock VALUES (duly_now())

-- :name clock_function
CREATE OR REPLACE FUNCTION duly_now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT now FROM duly_test_clock'

-- :name clock_time
SELECT duly_microseconds(now) FROM duly_test_clock

-- :name clock_advance
UPDATE duly_test_clock SET now = now + %(microseconds)s::float8 * interval '1 microsecond'
