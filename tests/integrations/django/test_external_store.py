"""The store on Django's own connections: each thread has one, with a transaction of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection, connections, transaction

from duly.errors import LockBusy, SchemaMismatch
from duly.store.store_factory import open_store
from tests.integrations.django import tasks
from tests.servers.processes import wait_until

pytestmark = pytest.mark.usefixtures("backend")
SOON = 20.0
many_writers = pytest.mark.stores("postgres")


def in_a_thread(function):
    """Run a function in a thread with a connection of Django's own, which ends with it."""

    def run():
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(SOON)


@many_writers
def test_what_one_thread_writes_does_not_end_with_the_transaction_of_another(backend):
    first, second = (backend.app.runs.get(tasks.add.enqueue(n).id) for n in (1, 2))
    is_open, may_end = threading.Event(), threading.Event()

    def cancel_and_roll_back():
        with transaction.atomic():
            first.cancel()
            is_open.set()
            assert may_end.wait(SOON)
            transaction.set_rollback(True)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(in_a_thread, cancel_and_roll_back)
        assert is_open.wait(SOON)
        in_a_thread(second.cancel)
        may_end.set()
        other.result(SOON)

    assert (first.refresh().state, second.refresh().state) == ("queued", "cancelled")


@many_writers
def test_threads_that_write_at_once_each_keep_to_their_own_transaction(backend):
    results = [tasks.add.enqueue(number) for number in range(40)]
    runs = [backend.app.runs.get(result.id) for result in results]
    together = threading.Barrier(4)

    def cancel(mine, *, is_kept):
        together.wait(SOON)
        for run in mine:
            with transaction.atomic():
                run.cancel()
                transaction.set_rollback(not is_kept)

    with ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(
                in_a_thread,
                lambda place=place: cancel(runs[place::4], is_kept=place % 2 == 0),
            )
            for place in range(4)
        ]
        for future in futures:
            future.result(SOON)

    states = [run.refresh().state for run in runs]
    assert states == ["cancelled", "queued"] * 20


@many_writers
def test_a_write_leaves_the_planners_settings_of_the_transaction_as_they_were(backend):
    run = backend.app.runs.get(tasks.add.enqueue(1).id)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        run.cancel()
        cursor.execute(
            "SELECT current_setting('enable_seqscan'), current_setting('enable_bitmapscan'),"
            " current_setting('jit')"
        )
        settings = cursor.fetchone()

    assert run.refresh().state == "cancelled"
    assert settings == ("on", "off", "on")


def test_a_lock_is_seen_by_others_while_a_transaction_is_open(backend, project):
    other = open_store(project)
    app = backend.app
    with app.lock("billing"), transaction.atomic():
        tasks.add.enqueue(1)
        assert [lock.name for lock in other.list_locks("", 9)] == ["billing"]
    assert other.list_locks("", 9) == []
    other.close()


@many_writers
def test_a_lock_taken_inside_of_a_transaction_keeps_others_out(backend):
    app = backend.app

    def try_it():
        with app.lock("billing", timeout=0):
            pass

    with transaction.atomic():
        tasks.add.enqueue(1)
        with app.lock("billing"), pytest.raises(LockBusy):
            in_a_thread(try_it)


def test_a_lock_inside_of_a_transaction_waits_for_nobody(backend):
    with transaction.atomic():
        tasks.add.enqueue(1)
        with backend.app.lock("billing", timeout=0) as held:
            assert held.fence >= 1


def listens(url: str) -> bool:
    """Say whether somebody listens in this database."""
    asked = """
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND query ILIKE 'listen%'
    """
    with psycopg.connect(url) as connection:
        return bool(connection.execute(asked).fetchone()[0])


@many_writers
def test_workers_hear_of_what_was_resumed_when_that_commits(backend, project):
    heard = threading.Event()
    backend.app.queues.pause("default")
    listener = open_store(project)
    end = listener.listen(heard.set)
    wait_until(lambda: listens(project), seconds=SOON, what="it listens")

    def is_quiet_until_the_commit() -> bool:
        with transaction.atomic():
            heard.clear()
            backend.app.queues.resume("default")
            is_quiet = not heard.wait(0.1)
            # Something that was said before came late: look again.
            transaction.set_rollback(not is_quiet)
        return is_quiet

    wait_until(is_quiet_until_the_commit, seconds=SOON, what="nothing is heard before the commit")
    assert heard.wait(SOON)
    end()
    listener.close()


def test_two_applications_share_djangos_connection(backend):
    from duly.integrations.django.app import DjangoDuly  # noqa: PLC0415 - needs settings

    other = DjangoDuly("default")
    for _ in range(10):
        tasks.add.enqueue(1)
        backend.app.runs.list()
        other.runs.list()
        other.queues.pause("default")
        backend.app.queues.resume("default")
    assert len(other.runs.list()) == 10


def test_tables_that_a_newer_duly_made_are_left_alone(backend):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE duly_schema SET oldest_code = 99")
    backend.app._external_store = None
    with pytest.raises(SchemaMismatch, match="upgrade duly here"):
        tasks.add.enqueue(1)
