"""What joins a body's transaction, its short form for the last part, and its limit."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from time import sleep as pause
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.rows import dict_row

from duly import CONNECTION, BadOption, Duly, Retry, RunConnection, current, wait_for
from duly.context import RunContext
from duly.errors import TransactionEnded
from duly.worker.runners.process_main import PipePort
from tests.servers.processes import wait_until
from tests.worker.application_table import rows, write


class TestJoining:
    """What a body enqueues while its transaction is open is a part of it."""

    @pytest.mark.parametrize("many", [False, True])
    def test_runs_exist_if_the_body_succeeds(self, app, tables, many):
        @app.task(name="other")
        def other(number: int) -> int:
            return number

        @app.task(name="pay", transaction=True, transaction_limit=60, retries=Retry(1, base=0))
        def pay() -> list[str]:
            write()
            if many:
                # More than one statement takes, and for later: that they exist is all.
                later = other.using(delay=600)
                runs = app.enqueue_many(later.call(number) for number in range(2_100))
            else:
                runs = [other.using(key="k").enqueue(1), other.using(key="k").enqueue(1)]
            if current().attempt == 1:
                raise OSError("once more")
            return [run.id for run in runs]

        run = pay.enqueue()
        app.worker().drain(timeout=60)

        children = run.result(timeout=5)
        assert len(set(children)) == (2_100 if many else 1)
        assert len(app.runs.list(task=other, limit=5)) == min(5, len(set(children)))
        assert app.runs.get(children[0]).state == ("queued" if many else "succeeded")
        assert rows(tables) == [(run.id, 2)]

    def test_events_are_sent_if_the_body_succeeds(self, app, tables):
        @app.task(name="waiting")
        def waiting() -> str:
            return wait_for("paid", timeout=3600)

        @app.task(name="pay", transaction=True, retries=Retry(1, base=0))
        def pay() -> list[bool]:
            write()
            said = [app.send_event("paid", attempt) for attempt in (current().attempt, 9)]
            if current().attempt == 1:
                raise OSError("once more")
            return said

        waiter = waiting.enqueue()
        app.worker().drain(timeout=20)
        assert waiter.refresh().state == "queued"
        run = pay.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=5) == [True, False]
        assert rows(tables) == [(run.id, 2)]
        assert waiter.result(timeout=5) == 2

    @pytest.mark.stores("postgres")  # That of SQLite has no such setting.
    def test_what_is_set_on_an_annotated_parameter_is_set_on_this_runs_connection(
        self, app, tables
    ):
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="pay", transaction=True)
        def pay(connection: RunConnection = CONNECTION) -> int:
            connection.row_factory = dict_row
            other.using(connection=connection).enqueue()
            return connection.execute("SELECT 7 AS seven").fetchone()["seven"]

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert run.result(timeout=5) == 7
        assert vars(CONNECTION) == {}
        assert len(app.runs.list(task=other)) == 1
        assert rows(tables) == []

    @pytest.mark.usefixtures("tables")
    def test_nobody_sees_them_before(self, app):
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            other.enqueue()
            seen.append(len(app.runs.list(task=other)))

        seen: list[int] = []
        run = pay.enqueue()
        app.worker().drain(timeout=20)

        run.result(timeout=5)
        assert seen == [0]
        assert len(app.runs.list(task=other)) == 1

    @pytest.mark.usefixtures("tables")
    def test_before_the_transaction_opens_a_run_is_durable_at_once(self, app):
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="pay", transaction=True)
        def pay() -> None:
            other.enqueue()
            write()
            raise OSError("no")

        run = pay.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert len(app.runs.list(task=other)) == 1

    @pytest.mark.usefixtures("tables")
    def test_a_store_of_another_application_has_no_part_in_it(self, app, tmp_path):
        apart = Duly(f"sqlite:///{tmp_path / 'apart.db'}")

        @apart.task(name="other")
        def other() -> None: ...

        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            other.enqueue()
            raise OSError("no")

        run = pay.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert len(apart.runs.list()) == 1
        apart.close()


class TestTheLastPart:
    """`with current().transaction() as connection:` in a task that needs no more than that."""

    def test_it_commits_with_the_completion(self, app, tables):
        @app.task(name="pay")
        def pay() -> str:
            with current().transaction() as connection:
                connection.execute("INSERT INTO once VALUES (1)")
            return "paid"

        run = pay.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=5) == "paid"
        assert tables.rows("SELECT number FROM once") == [(1,)]

    def test_a_block_that_raises_is_undone_though_the_body_goes_on(self, app, tables):
        @app.task(name="pay")
        def pay() -> None:
            with suppress(OSError), current().transaction() as connection:
                connection.execute("INSERT INTO once VALUES (1)")
                raise OSError("no")
            with current().transaction() as connection:
                connection.execute("INSERT INTO once VALUES (2)")

        run = pay.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "succeeded"
        assert tables.rows("SELECT number FROM once") == [(2,)]

    def test_the_event_loop_has_none(self, app):
        @app.task(name="pay")
        async def pay() -> None:
            with current().transaction():
                pass

        run = pay.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert "plain def task" in (run.record.error or "")

    def test_a_process_of_its_own_has_none(self):
        context = RunContext(SimpleNamespace(), PipePort(StringIO(), StringIO()), None)

        with pytest.raises(BadOption, match="executor='process'"), context.transaction():
            pass


class TestTooLong:
    """A transaction keeps others waiting, so it ends in time whatever its body does."""

    def test_it_is_rolled_back_in_the_midst_of_the_body(self, app, tables):
        written, late = threading.Event(), threading.Event()

        @app.task(name="pay", transaction=True, transaction_limit=0.3)
        def pay() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            written.set()
            late.wait(30)  # Nothing strikes a body that waits.

        run = pay.enqueue()
        with app.worker():
            assert written.wait(20)
            tables.execute("INSERT INTO once VALUES (1)")  # Waits for the lock, or for that row.
            is_still_there = run.refresh().state == "running"
            late.set()
            wait_until(lambda: run.refresh().state == "failed", seconds=20, what="it failed")

        assert is_still_there
        assert "TransactionTooLong" in (run.record.error or "")
        assert tables.rows("SELECT number FROM once") == [(1,)]

    def test_what_the_body_writes_afterwards_is_not_committed_either(self, app, tables):
        failures: list[BaseException] = []

        @app.task(name="pay", transaction=True, transaction_limit=0.3)
        def pay() -> None:
            connection = current().connection
            for number in range(200):
                try:
                    connection.execute(f"INSERT INTO once VALUES ({number})")  # noqa: S608
                except Exception as error:  # noqa: BLE001 - it goes on whatever is said
                    failures.append(error)
                pause(0.005)

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert run.refresh().state == "failed"
        assert "TransactionTooLong" in (run.record.error or "")
        assert failures
        assert tables.rows("SELECT number FROM once") == []

    def test_many_rows_of_one_call_are_not_committed_one_by_one(self, app, tables):
        @app.task(name="pay", transaction=True, transaction_limit=0.3)
        def pay() -> None:
            def slowly() -> Iterator[tuple[int]]:
                for number in range(100):
                    pause(0.01)
                    yield (number,)

            marker = "?" if "sqlite" in app.url else "%s"
            cursor = current().connection.cursor()
            cursor.executemany(f"INSERT INTO once VALUES ({marker})", slowly())  # noqa: S608

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert run.refresh().state == "failed"
        assert "TransactionTooLong" in (run.record.error or "")
        assert tables.rows("SELECT number FROM once") == []

    def test_the_next_transaction_is_as_good_as_new(self, app, tables):
        @app.task(name="pay", transaction=True, transaction_limit=0.3, retries=Retry(1, base=0))
        def pay() -> None:
            write()
            if current().attempt == 1:
                pause(1.0)

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert run.refresh().state == "succeeded"
        assert rows(tables) == [(run.id, 2)]


class TestHostileBodies:
    """Whatever a body does with its connection, its worker and the store go on."""

    @pytest.mark.parametrize("shape", ["fetch", "insert", "many"])
    @pytest.mark.stores("sqlite")  # Two threads meet inside that driver.
    def test_expiries_in_the_midst_of_a_call_freeze_nobody(self, app, tables, shape):
        endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r"

        @app.task(name="spin", transaction=True, transaction_limit=0.01)
        def spin() -> None:
            connection = current().connection
            while shape == "insert":
                connection.execute("INSERT INTO ledger VALUES ('a', 1)")
            if shape == "many":
                rows = (("a", number) for number in range(10**9))
                connection.executemany("INSERT INTO ledger VALUES (?, ?)", rows)
            for _ in connection.execute(endless):
                pass

        @app.task(name="plain")
        def plain() -> None: ...

        runs = app.enqueue_many(spin.call() for _ in range(30))
        with app.worker(concurrency=2):
            wait_until(lambda: all(run.refresh().is_final for run in runs), seconds=60, what="end")
            plain.enqueue().result(timeout=20)

        assert all("TransactionTooLong" in (run.record.error or "") for run in runs)
        assert rows(tables) == []

    def test_the_limit_is_an_error_like_any_other(self, app):
        @app.task(
            name="spin",
            transaction=True,
            transaction_limit=0.1,
            retries=Retry(3, on=(OSError,)),
        )
        def spin() -> None:
            current().connection.execute("SELECT 1")
            pause(0.5)

        run = spin.enqueue()
        app.worker().drain(timeout=30)

        assert len(run.refresh().attempts()) == 1

    @pytest.mark.parametrize("act", ["close", "commit", "rollback"])
    def test_its_end_is_not_the_bodys_to_decide(self, app, tables, act):
        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            with suppress(Exception):
                getattr(current().connection, act)()
            raise OSError("no")

        runs = [pay.enqueue() for _ in range(3)]
        app.worker(concurrency=1).drain(timeout=30)

        assert [run.refresh().state for run in runs] == ["failed"] * 3
        assert rows(tables) == []

    @pytest.mark.parametrize("text", ["COMMIT", "rollback", "/* so */ COMMIT"])
    def test_nor_is_it_as_a_text(self, app, tables, text):
        @app.task(name="pay", transaction=True)
        def pay(connection: RunConnection = CONNECTION) -> None:
            write()
            connection.execute(text)

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert "BadOption: " in (run.refresh().record.error or "")
        assert "ends with its run" in (run.record.error or "")
        assert rows(tables) == []

    @pytest.mark.stores("postgres")
    @pytest.mark.parametrize("text", [b"COMMIT", b"ROLLBACK AND CHAIN"])
    def test_a_body_that_ends_it_all_the_same_has_not_succeeded(self, app, tables, text):
        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            current().connection.pgconn.exec_(text)

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert run.refresh().state == "failed"
        assert "TransactionEnded" in (run.record.error or "")
        assert rows(tables) == ([(run.id, 1)] if text == b"COMMIT" else [])

    def test_a_connection_that_got_out_of_its_body_writes_nowhere(self, app, tables):
        kept: list[Any] = []

        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            if kept:
                with pytest.raises(TransactionEnded):
                    kept[0].execute("INSERT INTO ledger VALUES ('late', 0)")
            kept.append(current().connection)

        runs = [pay.enqueue() for _ in range(2)]
        app.worker(concurrency=1).drain(timeout=30)

        with pytest.raises(TransactionEnded):
            kept[1].execute("INSERT INTO ledger VALUES ('late', 0)")
        assert rows(tables) == [(run.id, 1) for run in runs]

    @pytest.mark.usefixtures("tables")
    def test_a_block_within_a_block_is_refused(self, app):
        @app.task(name="pay")
        def pay() -> None:
            with current().transaction(), current().transaction():
                pass

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert "already has an open transaction" in (run.refresh().record.error or "")

    @pytest.mark.stores("postgres")
    def test_what_one_body_has_set_is_not_the_next_ones(self, app, tables):
        tables.execute("CREATE SCHEMA elsewhere")
        tables.execute("CREATE TABLE elsewhere.ledger (run text, fence integer)")

        @app.task(name="first", transaction=True)
        def first() -> None:
            current().connection.execute("SET search_path TO elsewhere, public")
            current().connection.execute("SELECT pg_advisory_lock(7)")

        @app.task(name="second", transaction=True)
        def second() -> None:
            write()

        for task in (first, second):
            task.enqueue()
            app.worker(concurrency=1).drain(timeout=30)

        assert len(rows(tables)) == 1
        assert tables.rows(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
        ) == [(0,)]

    # A strike that comes while Python removes something can only be told of.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.stores("sqlite")
    def test_a_timeout_in_front_of_the_write_lock_leaves_it_to_others(self, app):
        @app.task(name="pay", transaction=True, timeout=0.05)
        def pay() -> None:
            while True:
                current().connection.execute("SELECT 1")

        @app.task(name="plain")
        def plain() -> None: ...

        runs = [pay.enqueue() for _ in range(40)]
        with app.worker(concurrency=4):
            wait_until(lambda: all(run.refresh().is_final for run in runs), seconds=60, what="end")
            plain.enqueue().result(timeout=20)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.stores("sqlite")
    @pytest.mark.parametrize("many", [False, True])
    def test_a_timeout_during_a_statement_is_a_timeout(self, app, many):
        # A destructor that runs just then swallows the timeout, which is repeated after 5 s: the
        # transaction may take longer.
        @app.task(name="pay", transaction=True, transaction_limit=60, timeout=0.1)
        def pay() -> None:
            connection = current().connection
            while True:
                if many:
                    connection.executemany("UPDATE duly_queues SET name = ? WHERE 0", [(1,)])
                else:
                    connection.execute("SELECT 1")

        runs = [pay.enqueue() for _ in range(20)]
        with app.worker(concurrency=1):
            wait_until(lambda: all(run.refresh().is_final for run in runs), seconds=60, what="end")

        assert {(run.state, run.cause) for run in runs} == {("failed", "timed_out")}
