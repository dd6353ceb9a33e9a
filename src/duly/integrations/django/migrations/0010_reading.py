"""Apply migration 10 of the store."""

from typing import Any, ClassVar

from django.db import migrations

from duly.integrations.django.engine_migrations import forwards


class Migration(migrations.Migration):
    """Keep the tables when the migration is reversed: they may contain runs."""

    dependencies: ClassVar[list[Any]] = [("duly", "0009_retention")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(10), migrations.RunPython.noop),
    ]
