"""Test support for projects: run tasks on Django's own connection, also inside a `TestCase`."""

from duly.integrations.django.backend import backend_of
from duly.integrations.django.inline import inline_worker


def drain(backend: str = "default") -> int:
    """Run ready tasks one after another in this thread. Return how many attempts ran.

    Nothing is committed unless the caller commits. Tasks scheduled for a later time keep waiting.
    """
    found = backend_of(backend)
    found.tell_ends()
    with inline_worker(found.app) as worker:
        return worker.drain()
