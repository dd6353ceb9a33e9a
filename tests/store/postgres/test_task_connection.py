"""The operations that a body on PostgreSQL can do with its connection, and those it cannot."""

import threading
from contextlib import suppress

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row

from duly.errors import BadOption, TransactionEnded
from duly.store.ops.runs import Settled
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import enqueue_and_claim, state_of, success

TIMEOUT = 10.0
ENDING = (
    "SELECT 1; COMMIT",
    "commit and chain",
    "PREPARE TRANSACTION 'x'",
    "SELECT ';'; -- and\n rollback; SELECT 2",
)


@pytest.fixture(autouse=True)
def _notes(connection):
    """A table of the application."""
    connection.execute("CREATE TABLE notes (number integer)")
    connection.commit()


def noted(connection) -> list[int]:
    """Return the committed rows of the table."""
    connection.rollback()
    return [number for (number,) in connection.execute("SELECT number FROM notes ORDER BY 1")]


def backend_of(section) -> int:
    """Return the id of the server process of a task's transaction."""
    return section.connection.info.backend_pid


class TestAllowed:
    """Every feature of the driver can be used."""

    def test_a_body_can_use_statements_cursors_and_rows_of_every_kind(self, store, connection):
        held = enqueue_and_claim(store)
        section = store.task_transaction()
        lent = section.connection

        table = sql.Identifier("notes")
        lent.execute(sql.SQL("INSERT INTO {} VALUES (%s)").format(table), [1])
        with lent.cursor() as cursor:
            cursor.executemany("INSERT INTO notes VALUES (%s)", [(2,), (3,)])
        with lent.cursor().copy("COPY notes FROM STDIN") as copy:
            copy.write_row([4])
        with suppress(ZeroDivisionError), lent.transaction():
            lent.execute("INSERT INTO notes VALUES (5)")
            raise ZeroDivisionError
        with lent.pipeline():
            lent.execute("INSERT INTO notes VALUES (6)")
        named = lent.cursor(row_factory=dict_row).execute("SELECT 7 AS seven").fetchone()
        lent.row_factory = namedtuple_row
        whole = lent.execute("SELECT 8 AS eight").fetchone()
        with lent.cursor("served") as served:
            rows = [row.number for row in served.execute("SELECT number FROM notes ORDER BY 1")]
        streaming = lent.cursor()
        streamed = [row.number for row in streaming.stream("SELECT 9 AS number")]
        lent.cursor_factory = psycopg.ClientCursor
        merged = lent.execute("SELECT %s", ["it's"]).fetchone()
        done = section.settle_and_commit(success(held))

        assert isinstance(lent, psycopg.Connection)
        assert (named, whole.eight, streamed, tuple(merged)) == ({"seven": 7}, 8, [9], ("it's",))
        assert rows == [1, 2, 3, 4, 6]
        assert done is Settled.DONE
        assert noted(connection) == [1, 2, 3, 4, 6]
        assert (lent.closed, served.closed, streaming.closed) == (True, True, True)
        assert "closed" in repr(lent)

    def test_settings_of_a_body_do_not_affect_the_next_body(self, store):
        section = store.task_transaction()
        section.connection.row_factory = dict_row
        section.connection.prepare_threshold = 0
        for _ in range(3):
            section.connection.execute("SELECT 1 AS one")
        first = backend_of(section)
        section.rollback()
        later = store.task_transaction()

        assert later.connection.execute("SELECT 1 AS one").fetchone() == (1,)
        assert backend_of(later) == first
        later.rollback()


class TestRefused:
    """Every way to end the transaction is refused."""

    def test_a_text_that_ends_the_transaction_is_refused_by_every_kind_of_cursor(self, store):
        section = store.task_transaction()
        lent = section.connection

        def copy(text: str) -> None:
            with lent.cursor().copy(text):
                pass

        ways = {
            "plainly": lent.execute,
            "composed": lambda text: lent.execute(sql.SQL(text).format()),
            "by many": lambda text: lent.cursor().executemany(text, [()]),
            "by rows": lambda text: list(lent.cursor().stream(text)),
            "by copy": copy,
        }
        for kind in (psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor):
            lent.cursor_factory = kind
            for way in ways.values():
                for text in ENDING:
                    with pytest.raises(BadOption, match="ends with its run"):
                        way(text)

        assert lent.info.transaction_status == TransactionStatus.INTRANS
        section.rollback()

    def test_a_change_of_the_commit_mode_is_refused(self, store):
        section = store.task_transaction()
        lent = section.connection

        with pytest.raises(BadOption):
            lent.autocommit = True
        with pytest.raises(BadOption):
            lent.set_autocommit(True)
        with pytest.raises(BadOption), lent:
            pass
        with pytest.raises(BadOption):
            lent.tpc_begin("x")
        section.rollback()

    def test_a_commit_inside_code_that_the_server_runs_is_refused(self, store):
        section = store.task_transaction()

        with pytest.raises(psycopg.errors.InvalidTransactionTermination):
            section.connection.execute("DO $$ BEGIN COMMIT; END $$")
        section.rollback()


class TestMisuse:
    """A body can use libpq itself. The consequences are not taken for a success."""

    @pytest.mark.parametrize(
        "text", [b"COMMIT", b"ROLLBACK", b"COMMIT; BEGIN", b"COMMIT AND CHAIN"]
    )
    def test_a_transaction_that_the_body_ended_is_not_committed(self, store, connection, text):
        held = enqueue_and_claim(store)
        section = store.task_transaction()
        section.connection.execute("INSERT INTO notes VALUES (1)")
        backend = backend_of(section)
        section.connection.pgconn.exec_(text)
        is_open = section.connection.info.transaction_status == TransactionStatus.INTRANS
        if is_open:
            section.connection.execute("INSERT INTO notes VALUES (2)")
        else:
            with pytest.raises(TransactionEnded, match="ended its own"):
                section.connection.execute("INSERT INTO notes VALUES (2)")
        with pytest.raises(TransactionEnded, match="ended its own"):
            section.settle_and_commit(success(held))

        assert state_of(store, held.run_id) == "running"
        assert 2 not in noted(connection)
        assert has_ended(connection, backend)

    def test_a_connection_whose_transaction_the_body_ended_is_not_used_again(
        self, store, connection
    ):
        section = store.task_transaction()
        backend = backend_of(section)
        psycopg.Cursor(section.connection)
        section.connection.pgconn.exec_(b"ROLLBACK")
        section.rollback()

        assert has_ended(connection, backend)

    @pytest.mark.parametrize("what", ["pgconn", "cursor", "info"])
    def test_a_connection_to_which_the_body_keeps_a_reference_is_not_used_again(
        self, store, connection, what
    ):
        section = store.task_transaction()
        backend = backend_of(section)
        kept = (
            section.connection.cursor() if what == "cursor" else getattr(section.connection, what)
        )

        section.rollback()

        assert has_ended(connection, backend)
        assert kept is not None

    def test_a_commit_waits_for_a_call_of_another_thread(self, store, connection):
        held = enqueue_and_claim(store)
        section = store.task_transaction()
        lent = section.connection
        said: list[BaseException | None] = []

        def write_on() -> None:
            try:
                for number in range(10_000):
                    lent.execute("INSERT INTO notes VALUES (%s)", [number])
                    said.append(None)
            except Exception as error:  # noqa: BLE001 - the test compares it
                said.append(error)

        late = threading.Thread(target=write_on)
        late.start()
        wait_until(lambda: len(said) > 10, seconds=TIMEOUT, what="some rows")
        done = section.settle_and_commit(success(held))
        late.join(TIMEOUT)

        assert done is Settled.DONE
        assert isinstance(said[-1], TransactionEnded)
        assert noted(connection) == list(range(len(said) - 1))

    def test_a_query_that_is_still_open_is_not_committed(self, store, connection):
        held = enqueue_and_claim(store)
        section = store.task_transaction()
        section.connection.execute("INSERT INTO notes VALUES (1)")
        rows = section.connection.cursor().stream("SELECT generate_series(1, 100000)")
        next(rows)

        with pytest.raises(TransactionEnded, match="still open on its connection"):
            section.settle_and_commit(success(held))

        rows.close()
        assert noted(connection) == []


def has_ended(connection, backend: int) -> bool:
    """Wait until a server process has ended."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    wait_until(
        lambda: connection.execute(query, [backend]).fetchone() == (0,) or connection.rollback(),
        seconds=TIMEOUT,
        what="the server process ends",
    )
    return True
