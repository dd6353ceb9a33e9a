"""Runs the store's migration of that number."""

from typing import Any, ClassVar

from django.db import migrations

from duly.integrations.django.engine_migrations import forwards


class Migration(migrations.Migration):
    """Leaves the tables where they are when it is undone: runs may lie in them."""

    dependencies: ClassVar[list[Any]] = [("duly", "0020_hints")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(21), migrations.RunPython.noop),
    ]
