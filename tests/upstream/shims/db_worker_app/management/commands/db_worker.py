"""`db_worker` of django-tasks-db, as a worker of duly's that ends when nothing is left to do."""

from django.core.management.base import BaseCommand
from django.tasks import task_backends


class Command(BaseCommand):
    """Takes the options that its tests give; those that duly has no counterpart of are refused."""

    def add_arguments(self, parser):
        parser.add_argument("--queue-name", default="default")
        parser.add_argument("--exclude-queues")
        parser.add_argument("--backend", default="default", dest="backend_name")
        parser.add_argument("--batch", action="store_true")
        for ignored in ("--interval", "--startup-delay", "--worker-id"):
            parser.add_argument(ignored)

    def handle(self, *, queue_name, exclude_queues, backend_name, batch, **_options):
        if not batch:
            raise NotImplementedError("the shim works until nothing is left to do")
        app = task_backends[backend_name].app
        queues = None if queue_name == "*" else queue_name
        worker = app.with_own_connections().worker(queues=queues, exclude_queues=exclude_queues)
        worker.drain(timeout=20)
