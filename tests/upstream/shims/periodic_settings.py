"""The settings of django-periodic-tasks' own tests, with duly's application in place of its own."""

import os

from sandbox.settings import *  # noqa: F403 - all of its settings
from sandbox.settings import INSTALLED_APPS as _APPS

# The tests' own package is an application too, since duly knows the tasks of applications alone.
INSTALLED_APPS = [
    *("duly.integrations.django" if app == "django_periodic_tasks" else app for app in _APPS),
    "tests",
]
_FILE = os.path.join(os.environ["UPSTREAM_FOLDER"], "periodic.db")  # noqa: PTH118
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _FILE,
        "TEST": {"NAME": f"{_FILE}.test"},
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 10},
    }
}
