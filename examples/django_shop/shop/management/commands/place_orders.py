"""`manage.py place_orders 200`: places 200 orders at once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from shop.models import Order
from shop.tasks import confirm, confirm_at_most_once, confirm_once


class Command(BaseCommand):
    """Places orders in one transaction."""

    help = "Place orders, whose confirmations are tasks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the number of orders, and how long it takes to confirm each."""
        parser.add_argument("count", type=int)
        parser.add_argument("--seconds", type=float, default=0)
        parser.add_argument("--held", type=int, default=0, help="So many more, at most once each.")
        parser.add_argument("--once", type=int, default=0, help="So many more, in one commit each.")

    @transaction.atomic
    def handle(self, *_args: object, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Place the orders."""
        tasks = {"count": confirm, "once": confirm_once, "held": confirm_at_most_once}
        for option, task in tasks.items():
            for number in range(options[option]):
                order = Order.objects.create(email=f"customer-{number}@example.com")
                task.enqueue(order.pk, options["seconds"])
        self.stdout.write(f"{sum(options[option] for option in tasks)} orders are placed")
