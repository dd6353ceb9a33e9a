"""The table of orders."""

from typing import ClassVar

from django.db import migrations, models

_ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    """Makes it."""

    initial = True
    dependencies: ClassVar[list] = []
    operations: ClassVar[list] = [
        migrations.CreateModel(
            "Order",
            [
                ("id", _ID),
                ("email", models.EmailField(max_length=254)),
                ("confirmations", models.IntegerField(default=0)),
            ],
        )
    ]
