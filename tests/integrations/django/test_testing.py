"""Tests of users: tasks run on Django's own connection, in memory and inside a `TestCase`."""

import threading
import unittest

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase

from duly.integrations.django.testing import drain
from tests.integrations.django import tasks
from tests.integrations.django.api import TaskResultStatus, task_backends
from tests.integrations.django.project import using


@pytest.fixture
def memory():
    with using(default=":memory:"):
        call_command("migrate", "duly", verbosity=0)
        yield task_backends["default"]


def test_in_memory_tasks_run_on_the_connection_of_the_test(memory):
    good, bad = tasks.add.enqueue(41), tasks.divide.enqueue(1, 0)
    assert good.status == TaskResultStatus.READY
    assert drain() == 2
    good.refresh()
    bad.refresh()
    assert good.return_value == 42
    assert bad.errors[0].exception_class is ZeroDivisionError


def test_a_test_case_rolls_everything_back_at_its_end(backend):
    said = []

    class Case(TestCase):
        def test_it(self):
            result = tasks.add.enqueue(41)
            said.append(drain())
            result.refresh()
            said.append(result.return_value)
            with transaction.atomic():
                tasks.add.enqueue(1)
                transaction.set_rollback(True)
            said.append(drain())

    outcome = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(outcome)
    assert outcome.wasSuccessful(), outcome.errors
    assert said == [1, 42, 0]
    assert backend.app.runs.list() == []


def test_tests_use_only_the_connection_of_django(backend):
    before = set(threading.enumerate())
    with transaction.atomic():
        tasks.add.enqueue(1)
        # The write of this transaction is visible, and no statement waits for it.
        assert drain() == 1
        assert [run.state for run in backend.app.runs.list()] == ["succeeded"]
        transaction.set_rollback(True)
    assert backend.app.runs.list() == []
    assert set(threading.enumerate()) <= before


def test_async_tasks_contexts_and_keys_work_in_a_test_case(backend):
    on_loop = tasks.add_on_the_loop.enqueue(41)
    first, second = tasks.keyed.enqueue(5), tasks.keyed.enqueue(5)
    drain()
    for result in (on_loop, first):
        result.refresh()
    assert on_loop.return_value == 42
    assert first.return_value == 5
    assert second.id == first.id
    context = tasks.tell_attempt.enqueue("word")
    drain()
    context.refresh()
    assert context.return_value == ["word", 1, context.id]


def test_a_task_that_another_task_enqueues_runs_too(backend):
    tasks.enqueue_another.enqueue()
    assert drain() == 2
    assert {run.state for run in backend.app.runs.list()} == {"succeeded"}


def test_the_writes_of_a_task_are_visible_to_the_test(backend):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE said (word varchar(20))")
        tasks.say.enqueue("hello")
        drain()
        cursor.execute("SELECT word FROM said")
        assert cursor.fetchall() == [("hello",)]
