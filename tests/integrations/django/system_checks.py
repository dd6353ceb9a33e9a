"""Run a project's system checks: `python -m …system_checks "check(…)"` prints their messages."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import django
from django.conf import settings
from django.core.checks import run_checks

DULY = "duly.integrations.django.DulyBackend"
WAL = {"ENGINE": "django.db.backends.sqlite3", "NAME": "x.db"}
GOOD = WAL | {"OPTIONS": {"transaction_mode": "IMMEDIATE"}}
IMMEDIATE = "django_tasks" if django.VERSION < (6,) else "django.tasks"
OTHER = {"BACKEND": f"{IMMEDIATE}.backends.immediate.ImmediateBackend"}
TASK = f"from {IMMEDIATE} import task; from duly.integrations.django import *\n"

AT_TWO = "@scheduled_task(cron='0 2 * * *'"
BILL = "\n@task()\n@exactly_once\ndef bill(): pass"


def check(
    *,
    database: dict[str, Any] = GOOD,
    backend: str = DULY,
    options: dict[str, str] | None = None,
    apps: tuple[str, ...] = ("duly.integrations.django",),
    code: str = "",
    early: bool = False,
) -> None:
    """Configure such a project. Its tasks are `code`, imported `early` or when Django does."""
    shop = ModuleType("shop")
    shop.__path__, shop.__file__ = ["."], "shop/__init__.py"
    sys.modules["shop"] = shop
    Path("tasks.py").write_text(code and TASK + code)
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=[*apps, "shop"],
        TASKS={"default": {"BACKEND": backend, "OPTIONS": options or {}}},
        USE_TZ=True,
    )
    if early:
        import shop.tasks  # noqa: PLC0415 - early on purpose
    django.setup()
    for message in run_checks():
        sys.stdout.write(f"{message.id} | {message.hint}\n")


if __name__ == "__main__":
    exec(sys.argv[1])  # noqa: S102 - the test's own code
