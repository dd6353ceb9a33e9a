"""`manage.py place_orders 200`: places so many orders at once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from shop.models import Order
from shop.tasks import confirm, confirm_once


class Command(BaseCommand):
    """Places orders in one transaction."""

    help = "Place orders, whose confirmations are tasks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take how many, and how long each takes to confirm."""
        parser.add_argument("count", type=int)
        parser.add_argument("--seconds", type=float, default=0)
        parser.add_argument("--once", type=int, default=0, help="So many more, in one commit each.")

    @transaction.atomic
    def handle(self, *_args: object, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Place them."""
        for task, count in ((confirm, options["count"]), (confirm_once, options["once"])):
            for number in range(count):
                order = Order.objects.create(email=f"customer-{number}@example.com")
                task.enqueue(order.pk, options["seconds"])
        self.stdout.write(f"{options['count'] + options['once']} orders are placed")
