"""Deliver executions again, through the backend that carries them. `manage.py shell` runs it."""

from duly.integrations.django.executions import EXECUTION
from tests.integrations.django.carried.tasks import pay


def deliver_again(*executions: str) -> None:
    """Hand each execution over a second time."""
    for execution in executions:
        pay.enqueue(**{EXECUTION: execution})


def resume(execution: str) -> None:
    """Let django-tasks-db deliver executions again that stay running, as an operator would."""
    from django_tasks_db.models import DBTaskResult  # noqa: PLC0415 - where it is installed

    held = DBTaskResult.objects.running().get(args_kwargs__kwargs={EXECUTION: execution})
    held.status = "READY"
    held.save()
