"""The background tasks of the shop."""

import os
import time

from django.conf import settings
from django.db.models import F

import duly
from duly.integrations.django import duly_options, exactly_once, scheduled_task
from shop.models import Billing, Order

try:
    from django.tasks import task
except ImportError:  # Django before 6.0
    from django_tasks import task


@task()
def confirm(order_id: int, seconds: float = 0) -> str:
    """Confirm an order. For some orders this takes a while."""
    time.sleep(seconds)
    order = Order.objects.get(pk=order_id)
    Order.objects.filter(pk=order_id).update(confirmations=F("confirmations") + 1)
    return order.email


@task()
@duly_options(transaction=True)
def confirm_once(order_id: int, seconds: float = 0) -> None:
    """Confirm an order. Its row and the end of the run are one commit."""
    Order.objects.filter(pk=order_id).update(confirmations=F("confirmations") + 1)
    time.sleep(seconds)


@task()
@duly_options(on_crash="hold")
def confirm_at_most_once(order_id: int, seconds: float = 0) -> None:
    """Confirm an order. If the worker dies meanwhile, a person decides what to do."""
    Order.objects.filter(pk=order_id).update(confirmations=F("confirmations") + 1)
    time.sleep(seconds)


@scheduled_task(cron=settings.BILLING_CRON, timezone="Europe/Paris", misfire="all", overlap="queue")
@task(backend=settings.BILLING_BACKEND)
@exactly_once
def nightly_billing() -> None:
    """Bill all customers, exactly once per night."""
    Billing.objects.create(run_id=duly.current().run_id, pid=os.getpid())
