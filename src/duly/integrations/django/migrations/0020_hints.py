"""Apply migration 20 of the store."""

from typing import Any, ClassVar

from django.db import migrations

from duly.integrations.django.engine_migrations import forwards


class Migration(migrations.Migration):
    """Keep the tables when the migration is reversed: they may contain runs."""

    dependencies: ClassVar[list[Any]] = [("duly", "0019_plans")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(20), migrations.RunPython.noop),
    ]
