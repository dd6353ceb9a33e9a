"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order, and what became of it."""

    email = models.EmailField()
    confirmations = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.email}"


class Billing(models.Model):
    """A night on which all were billed."""

    run_id = models.CharField(max_length=36)
    pid = models.IntegerField()

    def __str__(self) -> str:
        return f"billing by run {self.run_id}"
