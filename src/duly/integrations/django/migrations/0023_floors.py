"""Apply migration 23 of the store."""

from typing import Any, ClassVar

from django.db import migrations

from duly.integrations.django.engine_migrations import forwards


class Migration(migrations.Migration):
    """Keep the tables when the migration is reversed: they may contain runs."""

    atomic = False  # Indexes are built concurrently.
    dependencies: ClassVar[list[Any]] = [("duly", "0022_duties")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(23), migrations.RunPython.noop),
    ]
