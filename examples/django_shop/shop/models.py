"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order and its state."""

    email = models.EmailField()
    confirmations = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.email}"


class Billing(models.Model):
    """A night in which all customers were billed."""

    run_id = models.CharField(max_length=36)
    pid = models.IntegerField()

    def __str__(self) -> str:
        return f"billing by run {self.run_id}"
