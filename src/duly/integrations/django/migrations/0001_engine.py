"""Runs the store's migration of that number, and names what the admin reads of its tables."""

from typing import Any, ClassVar

from django.db import migrations, models

from duly.integrations.django.engine_migrations import forwards
from duly.integrations.django.fields import RunIdField

_SEEN: dict[str, Any] = {"default_permissions": ("view", "change"), "ordering": ["-id"]}
_PROXY: dict[str, Any] = {"options": {"proxy": True, **_SEEN}, "bases": ("duly.run",)}


class Migration(migrations.Migration):
    """Leaves the tables where they are when it is undone: runs may lie in them.

    Of models that Django does not manage it compares nothing but their names and options.
    """

    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(forwards(1), migrations.RunPython.noop),
        migrations.CreateModel(
            "Run",
            [("id", RunIdField(primary_key=True))],
            options={"managed": False, "db_table": "duly_every_run", **_SEEN},
        ),
        migrations.CreateModel("DeadLetter", [], **_PROXY),
        migrations.CreateModel("Execution", [], **_PROXY),
        migrations.CreateModel(
            "Schedule",
            [("name", models.TextField(primary_key=True))],
            options={"managed": False, "db_table": "duly_schedules", "ordering": ["name"]},
        ),
        migrations.CreateModel(
            "Tag",
            [("run_id", RunIdField(primary_key=True))],
            options={"managed": False, "db_table": "duly_tags", "default_permissions": ()},
        ),
    ]
