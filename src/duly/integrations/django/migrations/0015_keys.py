"""Apply migration 15 of the store."""

from typing import Any, ClassVar

from django.db import migrations

from duly.integrations.django.engine_migrations import forwards


class Migration(migrations.Migration):
    """Keep the tables when the migration is reversed: they may contain runs."""

    dependencies: ClassVar[list[Any]] = [("duly", "0014_versions")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(15), migrations.RunPython.noop),
    ]
