"""Apply migration 1 of the store, and declare the tables that the admin reads."""

from typing import Any, ClassVar

from django.db import migrations, models

from duly.integrations.django.engine_migrations import forwards
from duly.integrations.django.fields import RunIdField

_SEEN: dict[str, Any] = {"default_permissions": ("view", "change"), "ordering": ["-id"]}
_PROXY: dict[str, Any] = {"options": {"proxy": True, **_SEEN}, "bases": ("duly.run",)}


class Migration(migrations.Migration):
    """Keep the tables when the migration is reversed: they may contain runs.

    For unmanaged models, Django compares only names and options with the migration state.
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
