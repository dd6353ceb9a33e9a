"""Empties duly's tables too on `manage.py flush`, which `TransactionTestCase` calls after a test.

Django empties only the tables of managed models, and duly's models are unmanaged.
"""

from typing import Any

from django.core.management.commands import flush
from django.db import connections

EMPTIED = (
    "duly_accounts",
    "duly_acts",
    "duly_attempts",
    "duly_bulk_acts",
    "duly_duties",
    "duly_events",
    "duly_firings",
    "duly_floors",
    "duly_guarded",
    "duly_handed",
    "duly_history",
    "duly_keys",
    "duly_letters",
    "duly_limit_floors",
    "duly_locks",
    "duly_logs",
    "duly_looks",
    "duly_queues",
    "duly_retentions",
    "duly_runs",
    "duly_schedules",
    "duly_steps",
    "duly_tags",
    "duly_tallies",
    "duly_waiting",
    "duly_wakeups",
    "duly_workers",
)
KEPT = ("duly_guard_fences", "duly_schema", "duly_store")
"""Tables that describe the schema and the store, and fences, which must only grow."""
_ONE_ROW_ON_SQLITE = "duly_accounts"
_RESET_ROW = (
    "UPDATE duly_accounts SET accepted = 0, pruned = 0, pruned_until = NULL "
    "WHERE NOT EXISTS (SELECT 1 FROM duly_every_run)"
)


class Command(flush.Command):
    """Empties the tables of all applications, as Django's own command does, and those of duly."""

    def handle(self, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Empty the tables if the user confirms."""
        connection = connections[options["database"]]
        existing = set(connection.introspection.table_names())
        names = [name for name in EMPTIED if name in existing]
        has_one_row = connection.vendor == "sqlite" and _ONE_ROW_ON_SQLITE in names
        if has_one_row:
            names.remove(_ONE_ROW_ON_SQLITE)
        introspection = connection.introspection
        names_of_django = introspection.django_table_names

        def with_ours(*args: Any, **options: Any) -> list[str]:  # noqa: ANN401 - Django's
            return [*names_of_django(*args, **options), *names]

        operations, flushed = connection.ops, []
        flush_tables = operations.execute_sql_flush

        def noted(statements: list[str]) -> None:
            flush_tables(statements)
            flushed.extend(statements)

        introspection.django_table_names, operations.execute_sql_flush = with_ours, noted
        try:
            super().handle(**options)
        finally:
            del introspection.django_table_names, operations.execute_sql_flush
        if has_one_row and flushed:
            with connection.cursor() as cursor:
                cursor.execute(_RESET_ROW)
