"""Runs tasks in the calling thread, on Django's own connection, for tests of projects."""

from collections.abc import Iterator
from contextlib import contextmanager

from asgiref.sync import async_to_sync

from duly import Duly
from duly.integrations.django.app import DjangoDuly
from duly.integrations.django.task_body import ON_EXTERNAL_CONNECTION
from duly.worker.inline_worker import InlineWorker


@contextmanager
def inline_worker(app: Duly) -> Iterator[InlineWorker]:
    """Yield a worker that runs ready runs, or one given run, in this thread."""
    store = app.store_on_django_connection() if isinstance(app, DjangoDuly) else app.store
    token = ON_EXTERNAL_CONNECTION.set(True)
    try:
        yield InlineWorker(store, app.registry, app.bus, awaiting=async_to_sync)
    finally:
        ON_EXTERNAL_CONNECTION.reset(token)
