"""The names of the backport of Django's tasks, in all its releases."""

import subprocess
import sys

import pytest

from tests.integrations.django.project import backport

AFTER_0_12 = """
import django_tasks.backends.base
import django_tasks.exceptions as exceptions

for name in ("InvalidTask", "InvalidTaskBackend"):
    setattr(exceptions, name, vars(exceptions).pop(name + "Error"))

from tests.integrations.django import tasks  # Sets Django up.
from duly.integrations.django import scheduled_task, tasks_api

assert tasks_api.InvalidTask is exceptions.InvalidTask
try:
    scheduled_task(cron="0 2 * * *", queue_name="bulk", backend="strict")(tasks.remind)
except tasks_api.InvalidTask as error:
    print(error)
"""


@pytest.mark.skipif(not backport(), reason="Django 6 has tasks of its own")
def test_the_errors_of_the_backport_may_have_the_names_that_they_have_in_django():
    done = subprocess.run(
        [sys.executable, "-c", AFTER_0_12], capture_output=True, text=True, check=False
    )

    assert "bulk" in done.stdout, done.stderr
