"""The tests of the project. The tests of duly run them in a separate process."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO
from unittest import mock, skipIf, skipUnless

from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection
from django.test import TestCase, TransactionTestCase

from duly import BadOption
from duly.integrations.django.models import Execution, Run
from duly.integrations.django.periodic import PeriodicTaskScheduler
from duly.integrations.django.testing import drain
from tests.integrations.django.api import task_backends
from tests.integrations.django.users import tasks

LEFT_OPEN: list[Iterator[bytes]] = []
SOON = 30.0
is_in_memory = connection.vendor == "sqlite" and "USERS_TEST_NAME" not in os.environ
FIRED = {"once", "once on the loop", "in transaction"}


def tick_until(is_done: Callable[[], bool]) -> None:
    """Run the scheduler until a condition holds. Schedules are due every second."""
    until = time.monotonic() + SOON
    while not is_done():
        assert time.monotonic() < until
        PeriodicTaskScheduler().tick()
        time.sleep(0.05)


def groups() -> set[str]:
    return set(Group.objects.values_list("name", flat=True))


class ScheduledTasks:
    """Tests for both kinds of Django test cases."""

    def test_a_tick_fires_schedules_and_their_tasks_run(self):
        tick_until(lambda: groups() == FIRED)

        assert {run.state for run in Execution.objects.all() if "once" in run.task} == {"succeeded"}

    def test_a_tick_hands_plain_tasks_to_their_backend(self):
        task_backends["dummy"].clear()

        tick_until(lambda: bool(task_backends["dummy"].results))

        assert task_backends["dummy"].results[0].task.func is tasks.add_plainly.func

    def test_an_execution_that_was_delivered_twice_runs_once(self):
        sent = []
        with mock.patch.object(
            type(task_backends["immediate"]), "enqueue", lambda *call: sent.append(call)
        ):
            tick_until(lambda: bool(sent))
        _, task, args, kwargs = sent[0]
        first = task.call(*args, **kwargs)

        assert (first is None, task.call(*args, **kwargs)) == (False, None)

    def test_the_scheduler_command_works_in_this_process(self):
        command = "duly.integrations.django.periodic.PeriodicTaskScheduler.run"
        with mock.patch(command) as run:
            call_command("run_scheduler", interval=1)

        run.assert_called_once_with()

    def test_a_locked_resource_is_released(self):
        with task_backends["default"].app.lock("resource"):
            pass
        with task_backends["default"].app.lock("resource"):
            pass

    def test_a_request_starts_no_scheduler(self):
        self.client.get("/")

        assert "duly-scheduler" not in {thread.name for thread in threading.enumerate()}

    def test_commands_show_the_test_database(self):
        result = tasks.add.enqueue("listed")
        out = StringIO()

        call_command("duly", "runs", "list", "--json", stdout=out)

        assert result.id in out.getvalue()


class Inside(ScheduledTasks, TestCase):
    """Tests in a transaction, which is rolled back."""

    def test_tasks_run_and_are_undone(self):
        result = tasks.add.enqueue("inside")

        assert drain() == 1
        result.refresh()
        assert result.return_value == "inside"
        assert groups() == {"inside"}
        assert Run.objects.count() == 1

    def test_tasks_run_again(self):
        assert Run.objects.count() == 0
        self.test_tasks_run_and_are_undone()

    def test_a_worker_is_refused(self):
        with self.assertRaisesRegex(BadOption, r"testing\.drain"):  # noqa: PT027 - as users do
            task_backends["default"].app.worker()


class Committed(ScheduledTasks, TransactionTestCase):
    """Tests that commit. Django empties the tables after each of them."""

    def test_tables_are_empty_at_first(self):
        assert (Run.objects.count(), groups()) == (0, set())
        tasks.add.enqueue("committed")

        assert drain() == 1
        assert Run.objects.count() == 1
        assert list(task_backends["default"].app.store.audit(1)) == []

    def test_tables_are_empty_again(self):
        self.test_tables_are_empty_at_first()

    @skipIf(is_in_memory, "no worker can reach it")
    def test_workers_run_tasks_on_connections_of_their_own(self):
        result = tasks.add.enqueue("by a worker")
        task_backends["default"].app.worker().drain(timeout=SOON)

        result.refresh()
        assert result.return_value == "by a worker"

    @skipIf(is_in_memory, "no worker can reach it")
    def test_a_transaction_in_a_worker_sees_its_own_tasks(self):
        result = tasks.add_by_another.enqueue("by another")
        task_backends["default"].app.worker().drain(timeout=SOON)

        result.refresh()
        assert result.return_value == "READY"
        assert groups() == {"by another"}

    @skipIf(is_in_memory, "no worker can reach it")
    def test_the_worker_command_works_on_the_test_database(self):
        result = tasks.add.enqueue("by a process")

        call_command("duly", "worker", "--drain")

        result.refresh()
        assert result.return_value == "by a process"

    @skipIf(is_in_memory, "the dashboard cannot reach it")
    def test_the_dashboard_shows_the_test_database(self):
        result = tasks.add.enqueue("shown")
        self.client.force_login(User.objects.create_superuser("ann"))

        page = self.client.get("/duly/runs")

        assert result.id in page.content.decode()

    @skipIf(is_in_memory, "the dashboard cannot reach it")
    def test_a_live_page_of_the_dashboard_may_be_left_open(self):
        result = tasks.add.enqueue("shown")
        self.client.force_login(User.objects.create_superuser("ann"))

        live = self.client.get("/duly/runs", headers={"accept": "text/event-stream"})
        parts = iter(live.streaming_content)
        LEFT_OPEN.append(parts)

        assert result.id in next(parts).decode()

    @skipUnless(is_in_memory, "a worker could reach others")
    def test_the_worker_command_is_refused_in_memory(self):
        with self.assertRaisesRegex(ImproperlyConfigured, "in memory"):  # noqa: PT027 - as above
            call_command("duly", "worker", "--drain")

    def test_the_scheduler_command_fires_on_the_test_database(self):
        schedulers = []
        begin = PeriodicTaskScheduler.__init__

        def noted(scheduler, *args):
            begin(scheduler, *args)
            schedulers.append(scheduler)

        def end():
            until = time.monotonic() + SOON
            while not (schedulers and groups() >= FIRED) and time.monotonic() < until:
                time.sleep(0.05)
            connection.close()
            schedulers[0].stop()

        ending = threading.Thread(target=end)
        ending.start()
        with mock.patch.object(PeriodicTaskScheduler, "__init__", noted):
            call_command("run_scheduler", interval=1)
        ending.join()

        assert groups() >= FIRED
