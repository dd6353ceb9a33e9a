"""Tasks of the project."""

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import transaction

from duly.integrations.django import exactly_once, scheduled_task
from tests.integrations.django.api import task


@task()
def add(name: str) -> str:
    Group.objects.create(name=name)
    return name


@task()
def add_by_another(name: str) -> str:
    """Return the state of a task that this one enqueues in its transaction."""
    with transaction.atomic():
        other = add.enqueue(name)
        other.refresh()
        return str(other.status)


@scheduled_task(cron="* * * * * *", name="sync")
@task(backend="immediate")
@exactly_once
def add_once() -> str:
    Group.objects.get_or_create(name="once")  # On a busy machine it comes due a second time.
    return "once"


@scheduled_task(cron="* * * * * *", name="async")
@task(backend="immediate")
@exactly_once
async def add_once_on_the_loop() -> str:
    await sync_to_async(Group.objects.get_or_create)(name="once on the loop")
    return "once on the loop"


@scheduled_task(cron="* * * * * *", name="transaction")
@task(backend="immediate")
@exactly_once(transaction=True)
def add_in_transaction() -> str:
    Group.objects.get_or_create(name="in transaction")
    return "in transaction"


@scheduled_task(cron="* * * * * *", name="plain")
@task(backend="dummy")
def add_plainly() -> None: ...
