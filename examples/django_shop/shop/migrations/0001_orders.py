"""The table of orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes it."""

    initial = True
    dependencies: ClassVar[list] = []
    operations: ClassVar[list] = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("email", models.EmailField(max_length=254)),
                ("confirmations", models.IntegerField(default=0)),
            ],
        )
    ]
