"""The texts that would end a transaction."""

import pytest

from duly.store.postgres.transaction_scan import find_transaction_end

ENDING = [
    "COMMIT",
    "commit;",
    "CoMmIt AND CHAIN",
    "  \n COMMIT WORK",
    "-- harmless\ncommit",
    "/* one /* in another */ still */ END",
    "rollback",
    "ROLLBACK WORK",
    "ROLLBACK TRANSACTION AND NO CHAIN",
    "ROLLBACK PREPARED 'x'",
    "abort",
    "BEGIN",
    "begin isolation level serializable",
    "START TRANSACTION READ ONLY",
    "PREPARE TRANSACTION 'x'",
    "COMMIT PREPARED 'x'",
    "SELECT 1; COMMIT",
    "SELECT 'a;b'; commit; SELECT 2",
    "SELECT E'it\\'s'; COMMIT",
    "SELECT $a$ ; $a$; /* x */ COMMIT",
    "INSERT INTO t VALUES (1); -- and\nEND",
    "; ; COMMIT",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END; COMMIT",
]
HARMLESS = [
    "",
    "SELECT 1",
    "SELECT 'COMMIT'",
    "SELECT E'\\'; COMMIT; --'",
    'SELECT "commit" FROM "rollback"',
    "SELECT commit FROM t",
    "SELECT CASE WHEN a THEN b END",
    "SELECT CASE WHEN a THEN b END; SELECT 2",
    "-- COMMIT\nSELECT 1",
    "/* ; COMMIT; */ SELECT 1",
    "ROLLBACK TO x",
    "ROLLBACK WORK TO SAVEPOINT x",
    "rollback transaction to x; RELEASE x",
    "SAVEPOINT x",
    "PREPARE plan AS SELECT 1",
    "DO $$ BEGIN COMMIT; END $$",
    "DO $body$ BEGIN PERFORM $$;$$; END $body$; SELECT 1",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END",
    "CREATE OR REPLACE PROCEDURE p() BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END;",
    "CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1; SELECT 2)",
    "SELECT 1e5; SELECT $1",
]


@pytest.mark.parametrize("script", ENDING)
def test_a_statement_that_ends_the_transaction_is_found(script):
    assert find_transaction_end(script.encode()) is not None


@pytest.mark.parametrize("script", HARMLESS)
def test_a_script_that_only_looks_like_an_end_of_the_transaction_is_accepted(script):
    assert find_transaction_end(script.encode()) is None


def test_the_end_of_a_transaction_is_named_by_its_first_words():
    assert find_transaction_end(b"SELECT 1; prepare transaction 'x'") == "PREPARE TRANSACTION"
