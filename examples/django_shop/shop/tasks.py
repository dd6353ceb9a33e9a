"""What is done later."""

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
    """Confirm an order; some take their time."""
    time.sleep(seconds)
    order = Order.objects.get(pk=order_id)
    Order.objects.filter(pk=order_id).update(confirmations=F("confirmations") + 1)
    return order.email


@task()
@duly_options(transaction=True)
def confirm_once(order_id: int, seconds: float = 0) -> None:
    """Confirm an order; its row and the word that it is done are one commit."""
    Order.objects.filter(pk=order_id).update(confirmations=F("confirmations") + 1)
    time.sleep(seconds)


@scheduled_task(cron=settings.BILLING_CRON, timezone="Europe/Paris", misfire="all", overlap="queue")
@task(backend=settings.BILLING_BACKEND)
@exactly_once
def nightly_billing() -> None:
    """Bill everybody; on no night twice, and no night is left out."""
    Billing.objects.create(run_id=duly.current().run_id, pid=os.getpid())
