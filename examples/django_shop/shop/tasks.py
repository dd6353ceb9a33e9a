"""What is done later."""

import time

from django.db.models import F
from django_tasks import task

from shop.models import Order


@task()
def confirm(order_id: int, seconds: float = 0) -> str:
    """Confirm an order; some take their time."""
    time.sleep(seconds)
    order = Order.objects.get(pk=order_id)
    Order.objects.filter(pk=order_id).update(confirmations=F("confirmations") + 1)
    return order.email
