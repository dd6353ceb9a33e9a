"""Apply migration 12 of the store."""

from typing import Any, ClassVar

from django.db import migrations

from duly.integrations.django.engine_migrations import forwards


class Migration(migrations.Migration):
    """Keep the tables when the migration is reversed: they may contain runs."""

    dependencies: ClassVar[list[Any]] = [("duly", "0011_tallies")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(12), migrations.RunPython.noop),
    ]
