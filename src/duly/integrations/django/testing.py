"""For tests of projects: run tasks on Django's own connection, also inside a `TestCase`."""

from asgiref.sync import async_to_sync

from duly.integrations.django.backend import backend_of
from duly.integrations.django.bodies import ON_CALLERS_CONNECTION
from duly.runtime.inline import InlineWorker


def drain(backend: str = "default") -> int:
    """Run what is ready, one after the other, in this thread; return how many attempts that took.

    Nothing is committed but what the caller commits. Tasks that wait for a later time still do.
    """
    found = backend_of(backend)
    found.tell_ends()
    app = found.app
    worker = InlineWorker(app.store, app.registry, app.bus, awaiting=async_to_sync)
    token = ON_CALLERS_CONNECTION.set(True)
    try:
        return worker.drain()
    finally:
        ON_CALLERS_CONNECTION.reset(token)
