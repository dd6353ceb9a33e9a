"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order, and what became of it."""

    email = models.EmailField()
    confirmations = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.email}"
