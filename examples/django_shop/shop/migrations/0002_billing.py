"""The table of billings."""

from typing import ClassVar

from django.db import migrations, models

_ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    """Makes it."""

    dependencies: ClassVar[list] = [("shop", "0001_orders")]
    operations: ClassVar[list] = [
        migrations.CreateModel(
            "Billing",
            [
                ("id", _ID),
                ("run_id", models.CharField(max_length=36)),
                ("pid", models.IntegerField()),
            ],
        )
    ]
