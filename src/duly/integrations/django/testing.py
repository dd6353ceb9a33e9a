"""For tests of projects: run tasks on Django's own connection, also inside a `TestCase`."""

from duly.integrations.django.backend import backend_of
from duly.integrations.django.inline import inline_worker


def drain(backend: str = "default") -> int:
    """Run what is ready, one after the other, in this thread; return how many attempts that took.

    Nothing is committed but what the caller commits. Tasks that wait for a later time still do.
    """
    found = backend_of(backend)
    found.tell_ends()
    with inline_worker(found.app) as worker:
        return worker.drain()
