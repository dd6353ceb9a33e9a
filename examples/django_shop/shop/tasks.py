"""What is done later."""

import time

from django.db.models import F

from shop.models import Order

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
