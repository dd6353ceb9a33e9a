"""The largest imports of Django programs before their settings are known."""

IMPORTS = (
    "django.contrib.syndication.views",
    "django.core.management.commands.migrate",
    "django.core.management.commands.shell",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.middleware.csrf",
    "django.template.backends.django",
    "django.template.loader_tags",
    "django.views.generic",
    "duly.api.schedules",
    "duly.cli.output",
    "duly.extend.carrier_worker",
    "duly.worker.embedded_worker",
    "duly.store.postgres.store",
    "duly.store.sqlite.store",
)
