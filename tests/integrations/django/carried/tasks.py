"""Scheduled tasks: each order pays once, and is billed in a row that commits with its run."""

import os
import time
from pathlib import Path

from django.conf import settings
from django.dispatch import receiver
from shop.models import Billing

import duly
from duly.integrations.django import exactly_once, scheduled_task
from duly.integrations.django.executions import EXECUTION
from tests.integrations.counter import tell
from tests.integrations.django.api import task, task_finished, task_started

YEARLY = "0 0 1 1 *"


@task(backend=settings.CARRIED_BY)
@exactly_once
def pay(order: int, gate: str) -> int:
    """Pay, and wait until the gate is open."""
    tell(settings.PAYMENTS_PORT, "began", order)
    while not Path(gate).exists():
        time.sleep(0.02)
    tell(settings.PAYMENTS_PORT, "ended", order)
    return os.getpid()


@task(backend=settings.CARRIED_BY)
@exactly_once(transaction=True)
def bill(order: int) -> int:
    """Bill the order. The row and the completion are one commit."""
    Billing.objects.create(run_id=duly.current().run_id, pid=os.getpid())
    tell(settings.BILLS_PORT, "began", order)
    time.sleep(0.2)
    tell(settings.BILLS_PORT, "ended", order)
    return order


for _number in range(settings.ORDERS):
    _gate = f"{settings.GATE}-{_number}"
    scheduled_task(cron=YEARLY, name=f"pay-{_number}", args=[_number, _gate])(pay)
    scheduled_task(cron=YEARLY, name=f"bill-{_number}", args=[_number])(bill)

begun_at: dict[str, float] = {}


@receiver(task_started)
def note_delivery(task_result, **_):
    begun_at[task_result.id] = time.perf_counter()


@receiver(task_finished)
def tell_delivery(task_result, **_):
    """Record how a delivery ended, and after how many microseconds."""
    took = int(1e6 * (time.perf_counter() - begun_at.pop(task_result.id)))
    execution = task_result.kwargs[EXECUTION]
    tell(settings.PAYMENTS_PORT, "delivered", f"{execution}|{task_result.status}|{took}")
