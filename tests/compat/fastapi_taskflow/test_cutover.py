"""The tables of fastapi-taskflow: a manager that starts moves each row to duly, once."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from duly.compat.fastapi_taskflow.cutover import TASK_ID_TAG
from duly.task import Task
from tests.compat.fastapi_taskflow.conftest import serving
from tests.compat.fastapi_taskflow.left_behind import LeftBehind
from tests.servers.processes import wait_until

SOON = 20.0


@pytest.fixture
def left(store_url):
    """The tables of fastapi-taskflow in the database of the test."""
    with LeftBehind(store_url) as left:
        yield left


@pytest.fixture
def ran():
    """Return a list of the arguments of the test's task."""
    return []


@pytest.fixture
def manager(manager_of, ran):
    """A manager with one task."""
    manager = manager_of(requeue_pending=True)

    @manager.task(name="sync_inventory", requeue_on_interrupt=True)
    def sync_inventory(product_id: int, note: str = "") -> None:
        ran.append((product_id, note))

    return manager


def wait_for(ran, count):
    wait_until(lambda: len(ran) >= count, seconds=SOON, what=f"{count} have run")


def test_a_pending_task_runs_with_its_arguments(manager, left, ran):
    task_id = left.pending("sync_inventory", [1], {"note": "again"})

    with serving(manager):
        wait_for(ran, 1)
        (run,) = manager.duly.runs.list()
        run.result(timeout=SOON)

    assert ran == [(1, "again")]
    assert left.rows() == []
    assert json.loads(run.record.tags)[TASK_ID_TAG] == task_id


def test_a_start_that_finds_nothing_new_moves_nothing(manager, left, ran):
    left.pending("sync_inventory", [1])
    for _ in range(2):
        with serving(manager):
            wait_for(ran, 1)

    assert len(manager.duly.runs.list()) == 1


def test_a_pending_task_that_succeeded_before_the_stop_does_not_run_again(manager, left, ran):
    left.pending("sync_inventory", [1], status="success")
    left.pending("sync_inventory", [2], status="interrupted")

    with serving(manager):
        wait_for(ran, 1)

    assert ran == [(2, "")]
    assert left.rows() == []


def test_a_one_time_task_keeps_its_options_and_waits_for_its_time(manager, left):
    at = datetime.now(UTC) + timedelta(days=3)
    left.scheduled("mail-7", "sync_inventory", at, [7], priority=4, key="k", tags={"who": "ann"})

    with serving(manager) as client:
        (waiting,) = client.portal.call(manager.list_scheduled)
        assert (waiting.run_key, waiting.func_name, waiting.fire_at) == (
            "mail-7",
            "sync_inventory",
            at,
        )
        assert (waiting.priority, waiting.idempotency_key, waiting.tags) == (4, "k", {"who": "ann"})
        assert waiting.kwargs == {"product_id": 7}
        assert client.portal.call(manager.cancel_scheduled, "mail-7")
    assert left.rows() == []


def test_a_one_time_task_whose_time_has_passed_runs_at_once(manager, left, ran):
    left.scheduled("late", "sync_inventory", datetime.now(UTC) - timedelta(hours=1), [7])

    with serving(manager):
        wait_for(ran, 1)

    assert ran == [(7, "")]


def test_a_task_that_was_scheduled_later_under_the_same_key_replaces_the_old_row(
    manager, left, ran
):
    soon, late = (datetime.now(UTC) + timedelta(days=days) for days in (1, 2))
    with serving(manager) as client:
        schedule = lambda: manager.schedule_once(  # noqa: E731 - called on the loop
            next(iter(manager._registrar._tasks)), 2, run_at=late, run_key="mail"
        )
        client.portal.call(schedule)
    left.scheduled("mail", "sync_inventory", soon, [1])

    with serving(manager) as client:
        (waiting,) = client.portal.call(manager.list_scheduled)

    assert (waiting.fire_at, waiting.kwargs) == (late, {"product_id": 2})
    assert left.rows() == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("renamed", [1]), "'renamed'"),
        (("sync_inventory", ["datetime.date(2026, 1, 1)", 2, 3]), "do not fit"),
        (("sync_inventory", []), "do not fit"),
    ],
)
def test_a_row_that_cannot_be_moved_stays_and_the_log_names_it(
    manager, left, ran, caplog, row, reason
):
    task_id = left.pending(*row)
    good = left.pending("sync_inventory", [9])

    with caplog.at_level(logging.INFO, "duly"), serving(manager):
        wait_for(ran, 1)

    assert left.rows() == [task_id] != [good]
    assert ran == [(9, "")]
    (warning,) = [each.getMessage() for each in caplog.records if "stays" in each.getMessage()]
    assert task_id in warning
    assert reason in warning
    assert "date(2026" not in caplog.text, "arguments may be secret"
    assert "1 rows of fastapi-taskflow were moved" in caplog.text


@pytest.mark.parametrize("tags", ["{", "[" * 100_000], ids=["cut off", "nested"])
def test_a_row_that_cannot_be_read_does_not_prevent_the_start(manager, left, ran, tags):
    left.scheduled("odd", "sync_inventory", datetime.now(UTC), [1])
    left.execute("UPDATE task_scheduled_once SET tags_json = :tags", [{"tags": tags}])
    left.pending("sync_inventory", [9])

    with serving(manager):
        wait_for(ran, 1)

    assert left.rows() == ["odd"]
    assert ran == [(9, "")]


def test_a_row_whose_key_belongs_to_a_cancelled_run_stays(manager, left, ran):
    with serving(manager):
        task = manager.duly.registry.get("sync_inventory")
        bound = Task(manager.duly, task).using(key="monthly", delay=3600)
        run = bound.enqueue(1)
        run.cancel()
    left.scheduled("again", "sync_inventory", datetime.now(UTC), [1], key="monthly")

    with serving(manager):
        pass

    assert left.rows() == ["again"]
    assert ran == []


def test_a_row_that_stayed_is_moved_once_its_task_is_registered(manager_of, left, ran):
    left.pending("renamed", [1])
    with serving(manager_of()):
        assert len(left.rows()) == 1
    later = manager_of()

    @later.task(name="renamed")
    def anything(product_id: int) -> None:
        ran.append(product_id)

    with serving(later):
        wait_for(ran, 1)

    assert left.rows() == []


def test_pickled_arguments_are_never_read(manager, left, ran, caplog):
    task_id = left.pending("sync_inventory", [], token="gAAAA")  # noqa: S106 - not a real one

    with serving(manager):
        pass

    assert (left.rows(), ran) == ([task_id], [])
    assert "does not unpickle" in caplog.text


def test_an_unrelated_table_of_the_same_name_is_not_changed(manager, left, store_url):
    left.execute("DROP TABLE task_pending_requeue")
    left.execute("CREATE TABLE task_pending_requeue (task_id text, something text)")
    left.execute("INSERT INTO task_pending_requeue VALUES ('a', 'b')")

    with serving(manager):
        pass

    assert left.rows() == ["a"]


def test_tables_of_a_version_without_queues_are_moved(manager, left, ran):
    left.execute("ALTER TABLE task_pending_requeue DROP COLUMN queue")
    left.pending("sync_inventory", [1], queue=None)

    with serving(manager):
        wait_for(ran, 1)

    assert (left.rows(), ran) == ([], [(1, "")])


def test_managers_that_start_at_the_same_time_move_each_row_once(manager_of, left):
    count, ran = 50, []
    for number in range(count):
        left.pending("sync_inventory", [number])
        left.scheduled(f"k{number}", "sync_inventory", datetime.now(UTC), [count + number])
    starts = threading.Barrier(3)

    def start() -> None:
        manager = manager_of()

        @manager.task(name="sync_inventory")
        def sync_inventory(product_id: int) -> None:
            ran.append(product_id)

        starts.wait(SOON)
        with serving(manager):
            wait_for(ran, 2 * count)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SOON)

    assert sorted(ran) == list(range(2 * count))
    assert left.rows() == []


KILLED = """
import asyncio, sys
from duly import faultpoints
from duly.compat.fastapi_taskflow import TaskManager
from duly import Duly

faultpoints.arm_from_environment()
manager = TaskManager(duly=Duly(sys.argv[1]))

@manager.task(name="sync_inventory")
def sync_inventory(product_id: int) -> None: ...

asyncio.run(manager.startup())
"""


@pytest.mark.process
@pytest.mark.parametrize("point", ["transaction.before_commit", "transaction.after_commit"])
def test_a_manager_that_is_killed_during_the_move_moves_each_row_once(
    manager, left, ran, store_url, point
):
    count = 3
    for number in range(count):
        left.pending("sync_inventory", [number])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, store_url],
        check=False,
        timeout=SOON,
        env=os.environ | {"DULY_FAULTPOINTS": f"{point}=kill"},
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(left.rows()) == (count if point == "transaction.before_commit" else 0)

    with serving(manager):
        wait_for(ran, count)

    assert sorted(ran) == [(number, "") for number in range(count)]


@pytest.mark.stores("postgres")
def test_a_table_that_another_role_owns_is_not_read(manager, left, ran, store_url):
    left.pending("sync_inventory", [1])
    role = f"stranger_{uuid4().hex}"
    left.execute(f"CREATE ROLE {role}")
    with ExitStack() as stack:
        stack.callback(left.execute, f"DROP ROLE {role}")
        stack.callback(left.execute, f"DROP OWNED BY {role}")
        left.execute(f"ALTER TABLE task_pending_requeue OWNER TO {role}")

        with serving(manager):
            assert len(left.rows()) == 1

    assert ran == []


def test_rows_of_several_batches_are_all_moved(manager, left, ran):
    count = 450  # More than two batches.
    left.execute(
        "INSERT INTO task_pending_requeue (task_id, func_name, args_json)"
        " VALUES (:task_id, 'sync_inventory', :args)",
        [{"task_id": str(uuid4()), "args": f"[{number}]"} for number in range(count)],
    )

    with serving(manager):
        wait_for(ran, count)

    assert sorted(product for product, _ in ran) == list(range(count))
